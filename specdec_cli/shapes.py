"""Batches of any shape → arrays of few shapes, so that few programs have to be compiled.

A program is compiled for one shape, in a few tenths of a second: longer than it then takes to verify a hundred
thousand numbers. Small batches are therefore padded to shapes that many share, by what the contract says is not
read: a shorter draft ends in `PAD`s, a token of probability 0 is never drawn, and rows know nothing of each other.
Large ones, where a padded copy would cost more than it saves, are cut into runs of 1, 2, 4, 8, … rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specdec_cli.batch import AXES, PAD, Batch

LEAST = {"B": 4, "G": 8, "V": 64}
"""Shorter axes are padded to this, longer ones to a power of two."""
SMALL = 1 << 22
"""Bytes of padded probabilities up to which a batch is padded."""
LARGE = 1 << 26
"""Bytes of probabilities that a program is given at once, unless a single row has more."""

_FILLERS = {"draft_tokens": PAD}


def pieces(batch: Batch) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Cut or pad a batch of NumPy arrays.

    Args:
      batch: of at least one row.

    Yields:
      For consecutive runs of rows, their number and the five arrays, which may have more rows, positions and
      vocabulary entries than the batch: what is computed for those is to be thrown away.
    """
    rows, positions, vocabulary = batch.shape
    arrays = {name: np.asarray(getattr(batch, name)) for name in AXES}
    itemsize = max(arrays["draft_probs"].itemsize, arrays["target_probs"].itemsize)
    size = {axis: _shared(axis, length) for axis, length in zip(LEAST, batch.shape, strict=True)}
    size["G+1"] = size["G"] + 1
    if size["B"] * (size["G"] + size["G+1"]) * size["V"] * itemsize <= SMALL:
        yield rows, {name: _padded(array, name, size) for name, array in arrays.items()}
        return

    most = max(LARGE // ((2 * positions + 1) * vocabulary * itemsize), 1)
    start = 0
    while start < rows:
        count = 1 << (min(rows - start, most).bit_length() - 1)
        yield count, {name: array[start : start + count] for name, array in arrays.items()}
        start += count


def _shared(axis: str, length: int) -> int:
    return max(LEAST[axis], 1 << (length - 1).bit_length() if length else 0)


def _padded(array: np.ndarray, name: str, size: dict[str, int]) -> np.ndarray:
    padded = np.full([size[axis] for axis in AXES[name]], _FILLERS.get(name, 0), array.dtype)
    padded[tuple(slice(length) for length in array.shape)] = array
    return padded
