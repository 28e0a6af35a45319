"""Which tokens of a draw are shown, and the stretch of [0, 1) that each owns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specdec_cli.decide import Verification


@dataclass(frozen=True)
class Candidate:
    """A token that could be drawn, or all the others summed (`token` is None)."""

    token: int | None
    count: int
    p: float
    q: float | None
    """None at the bonus position, which has no draft."""
    residual: float
    share: float
    """r(v), the residual divided by its mass."""
    start: float | None
    end: float | None
    """The stretch of [0, 1) that draws it: start ≤ s < end."""
    drawn: bool


def find_candidates(
    p: np.ndarray,
    q: np.ndarray | None,
    weights: np.ndarray,
    token: int,
    top: int,
    verification: Verification,
    row: int,
) -> list[Candidate]:
    """The likeliest, the drawn one and its neighbours, by token; and what is left, summed."""
    mass = float(verification.mass[row])
    if not 0 < mass < np.inf:  # beyond the range of a double: there is nothing to show but the token
        mass = float(weights.sum()) or 1.0
    cumulative = np.cumsum(weights)
    possible = np.flatnonzero(weights > 0)
    at = int(np.searchsorted(possible, token))
    neighbours = possible[max(at - 1, 0) : at + 2]
    likeliest = possible
    if len(possible) > top:
        likeliest = (
            possible[np.argpartition(weights[possible], len(possible) - top)[-top:]] if top else possible[:0]
        )
    listed = sorted({*neighbours.tolist(), *likeliest.tolist(), token})

    def candidate(v: int) -> Candidate:
        start, end = float(cumulative[v - 1]) if v else 0.0, float(cumulative[v])
        if v == token:  # as it was decided
            start, end = float(verification.below[row]), float(verification.through[row])
        weight = float(weights[v])
        return Candidate(
            v,
            1,
            float(p[v]),
            None if q is None else float(q[v]),
            weight,
            weight / mass,
            start / mass,
            min(end / mass, 1.0),
            v == token,
        )

    found = [candidate(v) for v in listed]
    rest = np.setdiff1d(possible, listed)
    if rest.size:
        left = float(weights[rest].sum())
        q_left = None if q is None else float(q[rest].sum())
        found.append(
            Candidate(None, rest.size, float(p[rest].sum()), q_left, left, left / mass, None, None, False)
        )
    return found
