"""Sums over rows of the vocabulary, in JAX: with a proven error (`rounding.py`), and quick on each platform.

A row is added up in blocks, and a block in lanes, so that no number passes through more than about a hundred
additions. What reads a whole row is written for one row, and a `Form` applies it to all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specdec_cli.rounding import BLOCK, LANES, Precision

BFLOAT16_BITS = jnp.dtype(jnp.uint16)
"""The bits of bfloat16 numbers, to be given to a CPU in their place: XLA would convert all rows to float32."""


class Form(NamedTuple):
    """How to go through whole rows of the vocabulary."""

    each: Callable[..., Any]
    """(function of one row's arrays, arrays with a leading axis N) → its results with a leading axis N."""
    add_up: Callable[[Array], Array]
    """Sums over axis 1 of (N, M, LANES), of at most M − 1 additions each."""
    at_once: int
    """Entries of a row that the function is given, about."""


# On a CPU a stretch at a time stays in the nearest cache. XLA makes one loop of reading, weighing and adding up,
# in vector registers, if the additions are written out (for a `sum` it calls a library) and the stretch is too
# short for it to call in threads, which cost three times what they bring: shorter than 32,768 entries.
ROW_BY_ROW = Form(
    each=lax.map,
    add_up=lambda x: reduce(add, (x[:, i] for i in range(x.shape[1]))),
    at_once=(1 << 15) - BLOCK,
)
# A GPU or TPU fuses a sum with what it adds up.
TOGETHER = Form(
    each=lambda function, rows: jax.vmap(function)(rows),
    add_up=lambda x: _settled(jnp.sum(x, axis=1)),
    at_once=1 << 30,
)


def form_of(one_by_one: bool) -> Form:
    """The form for a CPU, or for the others."""
    return ROW_BY_ROW if one_by_one else TOGETHER


def block_sums(weights: Callable[[Any, Any, int], Array], rows: Any, vocabulary: int, form: Form) -> Array:
    """Sums of consecutive stretches of `BLOCK` weights in each row, the last one possibly shorter.

    Args:
      weights: (a row's arrays, start, static size) → that stretch of its V non-negative weights.
      rows: the rows' arrays, each with a leading axis N.
      vocabulary: V.
      form: how to go through them.

    Returns:
      (N, ⌈V/BLOCK⌉), of the weights' type.
    """

    def of_stretch(row: Any, start: Any, size: int) -> Array:
        padded = jnp.pad(weights(row, start, size), (0, -size % BLOCK))
        return jnp.sum(form.add_up(padded.reshape(-1, BLOCK // LANES, LANES)), axis=1)

    count = len(jax.tree.leaves(rows)[0])
    number = -(-vocabulary // form.at_once)
    size = vocabulary // number // BLOCK * BLOCK
    parts = []
    if number == 1 and size:
        parts.append(form.each(lambda row: of_stretch(row, 0, size), rows))
    elif size:
        row_of_each = jax.tree.map(lambda array: jnp.repeat(array, number), rows)
        starts = jnp.tile(jnp.arange(number, dtype=jnp.int32) * size, count)
        parts.append(form.each(lambda at: of_stretch(at[0], at[1], size), (row_of_each, starts)))
    if rest := vocabulary - number * size:
        parts.append(form.each(lambda row: of_stretch(row, number * size, rest), rows))
    return _settled(jnp.concatenate([part.reshape(count, -1) for part in parts], axis=1))


def running_sum(x: Array) -> Array:
    """Cumulative sums of non-negative numbers, (N, M) → (N, M), of few additions each: `LANES` by `LANES`."""
    if x.shape[1] <= LANES:
        return jnp.cumsum(x, axis=1)
    within = jnp.cumsum(_in_groups(x), axis=2)
    before = jnp.pad(jnp.cumsum(within[:, :-1, -1], axis=1), ((0, 0), (1, 0)))
    return (before[:, :, None] + within).reshape(x.shape[0], -1)[:, : x.shape[1]]


def total(x: Array) -> Array:
    """Sums of non-negative numbers, (N, M) → (N,), of no more additions than `running_sum` has."""
    return jnp.sum(_settled(jnp.sum(_in_groups(x), axis=2)), axis=1)


def _in_groups(x: Array) -> Array:
    """(N, M) → (N, ⌈M/LANES⌉, LANES), filled up with zeros."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % LANES))).reshape(x.shape[0], -1, LANES)


def _settled(x: Array) -> Array:
    """The same; XLA merges no sum behind it with one before it, which would make one of too many additions."""
    settled: Array = lax.optimization_barrier(x)  # type: ignore[no-untyped-call]
    return settled


@partial(jax.jit, static_argnames=("count", "how", "one_by_one"))
def row_sums(
    probs: Array, first: Array | int = 0, *, count: int | None = None, how: Precision, one_by_one: bool
) -> Array:
    """What validation needs of every distribution in consecutive rows, in one pass.

    Args:
      probs: float16, bfloat16 (or `BFLOAT16_BITS`), float32 or float64 (B, M, V), M and V at least 1.
      first: int32 (), the first row.
      count: how many rows, N; B by default.
      how: the dtype to compute in.
      one_by_one: which form.

    Returns:
      Their sums, float (N, M), with the relative error `rounding.summation_error`; NaN where an entry is not
      finite or negative, which is read from its bits, so that no flushing hides a sign.
    """
    batch, positions, vocabulary = probs.shape
    dtype = jnp.dtype(how.dtype)
    count = count or batch

    def checked(x: Array) -> Array:
        return jnp.where(finite_and_not_negative(x), widen(x, dtype), jnp.full((), jnp.nan, dtype))

    def checked_window(at: tuple[Array, Array], start: Any, size: int) -> Array:
        return checked(window_of(probs, at[0], at[1], start, size))

    if one_by_one:
        row = jnp.asarray(first, jnp.int32) + jnp.arange(count, dtype=jnp.int32)
        places = jnp.repeat(row, positions), jnp.tile(jnp.arange(positions, dtype=jnp.int32), count)
        blocks = block_sums(checked_window, places, vocabulary, ROW_BY_ROW)
    else:  # the rows themselves: there is nothing to gather
        rows = lax.dynamic_slice_in_dim(probs, first, count).reshape(-1, vocabulary)
        blocks = block_sums(
            lambda row, start, size: checked(row[start : start + size]), rows, vocabulary, TOGETHER
        )
    return total(blocks).reshape(count, positions)


def window_of(probs: Array, row: Array, position: Array, start: Any, size: int) -> Array:
    """probs[row, position, start : start + size], without copying more than that."""
    at = (row, position, jnp.asarray(start, jnp.int32))
    return lax.dynamic_slice(probs, at, (1, 1, size)).reshape(size)


_BITS = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def _stands_for(x: Array) -> Any:
    """The type of probabilities: `BFLOAT16_BITS` are bfloat16's."""
    return jnp.bfloat16 if x.dtype == BFLOAT16_BITS else x.dtype


def finite_and_not_negative(x: Array) -> Array:
    """Whether each float is in [0, ∞), -0.0 included; NaN is not. Any shape → bool."""
    unsigned = _BITS[x.dtype.itemsize]
    bits = lax.bitcast_convert_type(x, unsigned)
    infinity = lax.bitcast_convert_type(jnp.array(jnp.inf, _stands_for(x)), unsigned)
    minus_zero = lax.bitcast_convert_type(jnp.array(-0.0, _stands_for(x)), unsigned)
    # Non-negative finite floats are, as unsigned integers, the ones below infinity.
    return (bits < infinity) | (bits == minus_zero)


def widen(x: Array, dtype: Any) -> Array:
    """Convert to the dtype of the computation.

    The 16-bit types go bit by bit. Of float16 a device may flush subnormals, which begin at 6e-5 and so are
    ordinary probabilities (those of the wider types begin at 1e-38).
    """
    if x.dtype.itemsize != 2:
        return x.astype(dtype)
    bits = lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32)
    if _stands_for(x) == jnp.bfloat16:  # the upper half of a float32
        return lax.bitcast_convert_type(bits << jnp.uint32(16), jnp.float32).astype(dtype)
    sign = (bits & jnp.uint32(0x8000)) << jnp.uint32(16)
    magnitude = bits & jnp.uint32(0x7FFF)
    # Rebias the exponent from 15 to 127; an all-ones exponent (infinity, NaN) stays all ones.
    rebias = jnp.where(magnitude < jnp.uint32(0x7C00), jnp.uint32(112 << 23), jnp.uint32(224 << 23))
    normal = lax.bitcast_convert_type(sign | ((magnitude << jnp.uint32(13)) + rebias), jnp.float32)
    subnormal = magnitude.astype(jnp.float32) * jnp.float32(2.0**-24)
    signed = jnp.where(sign == jnp.uint32(0), subnormal, -subnormal)
    return jnp.where(magnitude < jnp.uint32(0x0400), signed, normal).astype(dtype)
