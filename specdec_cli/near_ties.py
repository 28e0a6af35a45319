"""How close a decision has to be for an engine's rounding to turn it: an error model for each precision.

A model, not a bound as in `rounding.py`: nobody knows how an engine orders its sums. It says what a careful engine
of that precision may get wrong, so that what is further off is not excused as rounding.

    ε   unit roundoff of the precision that probabilities, uniforms and quotients are held in
    σ   unit roundoff of the precision that sums are accumulated in: float32 for the 16-bit types, as engines do
    η   smallest normal number, below which a device may flush (of float16 the smallest subnormal, which is kept)

Accept: u, p and q are each rounded, and so is their product or quotient: four half-ulps of the larger side,

    |p − u·q| ≤ 4ε·max(p, u·q) + η

Draw: every entry is rounded, which shifts a cumulative by at most ε·Σ(p + q), about 2ε (ε at the bonus position,
which has no q); a running sum of V entries then strays like a random walk; and s and s·T are rounded:

    |s·T − C| ≤ 2ε + σ·(1.25·√V + 4)·T + η·V

1.25·√V is what one float32 sum after another strays at most, over softmaxes of normal logits of standard deviation
2 and less (`make bench`). Over more peaked ones it strays several times as far, because the many small entries get
lost beside a sum of nearly 1: that is a mistake, which `check/mistakes.py` names, and is not excused here.

Everything here is plain arithmetic on Python floats or NumPy arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rounding:
    """What an engine computes in."""

    name: str
    unit: float
    """ε."""
    sum_unit: float
    """σ."""
    smallest: float
    """η."""


PRECISIONS = {
    rounding.name: rounding
    for rounding in (
        Rounding("float64", 2.0**-53, 2.0**-53, 2.0**-1022),
        Rounding("float32", 2.0**-24, 2.0**-24, 2.0**-126),
        Rounding("bfloat16", 2.0**-8, 2.0**-24, 2.0**-126),
        Rounding("float16", 2.0**-11, 2.0**-24, 2.0**-24),
    )
}
FLOAT32 = PRECISIONS["float32"]


def near_tie_accept(margin: Any, uq: Any, p: Any, how: Rounding = FLOAT32) -> Any:
    """Whether an engine may decide an accept test otherwise. With p = 0 every precision rejects.

    Args:
      margin: p − u·q, any shape.
      uq: u·q, the same shape.
      p: the same shape.
      how: the engine's precision.
    """
    larger = (uq + p + abs(uq - p)) / 2
    return (p > 0) & (abs(margin) <= 4 * how.unit * larger + how.smallest)


def running_sum_units(vocabulary: int) -> float:
    """How many units a running sum of V entries may stray."""
    return 1.25 * math.sqrt(vocabulary) + 4


def near_tie_draw(distance: Any, mass: Any, vocabulary: int, is_bonus: Any, how: Rounding = FLOAT32) -> Any:
    """Whether an engine may draw another token.

    Args:
      distance: from s·T to the stretch of the token in question, not divided by T; any shape.
      mass: T, the same shape.
      vocabulary: V.
      is_bonus: bool, the same shape: the token is drawn from p alone.
      how: the engine's precision.
    """
    entries = (2 - is_bonus) * how.unit
    sums = how.sum_unit * running_sum_units(vocabulary) * mass
    return distance <= entries + sums + how.smallest * vocabulary
