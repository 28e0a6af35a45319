"""The verification step in JAX: accept test, accepted prefix, residual, inverse-CDF draw.

Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; p is the target, q the draft. Chen et al. 2023
(arXiv 2302.01318), algorithm 2, is the same step with the names the other way round.

The functions here are pure and know no files, flags or readings. They return the evidence with the answer, and
with every decision the margin and the bound (`rounding.py`) that say whether floats sufficed for it. What they
leave out: the exact decision of the other rows (`decide.py`), an empty residual (which looks like a mass of zero,
and so like a draw too close to call), and any check of the input (`batch.py`, `validate.py`): an id outside [0, V)
reads some other entry.

Lazy bytes: of the G + 1 positions the accept test reads two numbers each, and the draw one row of p and one of
q. No (B, G, V) array is ever made, nothing is normalised, and no cumulative sum runs over a whole row.

Everything is written for all rows at once, but for what reads a whole row of the vocabulary (`sums.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specdec_cli.rounding import BLOCK, Precision, accept_bound, draw_bound
from specdec_cli.sums import Form, block_sums, form_of, row_sums, running_sum, total, widen, window_of


class Evidence(NamedTuple):
    """One step's answer and what it rests on; the kernel's result has a leading axis B on every field.

    `float` is the dtype of the computation, float64 or float32; `prob` that of the probabilities it was given.
    """

    num_accepted: Array
    """int32 (): n."""
    tokens: Array
    """int32 (G + 1,): the n accepted tokens, y, then -1; y is the correction token when n < L, else the bonus."""
    sure: Array
    """bool (): exact arithmetic gives this n and y; no margin that counts is within its bound."""
    draft_token_probs: Array
    """prob (G,): q_i(x_i), bit for bit; 0 where a shorter draft has no position."""
    target_token_probs: Array
    """prob (G,): p_i(x_i), likewise."""
    accept_margin: Array
    """float (G,): p − u·q; the position passes when it is positive."""
    accept_bound: Array
    """float (G,): a margin no larger than this does not decide; NaN where p or q is no probability."""
    mass: Array
    """float (): T, the sum of max(p_n − q_n, 0) or of p_L."""
    threshold: Array
    """float (): s·T."""
    below: Array
    """float (): the cumulative before y, at most the threshold."""
    through: Array
    """float (): the cumulative through y, greater than the threshold."""
    draw_margin: Array
    """float (): the smaller distance of `threshold` from `below` and `through`."""
    draw_bound: Array
    """float (): a margin no larger than this does not decide."""


class Place(NamedTuple):
    """Where a row's last token is drawn from."""

    row: Array
    """int32 (): b."""
    position: Array
    """int32 (): n."""
    is_bonus: Array
    """bool (): n is the draft's length, and the token comes from p itself."""


Weights = Callable[[Place, Any, int], Array]
"""(place, start, static size) → that stretch of the place's V non-negative weights, as the computation's float."""


def accept_margin(u: Array, q: Array, p: Array) -> Array:
    """p − u·q: positive when the draft token passes, u < p/q, without dividing. Any shape."""
    return p - u * q


def accepted_prefix(passes: Array) -> Array:
    """n, the number of passes before the first failure. bool (N, G) → int32 (N,)."""
    return jnp.sum(jnp.cumprod(passes.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)


def accepted_and_drawn(draft_tokens: Array, accepted: Array, token: Array) -> Array:
    """A row's accepted tokens, the one drawn after them, then -1. int32 (N, G), (N,), (N,) → (N, G + 1)."""
    at = jnp.arange(draft_tokens.shape[1] + 1, dtype=jnp.int32)[None, :]
    kept = jnp.where(at < accepted[:, None], jnp.pad(draft_tokens, ((0, 0), (0, 1))), jnp.int32(-1))
    return jnp.where(at == accepted[:, None], token[:, None], kept)


def residual(p: Array, q: Array) -> Array:
    """max(p − q, 0), not normalised: the distribution of the correction token. Any shape."""
    return jnp.maximum(p - q, jnp.zeros((), p.dtype))


def first_above(cumulative: Array, threshold: Array, before: Array) -> tuple[Array, Array, Array]:
    """The first cumulative in each row that is greater than its threshold.

    Args:
      cumulative: (N, M), M at least 1.
      threshold: (N,).
      before: (N,), the cumulative before a row's first.

    Returns:
      Its index, int32 (N,), the cumulative before it, and itself, (N,). Where there is none, the first.
    """
    index = jnp.argmax(cumulative > threshold[:, None], axis=1).astype(jnp.int32)
    below = jnp.where(index > 0, _entry(cumulative, jnp.maximum(index - 1, 0)), before)
    return index, below, _entry(cumulative, index)


def inverse_cdf_draw(
    weights: Weights, places: Place, vocabulary: int, s: Array, form: Form
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """In each row the smallest v whose cumulative weight is greater than s·mass.

    The block is found from block sums, the token from a cumulative sum within it.

    Args:
      weights: reads a row's weights.
      places: the rows, N of them.
      vocabulary: V.
      s: (N,) in [0, 1), the dtype of the weights.
      form: how to go through the rows.

    Returns:
      v, int32 (N,), and mass, threshold, cumulative before v and through v, each (N,). Where rounding (or no mass
      at all) leaves no cumulative above the threshold, `through` does not exceed `threshold`.
    """
    through_block = running_sum(block_sums(weights, places, vocabulary, form))
    mass = through_block[:, -1]
    threshold = s * mass
    block, before, _ = first_above(through_block, threshold, jnp.zeros_like(mass))

    size = min(BLOCK, vocabulary)

    def entries(block_of: tuple[Place, Array]) -> Array:
        place, first = block_of
        # The last block may start earlier than its own first entry, so that the window fits in the row.
        start = jnp.minimum(first, vocabulary - size)
        own = start + jnp.arange(size, dtype=jnp.int32) >= first
        return jnp.where(own, weights(place, start, size), jnp.zeros((), mass.dtype))

    cumulative = before[:, None] + running_sum(form.each(entries, (places, block * BLOCK)))
    within, below, through = first_above(cumulative, threshold, before)
    token = jnp.minimum(block * BLOCK, vocabulary - size) + within
    return token, (mass, threshold, below, through)


@partial(jax.jit, static_argnames=("count", "how", "one_by_one"))
def verify_rows(
    draft_tokens: Array,
    draft_probs: Array,
    target_probs: Array,
    accept_uniforms: Array,
    sample_uniforms: Array,
    first: Array | int = 0,
    *,
    count: int | None = None,
    how: Precision,
    one_by_one: bool,
) -> Evidence:
    """Verify consecutive rows of a batch, all of them by default.

    Args:
      draft_tokens: int32 (B, G) in [0, V), -1 after a shorter draft.
      draft_probs: float16, bfloat16 (or `sums.BFLOAT16_BITS`), float32 or float64 (B, G, V), non-negative.
      target_probs: the same types, (B, G + 1, V).
      accept_uniforms: float (B, G) in [0, 1).
      sample_uniforms: float (B,) in [0, 1).
      first: int32 (), the first row.
      count: how many rows, N; B by default.
      how: the dtype to compute in ("float64" needs `jax.enable_x64`) and the reading error of the input.
      one_by_one: rows one after another (quickest on a CPU: each row's work fits its caches), or all at once
        (what a GPU or TPU wants). The decisions are the same.

    Returns:
      The evidence for those rows.
    """
    batch, positions, vocabulary = draft_probs.shape
    dtype = jnp.dtype(how.dtype)
    form = form_of(one_by_one)
    rows = jnp.asarray(first, jnp.int32) + jnp.arange(count or batch, dtype=jnp.int32)
    tokens = draft_tokens[rows]
    drafted = tokens >= 0
    length = jnp.sum(drafted, axis=1, dtype=jnp.int32)

    q_x, p_x = (_where_drafted(drafted, _at_tokens(probs, rows, tokens)) for probs in (draft_probs, target_probs))
    u, q, p = accept_uniforms[rows].astype(dtype), widen(q_x, dtype), widen(p_x, dtype)
    margin = accept_margin(u, q, p)
    accepted = accepted_prefix((margin > jnp.zeros((), dtype)) & drafted)

    def p_window(place: Place, start: Any, size: int) -> Array:
        return widen(window_of(target_probs, place.row, place.position, start, size), dtype)

    def q_window(place: Place, start: Any, size: int) -> Array:
        if positions == 0:
            return jnp.zeros((size,), dtype)
        position = jnp.minimum(place.position, positions - 1)
        q_n = widen(window_of(draft_probs, place.row, position, start, size), dtype)
        # At the bonus position q counts as zero, which makes the residual p itself.
        return jnp.where(place.is_bonus, jnp.zeros((), dtype), q_n)

    def residual_window(place: Place, start: Any, size: int) -> Array:
        return residual(p_window(place, start, size), q_window(place, start, size))

    def weight_window(place: Place, start: Any, size: int) -> Array:
        return p_window(place, start, size) + q_window(place, start, size)

    places = Place(rows, accepted, accepted == length)
    token, (mass, threshold, below, through) = inverse_cdf_draw(
        residual_window, places, vocabulary, sample_uniforms[rows].astype(dtype), form
    )
    # Only a reading error needs the sum of p and q, so only then are they summed.
    weight = total(block_sums(weight_window, places, vocabulary, form)) if how.reading_error else mass
    draw_margin = jnp.minimum(through - threshold, threshold - below)
    error_of_draw = jnp.abs(draw_bound(mass, weight, vocabulary, how))
    error_of_accept = jnp.where((p >= 0) & (q >= 0), accept_bound(u * q, p, q, how), jnp.nan)
    # What comes after the first failure takes no part. Written so that a NaN is not sure.
    counts = drafted & (jnp.arange(positions, dtype=jnp.int32)[None, :] <= accepted[:, None])
    accept_sure = ~jnp.any(counts & ~(jnp.abs(margin) > error_of_accept), axis=1)
    return Evidence(
        num_accepted=accepted,
        tokens=accepted_and_drawn(tokens, accepted, token),
        sure=accept_sure & (draw_margin > error_of_draw),
        draft_token_probs=q_x,
        target_token_probs=p_x,
        accept_margin=margin,
        accept_bound=error_of_accept,
        mass=mass,
        threshold=threshold,
        below=below,
        through=through,
        draw_margin=draw_margin,
        draw_bound=error_of_draw,
    )


@partial(jax.jit, static_argnames=("count", "how", "one_by_one"))
def verify_rows_and_sums(
    draft_tokens: Array,
    draft_probs: Array,
    target_probs: Array,
    accept_uniforms: Array,
    sample_uniforms: Array,
    **options: Any,
) -> tuple[Evidence, dict[str, Array]]:
    """`verify_rows`, and `row_sums` of both probabilities by name: one program is compiled and loaded sooner."""
    evidence = verify_rows(draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, **options)
    probs = {"draft_probs": draft_probs, "target_probs": target_probs}
    return evidence, {name: row_sums(array, **options) for name, array in probs.items() if array.size}


def _at_tokens(probs: Array, rows: Array, tokens: Array) -> Array:
    """probs[b, i, tokens[b, i]] for the N rows b and all G positions i. → (N, G)."""
    at = (rows[:, None], jnp.arange(tokens.shape[1])[None, :], jnp.maximum(tokens, 0))
    return jnp.asarray(probs).at[at].get(mode="promise_in_bounds")


def _entry(x: Array, index: Array) -> Array:
    """x[b, index[b]] for each of N rows. (N, M), int32 (N,) → (N,)."""
    return jnp.take_along_axis(x, index[:, None], axis=1, mode="promise_in_bounds")[:, 0]


def _where_drafted(drafted: Array, probs: Array) -> Array:
    return jnp.where(drafted, probs, jnp.zeros((), probs.dtype))
