"""Mistakes that engines are known to make: each a step that does one thing wrong, to be replayed on an input.

To add one, write a function from a `Row` to a `Step` and give it a line in `MISTAKES`. A mistake that can be made
in several ways has several variants, of which the one that fits best is reported.

The replay is in float64, where a tie is taken for one: 1e-12 is far more than its rounding, and so small that
noise hardly ever falls within it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from specdec_cli.check.rows import Row

TIE = 1e-12


@dataclass(frozen=True)
class Step:
    """What a step comes to."""

    num_accepted: int
    weights: np.ndarray
    """What the last token is drawn from, not normalised."""
    token: int


Replay = Callable[[Row], Step]


@dataclass(frozen=True)
class Mistake:
    """A known mistake and the ways to make it."""

    name: str
    variants: dict[str, Replay] = field(repr=False)
    needs_s: bool = False
    """It is in the use of s, so that nothing shows where the engine's noise is not known."""


def below(u: Any, q: Any, p: Any) -> Any:
    """u < p/q; a tie is none."""
    return u * q * (1 + TIE) < p


def at_most(u: Any, q: Any, p: Any) -> Any:
    """u ≤ p/q."""
    return u * q * (1 - TIE) <= p


def prefix(passes: np.ndarray) -> int:
    """The number of passes before the first failure."""
    return int(np.cumprod(passes).sum())


def inverse_cdf(weights: np.ndarray, s: float) -> int:
    """The smallest v whose cumulative is greater than s·T."""
    cumulative = np.cumsum(weights)
    drawn = np.searchsorted(cumulative, s * cumulative[-1] * (1 + TIE), side="right")
    return int(min(drawn, len(weights) - 1))


def step(
    row: Row,
    accepted: int | None = None,
    weights: Callable[[int], np.ndarray] | None = None,
    draw: Callable[[np.ndarray, int], int] | None = None,
) -> Step:
    """A step that is right but for what is given instead: n, the weights at n, or the draw from them at n."""
    n = prefix(below(row.u, row.q_x, row.p_x)) if accepted is None else accepted
    if weights is None and draw is None:
        return Step(n, row.weights(n), row.kept(n, lambda: inverse_cdf(row.weights(n), row.s)))
    chosen = (weights or row.weights)(n)
    return Step(n, chosen, draw(chosen, n) if draw else inverse_cdf(chosen, row.s))


def right(row: Row) -> Step:
    """No mistake at all."""
    return step(row)


def _at_correction(row: Row, weights: Callable[[int], np.ndarray]) -> Callable[[int], np.ndarray]:
    """Other weights after a rejection, the right ones for the bonus token."""
    return lambda n: weights(n) if n < row.length else row.weights(n)


def _accepts_ties(row: Row) -> Step:
    return step(row, prefix(at_most(row.u, row.q_x, row.p_x)))


def _with_epsilon(epsilon: float) -> dict[str, Replay]:
    return {
        f"u < p/(q + {epsilon:g})": lambda row: step(row, prefix(below(row.u, row.q_x + epsilon, row.p_x))),
        f"u < p/max(q, {epsilon:g})": lambda row: step(
            row, prefix(below(row.u, np.maximum(row.q_x, epsilon), row.p_x))
        ),
        f"u < (p + {epsilon:g})/(q + {epsilon:g})": lambda row: step(
            row, prefix(below(row.u, row.q_x + epsilon, row.p_x + epsilon))
        ),
    }


def _swapped_in_test(row: Row) -> Step:
    return step(row, prefix(below(row.u, row.p_x, row.q_x)))


def _q_minus_p(row: Row) -> Callable[[int], np.ndarray]:
    return _at_correction(row, lambda n: np.asarray(np.maximum(row.q(n) - row.p(n), 0)))


def _swapped_in_residual(row: Row) -> Step:
    return step(row, weights=_q_minus_p(row))


def _swapped_in_both(row: Row) -> Step:
    return step(row, prefix(below(row.u, row.p_x, row.q_x)), _q_minus_p(row))


def _correction_from_p(row: Row) -> Step:
    return step(row, weights=row.p)


def _not_renormalised(if_none: Callable[[np.ndarray], int]) -> Replay:
    def draw_of(row: Row) -> Callable[[np.ndarray, int], int]:
        def draw(weights: np.ndarray, n: int) -> int:
            if n == row.length:
                return inverse_cdf(weights, row.s)
            above = np.cumsum(weights) > row.s
            return int(np.argmax(above)) if above.any() else if_none(weights)

        return draw

    return lambda row: step(row, draw=draw_of(row))


def _softmax_of_residual(row: Row) -> Step:
    return step(row, weights=_at_correction(row, lambda n: np.exp(row.weights(n))))


def _softmax_of_normalised_residual(row: Row) -> Step:
    return step(row, weights=_at_correction(row, lambda n: np.exp(row.weights(n) / row.weights(n).sum())))


def _residual_of(shift_p: int, shift_q: int) -> Replay:
    def weights_of(row: Row) -> Callable[[int], np.ndarray]:
        def weights(n: int) -> np.ndarray:
            last = row.length - 1
            p = row.p(min(max(n + shift_p, 0), row.length))
            return np.asarray(np.maximum(p - row.q(min(max(n + shift_q, 0), last)), 0))

        return _at_correction(row, weights)

    return lambda row: step(row, weights=weights_of(row))


def _bonus_after_rejection(row: Row) -> Step:
    return step(row, weights=lambda _: row.p(row.length))


def _bonus_clamped(row: Row) -> Step:
    return step(row, weights=lambda n: row.p(n - 1) if n == row.length and n else row.weights(n))


def _bonus_from_last_residual(row: Row) -> Step:
    return step(row, weights=lambda n: row.weights(n - 1) if n == row.length and n else row.weights(n))


def _passes_summed(row: Row) -> Step:
    return step(row, int(below(row.u, row.q_x, row.p_x).sum()))


def _u_reused(position: Callable[[Row, int], int], for_bonus: bool) -> Replay:
    def draw_of(row: Row) -> Callable[[np.ndarray, int], int]:
        def draw(weights: np.ndarray, n: int) -> int:
            use = row.length and (n < row.length or for_bonus)
            return inverse_cdf(weights, float(row.u[position(row, n)]) if use else row.s)

        return draw

    return lambda row: step(row, draw=draw_of(row))


def _s_of_row(other: Callable[[int, int], int]) -> Replay:
    def replay(row: Row) -> Step:
        theirs = row.batch.sample_uniforms
        s = float(theirs[other(row.index, len(theirs))])
        return step(row, draw=lambda weights, _: inverse_cdf(weights, s))

    return replay


def _draws_at_least(row: Row) -> Step:
    def draw(weights: np.ndarray, _: int) -> int:
        cumulative = np.cumsum(weights)
        return int(np.searchsorted(cumulative, row.s * cumulative[-1] * (1 - TIE), side="left"))

    return step(row, draw=draw)


def _draft_of_row(other: Callable[[int, int], int]) -> Replay:
    return lambda row: step(Row(row.batch, row.index, other(row.index, row.batch.shape[0])))


def _argmax(row: Row) -> Step:
    return step(row, draw=lambda weights, _: int(np.argmax(weights)))


def _cumulative_in(dtype: Any, *, normalised: bool, s_as_well: bool = False, sums: Any = None) -> Replay:
    def draw_of(row: Row) -> Callable[[np.ndarray, int], int]:
        def draw(weights: np.ndarray, _: int) -> int:
            shares = weights / weights.sum() if normalised else weights
            cumulative = np.cumsum(shares.astype(sums or dtype)).astype(dtype).astype(np.float64)
            s = float(dtype(row.s)) if s_as_well else row.s
            threshold = s if normalised else float(dtype(s * cumulative[-1]))
            return int(np.argmax(cumulative > threshold))  # 0 where none is

        return draw

    return lambda row: step(row, draw=draw_of(row))


def _all_cumulative_in(dtype: Any) -> dict[str, Replay]:
    found = {
        "against s·T": _cumulative_in(dtype, normalised=False),
        "of normalised weights": _cumulative_in(dtype, normalised=True),
        "of normalised weights, s rounded as well": _cumulative_in(dtype, normalised=True, s_as_well=True),
    }
    if dtype is not np.float32:
        found["of normalised weights, added in float32"] = _cumulative_in(dtype, normalised=True, sums=np.float32)
    return found


EPSILONS = (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)

MISTAKES = (
    Mistake("<= for < in the accept test", {"": _accepts_ties}),
    Mistake(
        "an epsilon in the ratio",
        {name: replay for epsilon in EPSILONS for name, replay in _with_epsilon(epsilon).items()},
    ),
    Mistake(
        "p and q swapped",
        {
            "in the accept test": _swapped_in_test,
            "in the residual": _swapped_in_residual,
            "in both": _swapped_in_both,
        },
    ),
    Mistake("correction drawn from p instead of the residual", {"": _correction_from_p}),
    Mistake(
        "residual not renormalised",
        {
            "the last token where none is left": _not_renormalised(lambda weights: len(weights) - 1),
            "token 0 where none is left": _not_renormalised(lambda _: 0),
        },
        needs_s=True,
    ),
    Mistake(
        "softmax of the residual",
        {"as it is": _softmax_of_residual, "of the normalised one": _softmax_of_normalised_residual},
    ),
    Mistake(
        "residual of the wrong position",
        {
            "one before": _residual_of(-1, -1),
            "one after": _residual_of(1, 1),
            "p of one after": _residual_of(1, 0),
            "q of one before": _residual_of(0, -1),
            "q of one after": _residual_of(0, 1),
        },
    ),
    Mistake("bonus token drawn after a rejection", {"": _bonus_after_rejection}),
    Mistake(
        "bonus row clamped to the last draft row",
        {"p of the last draft position": _bonus_clamped, "its residual": _bonus_from_last_residual},
    ),
    Mistake("passes summed after the first failure", {"": _passes_summed}),
    Mistake(
        "u reused for the draw",
        {
            "that of the rejected position": _u_reused(lambda _, n: n, for_bonus=False),
            "that of the last tested position": _u_reused(lambda row, n: min(n, row.length - 1), for_bonus=True),
            "that of position 0": _u_reused(lambda *_: 0, for_bonus=True),
        },
        needs_s=True,
    ),
    Mistake(
        "s shifted by a row",
        {
            "that of the row before": _s_of_row(lambda index, rows: (index - 1) % rows),
            "that of the row after": _s_of_row(lambda index, rows: (index + 1) % rows),
            "that of row 0": _s_of_row(lambda *_: 0),
            "in reverse": _s_of_row(lambda index, rows: rows - 1 - index),
        },
        needs_s=True,
    ),
    Mistake(">= for > in the draw", {"": _draws_at_least}, needs_s=True),
    Mistake(
        "draft rows misordered between requests",
        {
            "those of the row before": _draft_of_row(lambda index, rows: (index - 1) % rows),
            "those of the row after": _draft_of_row(lambda index, rows: (index + 1) % rows),
            "in reverse": _draft_of_row(lambda index, rows: rows - 1 - index),
            "in pairs": _draft_of_row(lambda index, rows: min(index ^ 1, rows - 1)),
        },
    ),
    Mistake("argmax instead of sampling", {"": _argmax}, needs_s=True),
    Mistake("float32 cumulative sums", _all_cumulative_in(np.float32), needs_s=True),
    Mistake("bfloat16 cumulative sums", _all_cumulative_in(ml_dtypes.bfloat16), needs_s=True),
)
"""In the order in which equals are reported."""
