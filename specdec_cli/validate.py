"""Are the probabilities distributions? Finite, not negative, and summing to 1 within a tolerance.

The sums come from the kernel, in floats; a sum that is too close to the tolerance for its rounding error is
added up exactly, so that one input is never accepted on one device and refused on another.
Positions past a shorter draft are not read and may hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from specdec_cli import exact
from specdec_cli.batch import Batch
from specdec_cli.errors import InputError

SUM_TOLERANCE = Fraction(1, 1000)
SUM_TOLERANCE_16_BIT = Fraction(1, 100)
"""For float16 and bfloat16, whose entries are rounded more coarsely."""


def check_distributions(
    batch: Batch, sums: Mapping[str, np.ndarray], sum_error: float, tolerance: Fraction | None = None
) -> None:
    """Refuse the first row that holds something else than a distribution, draft before target.

    Args:
      batch: for what the numbers mean, and for the entries of a row that needs a closer look.
      sums: of each of `PROB_FIELDS` that has entries, floats (B, G) or (B, G + 1): each distribution's sum, NaN
        where an entry is not finite or negative.
      sum_error: the relative error of the sums.
      tolerance: how far from 1 a sum may be, exclusive; by default what suits the field's type.

    Raises:
      InputError: naming the distribution, or the entry where one is at fault.
    """
    doubtful = []
    tolerances = {
        field: _tolerance_for(getattr(batch, field)) if tolerance is None else tolerance for field in sums
    }
    for field, found in sums.items():
        last = batch.draft_lengths[:, None] - (1 if field == "draft_probs" else 0)
        read = np.arange(found.shape[1]) <= last
        with np.errstate(all="ignore"):
            distance = np.abs(found.astype(np.float64) - 1)
            # Written so that NaN is not sure; 1e-9 is far more than the rounding of this very comparison.
            sure = distance + sum_error * np.abs(found) + 1e-9 < float(tolerances[field])
        doubtful += [(row, field, position) for row, position in np.argwhere(read & ~sure).tolist()]
    for row, field, position in sorted(doubtful):
        entries = entries_at(batch, field, row, position)
        excess = exact.total(entries, batch.reading) - 1
        off = abs(excess)
        if off and off >= tolerances[field]:
            raise InputError(
                f"sums to {exact.to_float(1 + excess):.10g}, which is {exact.to_float(off):.3g} "
                f"away from 1: expected less than {float(tolerances[field]):g}",
                _sum_hint(off),
                source=batch.source,
                field=field,
                index=(row, position),
            )


def _tolerance_for(probs: Any) -> Fraction:
    return SUM_TOLERANCE_16_BIT if probs.dtype.itemsize == 2 else SUM_TOLERANCE


def _sum_hint(off: Fraction) -> str:
    if off < SUM_TOLERANCE_16_BIT:
        return (
            "probabilities computed in float16 or bfloat16 and stored wider are this far off; "
            "--sum-tolerance 0.01 (in Python, sum_tolerance=0.01) accepts them"
        )
    return "logits, log-probabilities, or a top-k or top-p cut that was not renormalised are the usual causes"


def entries_at(batch: Batch, field: str, row: int, position: int) -> np.ndarray:
    """One distribution (V,), checked entry by entry: finite and not negative.

    Raises:
      InputError: naming the first entry that is not.
    """
    array = getattr(batch, field)
    entries = np.asarray(array[row, position])
    with np.errstate(invalid="ignore"):  # a signalling NaN
        fine = finite_and_not_negative(entries.astype(np.float64))
    if not fine.all():
        entry = int(np.argmin(fine))
        raise _not_a_probability(batch, field, (row, position, entry), entries[entry])
    return entries


def entry_at(batch: Batch, field: str, index: tuple[int, int, int]) -> float:
    """One probability, checked to be finite and not negative."""
    array = getattr(batch, field)
    number = float(np.asarray(array[index]))
    if not finite_and_not_negative(number):
        raise _not_a_probability(batch, field, index, number)
    return number


def finite_and_not_negative(x: Any) -> Any:
    """Whether each number is in [0, ∞), NaN not; NumPy arrays of float32 or float64, or a float."""
    return (x >= 0) & (x < np.inf)


def _not_a_probability(batch: Batch, field: str, index: tuple[int, ...], number: Any) -> InputError:
    number = float(number)
    if number < 0:
        hint = "negative entries are usually logits or log-probabilities: apply softmax or exp first"
    else:
        hint = "a masked or overflowed softmax is the usual cause; it must be mended where it is computed"
    name = "NaN" if number != number else repr(number)
    return InputError(
        f"is {name}, expected a finite probability, 0 or more",
        hint,
        source=batch.source,
        field=field,
        index=index,
    )
