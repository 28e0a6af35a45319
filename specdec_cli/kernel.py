"""The verification step in JAX: accept test, accepted prefix, residual, inverse-CDF draw.

Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; p is the target, q the draft. Chen et al. 2023
(arXiv 2302.01318), algorithm 2, is the same step with the names the other way round.

The functions here are pure and know no files, flags or readings. They return the evidence with the answer, and
with every decision the margin and the bound (`rounding.py`) that say whether floats sufficed for it. What they
leave out: the exact decision of the others (`exact.py`), an empty residual (which looks like a mass of zero, and
so like a draw too close to call), and any check of the input (`batch.py`, `validate.py`): an id outside [0, V)
reads some other entry.

Lazy bytes: of the G + 1 positions the accept test reads two numbers each, and the draw one row of p and one of
q. No (B, G, V) array is ever made, nothing is normalised, and no cumulative sum runs over a whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specdec_cli.rounding import BLOCK, Precision, accept_bound, draw_bound


class Evidence(NamedTuple):
    """One step's answer and what it rests on; the kernel's result has a leading axis B on every field.

    `float` is the dtype of the computation, float64 or float32; `prob` that of the input's probabilities.
    """

    num_accepted: Array
    """int32 (): n."""
    token: Array
    """int32 (): y, in [0, V); the correction token when n < L, else the bonus token."""
    draft_token_probs: Array
    """prob (G,): q_i(x_i), bit for bit; 0 where a shorter draft has no position."""
    target_token_probs: Array
    """prob (G,): p_i(x_i), likewise."""
    accept_margin: Array
    """float (G,): p − u·q; the position passes when it is positive."""
    accept_bound: Array
    """float (G,): a margin no larger than this does not decide."""
    mass: Array
    """float (): T, the sum of max(p_n − q_n, 0) or of p_L."""
    threshold: Array
    """float (): s·T."""
    below: Array
    """float (): the cumulative before y, at most the threshold."""
    through: Array
    """float (): the cumulative through y, greater than the threshold."""
    draw_bound: Array
    """float (): a distance from `threshold` to `below` or `through` no larger than this does not decide."""


Window = Callable[[Any, int], Array]
"""(start, static size) → that stretch of a row of V non-negative weights, in the dtype of the computation."""


def accept_margin(u: Array, q: Array, p: Array) -> Array:
    """p − u·q: positive when the draft token passes, u < p/q, without dividing. Any shape."""
    return p - u * q


def accepted_prefix(passes: Array) -> Array:
    """n, the number of passes before the first failure. bool (G,) → int32 ()."""
    return jnp.sum(jnp.cumprod(passes.astype(jnp.int32)), dtype=jnp.int32)


def residual(p: Array, q: Array) -> Array:
    """max(p − q, 0), not normalised: the distribution of the correction token. Any shape."""
    return jnp.maximum(p - q, jnp.zeros((), p.dtype))


def block_sums(window: Window, vocabulary: int) -> Array:
    """Sums of consecutive stretches of `BLOCK` weights, the last one possibly shorter. → (⌈V/BLOCK⌉,)."""
    whole = vocabulary // BLOCK
    sums = []
    if whole:
        sums.append(jnp.sum(window(0, whole * BLOCK).reshape(whole, BLOCK), axis=1))
    if vocabulary % BLOCK:
        sums.append(jnp.sum(window(whole * BLOCK, vocabulary % BLOCK), keepdims=True))
    return jnp.concatenate(sums)


def inverse_cdf_draw(window: Window, vocabulary: int, s: Array) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """The smallest v whose cumulative weight is greater than s·mass.

    The block is found from block sums, the token from a cumulative sum within it.

    Args:
      window: the weights.
      vocabulary: V.
      s: () in [0, 1), the dtype of the weights.

    Returns:
      v, int32 (), and mass, threshold, cumulative before v and through v, each (). Where rounding (or no mass
      at all) leaves no cumulative above the threshold, `through` does not exceed `threshold`.
    """
    through_block = jnp.cumsum(block_sums(window, vocabulary))
    mass = through_block[-1]
    threshold = s * mass
    block = jnp.argmax(through_block > threshold).astype(jnp.int32)
    zero = jnp.zeros((), mass.dtype)
    before = jnp.where(block > 0, through_block[block - 1], zero)

    size = min(BLOCK, vocabulary)
    # The last block may start earlier than its own first entry, so that the window fits in the row.
    start = jnp.minimum(block * BLOCK, vocabulary - size)
    own = start + jnp.arange(size, dtype=jnp.int32) >= block * BLOCK
    cumulative = before + jnp.cumsum(jnp.where(own, window(start, size), zero))
    within = jnp.argmax(cumulative > threshold).astype(jnp.int32)
    below = jnp.where(within > 0, cumulative[within - 1], before)
    return start + within, (mass, threshold, below, cumulative[within])


def verify_row(
    row: Array,
    draft_tokens: Array,
    draft_probs: Array,
    target_probs: Array,
    accept_uniforms: Array,
    sample_uniforms: Array,
    how: Precision,
) -> Evidence:
    """One row of the batch: `row` is its int32 index, the arrays are the whole batch's (see `verify_rows`)."""
    _, positions, vocabulary = draft_probs.shape
    dtype = jnp.dtype(how.dtype)
    tokens = draft_tokens[row]
    drafted = tokens >= 0
    length = jnp.sum(drafted, dtype=jnp.int32)

    at = (jnp.broadcast_to(row, (positions,)), jnp.arange(positions), jnp.maximum(tokens, 0))
    q_x = _where_drafted(drafted, draft_probs.at[at].get(mode="promise_in_bounds"))
    p_x = _where_drafted(drafted, target_probs.at[at].get(mode="promise_in_bounds"))
    u, q, p = accept_uniforms[row].astype(dtype), widen(q_x, dtype), widen(p_x, dtype)
    margin = accept_margin(u, q, p)
    accepted = accepted_prefix((margin > jnp.zeros((), dtype)) & drafted)

    # At the bonus position q counts as zero, which makes the residual p itself.
    is_bonus = accepted == length

    def p_window(start: Any, size: int) -> Array:
        return widen(_window(target_probs, row, accepted, start, size), dtype)

    def q_window(start: Any, size: int) -> Array:
        if positions == 0:
            return jnp.zeros((size,), dtype)
        position = jnp.minimum(accepted, positions - 1)
        q_n = widen(_window(draft_probs, row, position, start, size), dtype)
        return jnp.where(is_bonus, jnp.zeros((), dtype), q_n)

    def residual_window(start: Any, size: int) -> Array:
        return residual(p_window(start, size), q_window(start, size))

    def weight_window(start: Any, size: int) -> Array:
        return p_window(start, size) + q_window(start, size)

    token, (mass, threshold, below, through) = inverse_cdf_draw(
        residual_window, vocabulary, sample_uniforms[row].astype(dtype)
    )
    # Only a reading error needs the sum of p and q, so only then are they summed.
    weight = jnp.sum(block_sums(weight_window, vocabulary)) if how.reading_error else mass
    return Evidence(
        num_accepted=accepted,
        token=token,
        draft_token_probs=q_x,
        target_token_probs=p_x,
        accept_margin=margin,
        accept_bound=accept_bound(u * q, p, q, how),
        mass=mass,
        threshold=threshold,
        below=below,
        through=through,
        draw_bound=draw_bound(mass, weight, vocabulary, how),
    )


@partial(jax.jit, static_argnames=("how", "one_by_one"))
def verify_rows(
    draft_tokens: Array,
    draft_probs: Array,
    target_probs: Array,
    accept_uniforms: Array,
    sample_uniforms: Array,
    *,
    how: Precision,
    one_by_one: bool,
) -> Evidence:
    """Verify every row of a batch.

    Args:
      draft_tokens: int32 (B, G) in [0, V), -1 after a shorter draft.
      draft_probs: float16, bfloat16, float32 or float64 (B, G, V), non-negative.
      target_probs: the same types, (B, G + 1, V).
      accept_uniforms: float (B, G) in [0, 1).
      sample_uniforms: float (B,) in [0, 1).
      how: the dtype to compute in ("float64" needs `jax.enable_x64`) and the reading error of the input.
      one_by_one: rows one after another (quickest on a CPU: each row's work fits its caches), or all at once
        (what a GPU or TPU wants). The decisions are the same.

    Returns:
      The evidence for all rows.
    """
    one_row = partial(
        verify_row,
        draft_tokens=draft_tokens,
        draft_probs=draft_probs,
        target_probs=target_probs,
        accept_uniforms=accept_uniforms,
        sample_uniforms=sample_uniforms,
        how=how,
    )
    rows = jnp.arange(draft_tokens.shape[0], dtype=jnp.int32)
    result: Evidence = lax.map(one_row, rows) if one_by_one else jax.vmap(one_row)(rows)
    return result


@partial(jax.jit, static_argnames=("how", "one_by_one"))
def row_sums(probs: Array, *, how: Precision, one_by_one: bool) -> tuple[Array, Array]:
    """What validation needs of every distribution, in one pass.

    Args:
      probs: float16, bfloat16, float32 or float64 (N, M, V), V at least 1.
      how: the dtype to compute in.
      one_by_one: as in `verify_rows`.

    Returns:
      The sums, float (N, M), with the relative error `rounding.summation_error`; and whether each row's entries
      are all finite and non-negative, bool (N, M), read from the bits so that no flushing hides a sign.
    """
    vocabulary = probs.shape[2]

    def one(index: tuple[Array, Array]) -> tuple[Array, Array]:
        row, position = index

        def window(start: Any, size: int) -> Array:
            return _window(probs, row, position, start, size)

        total = jnp.sum(
            block_sums(lambda start, size: widen(window(start, size), jnp.dtype(how.dtype)), vocabulary)
        )
        return total, jnp.all(finite_and_not_negative(window(0, vocabulary)))

    flat = jnp.arange(probs.shape[0] * probs.shape[1], dtype=jnp.int32)
    indices = (flat // probs.shape[1], flat % probs.shape[1])
    totals, fine = lax.map(one, indices) if one_by_one else jax.vmap(one)(indices)
    return totals.reshape(probs.shape[:2]), fine.reshape(probs.shape[:2])


@partial(jax.jit, static_argnames=("how", "one_by_one"))
def verify_rows_and_sums(
    draft_tokens: Array,
    draft_probs: Array,
    target_probs: Array,
    accept_uniforms: Array,
    sample_uniforms: Array,
    *,
    how: Precision,
    one_by_one: bool,
) -> tuple[Evidence, dict[str, tuple[Array, Array]]]:
    """`verify_rows`, and `row_sums` of both probabilities by name: one program is compiled and loaded sooner."""
    evidence = verify_rows(
        draft_tokens,
        draft_probs,
        target_probs,
        accept_uniforms,
        sample_uniforms,
        how=how,
        one_by_one=one_by_one,
    )
    probs = {"draft_probs": draft_probs, "target_probs": target_probs}
    return evidence, {
        name: row_sums(array, how=how, one_by_one=one_by_one) for name, array in probs.items() if array.size
    }


_BITS = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def finite_and_not_negative(x: Array) -> Array:
    """Whether each float is in [0, ∞), -0.0 included; NaN is not. Any shape → bool."""
    unsigned = _BITS[x.dtype.itemsize]
    bits = lax.bitcast_convert_type(x, unsigned)
    infinity = lax.bitcast_convert_type(jnp.array(jnp.inf, x.dtype), unsigned)
    minus_zero = lax.bitcast_convert_type(jnp.array(-0.0, x.dtype), unsigned)
    # Non-negative finite floats are, as unsigned integers, the ones below infinity.
    return (bits < infinity) | (bits == minus_zero)


def widen(x: Array, dtype: Any) -> Array:
    """Convert to the dtype of the computation.

    The 16-bit types go bit by bit. Of float16 a device may flush subnormals, which begin at 6e-5 and so are
    ordinary probabilities (those of the wider types begin at 1e-38). A conversion of bfloat16 XLA moves out of the
    loop over rows, which makes a float32 copy of the whole input.
    """
    if x.dtype.itemsize != 2:
        return x.astype(dtype)
    bits = lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32)
    if x.dtype == jnp.bfloat16:  # the upper half of a float32
        return lax.bitcast_convert_type(bits << jnp.uint32(16), jnp.float32).astype(dtype)
    sign = (bits & jnp.uint32(0x8000)) << jnp.uint32(16)
    magnitude = bits & jnp.uint32(0x7FFF)
    # Rebias the exponent from 15 to 127; an all-ones exponent (infinity, NaN) stays all ones.
    rebias = jnp.where(magnitude < jnp.uint32(0x7C00), jnp.uint32(112 << 23), jnp.uint32(224 << 23))
    normal = lax.bitcast_convert_type(sign | ((magnitude << jnp.uint32(13)) + rebias), jnp.float32)
    subnormal = magnitude.astype(jnp.float32) * jnp.float32(2.0**-24)
    signed = jnp.where(sign == jnp.uint32(0), subnormal, -subnormal)
    return jnp.where(magnitude < jnp.uint32(0x0400), signed, normal).astype(dtype)


def _window(probs: Array, row: Array, position: Array, start: Any, size: int) -> Array:
    """probs[row, position, start : start + size], without copying more than that."""
    at = (row, position, jnp.asarray(start, jnp.int32))
    return lax.dynamic_slice(probs, at, (1, 1, size)).reshape(size)


def _where_drafted(drafted: Array, probs: Array) -> Array:
    return jnp.where(drafted, probs, jnp.zeros((), probs.dtype))
