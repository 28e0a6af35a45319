"""Batches of any shape → arrays of few shapes, so that few programs have to be compiled.

A program is compiled for one shape, in a few tenths of a second: longer than it then takes to verify a hundred
thousand numbers. Small batches are therefore padded to shapes that many share, by what the contract says is not
read: a shorter draft ends in `PAD`s, a token of probability 0 is never drawn, and rows know nothing of each other.
Large ones, where a padded copy would cost more than it saves, are cut into runs of 1, 2, 4, 8, … rows.

Arrays that live on a device have been given a shape by the caller's program, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec_cli.batch import AXES, PAD, Batch, is_jax

LEAST = {"B": 4, "G": 8, "V": 64}
"""Shorter axes are padded to this, longer ones to a power of two."""
SMALL = 1 << 22
"""Bytes of padded probabilities up to which a batch is padded."""
LARGE = 1 << 25
"""Bytes of probabilities that a program is given at once, unless a single row has more."""
SHARE = 1 << 24
"""Bytes of probabilities whose reading by a thread of its own pays."""

_FILLERS = {"draft_tokens": PAD}


@dataclass(frozen=True)
class Piece:
    """Rows of a batch to be computed at once."""

    arrays: dict[str, Any]
    """The five arrays, which may have more rows, positions and vocabulary entries than the batch."""
    first: int
    """The first row of the arrays that is to be computed."""
    count: int
    """How many rows are to be computed."""
    own: slice
    """Which of those belong to the piece: what is computed for the others is to be thrown away."""


def pieces(batch: Batch, threads: int = 1, *, validate: bool = True) -> Iterator[Piece]:
    """Cut or pad a batch of arrays in memory, of at least one row, into pieces of consecutive rows.

    Args:
      batch: of NumPy arrays, or of arrays on a device.
      threads: how many pieces can be computed at the same time.
      validate: all distributions will be read, and not only the two that a draw needs.
    """
    rows, positions, vocabulary = batch.shape
    arrays = {name: getattr(batch, name) for name in AXES}
    itemsize = max(arrays["draft_probs"].dtype.itemsize, arrays["target_probs"].dtype.itemsize)
    row_bytes = (2 * positions + 1) * vocabulary * itemsize
    if is_jax(batch.draft_probs) or is_jax(batch.target_probs):
        read = rows * (row_bytes if validate else 2 * vocabulary * itemsize)
        yield from _shares(arrays, rows, min(threads, rows, read // SHARE))
        return

    size = {axis: _shared(axis, length) for axis, length in zip(LEAST, batch.shape, strict=True)}
    size["G+1"] = size["G"] + 1
    if size["B"] * (size["G"] + size["G+1"]) * size["V"] * itemsize <= SMALL:
        yield Piece(
            {name: _padded(array, name, size) for name, array in arrays.items()}, 0, size["B"], slice(rows)
        )
        return

    start = 0
    while start < rows:
        count = run_of_rows(rows - start, row_bytes)
        cut = {name: array[start : start + count] for name, array in arrays.items()}
        yield Piece(cut, 0, count, slice(count))
        start += count


def run_of_rows(rows: int, row_bytes: int) -> int:
    """How many of the rows that are left make the next run: a power of two."""
    return 1 << (min(rows, max(LARGE // row_bytes, 1)).bit_length() - 1)


def _shares(arrays: dict[str, Any], rows: int, number: int) -> Iterator[Piece]:
    """Equal shares of the rows, so that one program serves them; the last overlaps with the one before."""
    count = -(-rows // max(number, 1))
    for start in range(0, rows, count):
        first = min(start, rows - count)
        yield Piece(arrays, first, count, slice(start - first, count))


def _shared(axis: str, length: int) -> int:
    return max(LEAST[axis], 1 << (length - 1).bit_length() if length else 0)


def _padded(array: np.ndarray, name: str, size: dict[str, int]) -> np.ndarray:
    padded = np.full([size[axis] for axis in AXES[name]], _FILLERS.get(name, 0), array.dtype)
    padded[tuple(slice(length) for length in array.shape)] = array
    return padded
