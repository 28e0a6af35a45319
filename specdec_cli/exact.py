"""The decisions of a step in exact arithmetic, for one row: slow, and never wrong.

`verification.py` asks here about the rows that the kernel's floats were too coarse for. A number is read in one
of two ways (`Reading`): its binary value, or the decimal it was written as. Either way it is a ratio of whole
numbers, and sums, differences and comparisons of such are exact in Python.

Single numbers are `Fraction`s. Whole rows are lists that add up faster: integers with one common power of two
for the binary reading, `Decimal`s in a context that traps any rounding for the decimal reading.

What is left out: whether the input is valid. Rows must be finite and non-negative.
"""

from __future__ import annotations

import decimal
import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from operator import sub
from typing import Any

import numpy as np

from specdec_cli.batch import Reading

# The decimals that stand for doubles have digits from 10^308 down to 10^-324, their products down to 10^-648; sums
# of fewer than 2^64 of them fit in this many. Were one ever to be rounded, `Inexact` would say so.
_EXACT = decimal.Context(prec=2000, Emax=2000, Emin=-2000, traps=[decimal.Inexact, decimal.InvalidOperation])


@dataclass(frozen=True)
class Draw:
    """The last token of a row, and the numbers that it rests on, each rounded once to a float.

    Before that rounding below ≤ threshold < through; after it neighbours may be equal.
    """

    token: int
    """y: the smallest v whose cumulative is greater than the threshold."""
    empty_residual: bool
    """The residual had no mass, and y comes from p_n."""
    mass: float
    threshold: float
    below: float
    """The cumulative before y."""
    through: float
    """The cumulative through y."""


def value(number: float, reading: Reading) -> Fraction:
    """What a number in the input means.

    >>> value(0.1, Reading.DECIMAL)
    Fraction(1, 10)
    >>> value(0.1, Reading.BINARY)
    Fraction(3602879701896397, 36028797018963968)
    """
    number = float(number)
    return Fraction(repr(number)) if reading is Reading.DECIMAL else Fraction(number)


def to_float(number: Fraction) -> float:
    """The nearest double; infinity where there is none."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def accept_margin(u: float, q: float, p: float, reading: Reading) -> Fraction:
    """p − u·q, positive exactly when the draft token passes.

    With q = 0 that is p > 0, the limit of u < p/q; with p = 0 it is never so, not even at u = 0.
    """
    return value(p, reading) - value(u, reading) * value(q, reading)


def total(row: np.ndarray, reading: Reading) -> Fraction:
    """The sum of a row of floats (V,)."""
    (numbers,), scale = _row_numbers([_float64(row)], reading)
    with decimal.localcontext(_EXACT):
        return Fraction(sum(numbers)) / scale


def draw(p: np.ndarray, q: np.ndarray | None, s: float, reading: Reading) -> Draw | None:
    """The smallest v with r(0) + … + r(v) > s·Σr, r being max(p − q, 0), or p itself at the bonus position.

    When p ≤ q everywhere r is empty, and y is drawn from p (the contract's *empty residual*).

    Args:
      p: floats (V,), finite and non-negative.
      q: the same; None at the bonus position.
      s: in [0, 1).
      reading: what the numbers mean.

    Returns:
      The draw; None if p has no mass either, so that there is no token to draw.
    """
    p = _float64(p)
    q = None if q is None else _float64(q)
    # Two doubles compare as the numbers they stand for do, in both readings: each decimal reads back as its own.
    support = np.flatnonzero(p > (0.0 if q is None else q))
    empty = q is not None and support.size == 0
    if empty:
        support, q = np.flatnonzero(p > 0.0), None
    if support.size == 0:
        return None

    rows, scale = _row_numbers([p[support]] if q is None else [p[support], q[support]], reading)
    with decimal.localcontext(_EXACT):
        weights = rows[0] if q is None else map(sub, *rows)
        cumulative = list(accumulate(weights))
        mass = Fraction(cumulative[-1])
        threshold = value(s, reading) * mass
        drawn = bisect_right(cumulative, threshold)
        below = Fraction(cumulative[drawn - 1]) if drawn else Fraction(0)
        through = Fraction(cumulative[drawn])
    return Draw(
        token=int(support[drawn]),
        empty_residual=empty,
        mass=to_float(mass / scale),
        threshold=to_float(threshold / scale),
        below=to_float(below / scale),
        through=to_float(through / scale),
    )


def _float64(row: np.ndarray) -> np.ndarray:
    """Every float type of the contract widens to float64 without rounding."""
    return np.asarray(row).astype(np.float64)


def _row_numbers(rows: list[np.ndarray], reading: Reading) -> tuple[list[list[Any]], Fraction]:
    """Rows as exact numbers that can be added to each other, all multiplied by the `scale` returned."""
    if reading is Reading.DECIMAL:
        return [[decimal.Decimal(digits) for digits in map(repr, row.tolist())] for row in rows], Fraction(1)
    parts = [np.frexp(row) for row in rows]
    lowest = min((int(exponent.min()) for _, exponent in parts if exponent.size), default=0) - 53
    numbers = [
        [
            mantissa << shift
            for mantissa, shift in zip(
                np.ldexp(fraction, 53).astype(np.int64).tolist(),
                (exponent - (53 + lowest)).tolist(),
                strict=True,
            )
        ]
        for fraction, exponent in parts
    ]
    return numbers, Fraction(2) ** -lowest
