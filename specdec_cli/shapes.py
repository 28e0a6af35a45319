"""Batches of any shape → arrays of few shapes, so that few programs have to be compiled.

A program is compiled for one shape, in a few tenths of a second: longer than it then takes to verify a hundred
thousand numbers. Small batches are therefore padded to shapes that many share, by what the contract says is not
read: a shorter draft ends in `PAD`s, a token of probability 0 is never drawn, and rows know nothing of each other.
Large ones, where a padded copy would cost more than it saves, are cut into runs of 1, 2, 4, 8, … rows.

Arrays that live on a device have been given a shape by the caller's program: they are neither padded nor cut, but
threads may take a share of their rows each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specdec_cli.batch import PAD, Batch, is_jax
from specdec_cli.buffers import empty
from specdec_cli.rows import RowsInFile
from specdec_cli.structure import AXES

LEAST = {"B": 4, "G": 8, "V": 64}
"""Shorter axes are padded to this, longer ones to a power of two."""
SMALL = 1 << 22
"""Bytes of padded probabilities up to which a batch is padded."""
LARGE = 1 << 26
"""Bytes of probabilities that a program is given at once, unless a single row has more."""
SHARE = 1 << 24
"""Bytes of probabilities whose reading by a thread of its own pays."""

FILLERS = {"draft_tokens": PAD}
"""What arrays are filled up with that are not filled up with zeros."""


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
    probs = batch.draft_probs, batch.target_probs
    if any(map(is_jax, probs)):
        # A NumPy array is given whole to every program, and several devices work together: both want one program.
        if not all(is_jax(each) and len(each.devices()) == 1 for each in probs):
            threads = 1
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

    first = 0
    for count in runs_of_rows(rows, row_bytes):
        cut = {name: array[first : first + count] for name, array in arrays.items()}
        yield Piece(cut, 0, count, slice(count))
        first += count


def runs_of_rows(rows: int, row_bytes: int) -> Iterator[int]:
    """The lengths, powers of two, of the runs into which that many rows are cut."""
    most = max(LARGE // row_bytes, 1)
    while rows:
        count = 1 << (min(rows, most).bit_length() - 1)
        yield count
        rows -= count


def parts(batch: Batch) -> Iterator[Batch]:
    """The batch in memory: as it is, or, where its probabilities are in a file, one run of rows after another.

    Of a share of the rows in a file, only these.

    Yields:
      The rows, which hold until the next are asked for.
    """
    in_file = [probs for probs in (batch.draft_probs, batch.target_probs) if isinstance(probs, RowsInFile)]
    if not in_file:
        yield batch
        return
    first = in_file[0].first
    for count in in_file[0].runs:
        rows: dict[str, Any] = {
            name: array.next_rows() if isinstance(array, RowsInFile) else array[first : first + count]
            for name, array in ((name, getattr(batch, name)) for name in AXES)
        }
        yield replace(batch, **rows)
        first += count
    for probs in in_file:
        probs.give_back()


def first_row(batch: Batch) -> int:
    """The first row that is to be computed; another than 0 where others compute those before."""
    return batch.draft_probs.first if isinstance(batch.draft_probs, RowsInFile) else 0


def read_to_end(batch: Batch) -> None:
    """Read what is left in a file, if the batch is in one, and complain of damage."""
    for probs in (batch.draft_probs, batch.target_probs):
        if isinstance(probs, RowsInFile):
            probs.read_to_end()


def _shares(arrays: dict[str, Any], rows: int, number: int) -> Iterator[Piece]:
    """Equal shares of the rows, so that one program serves them; the last overlaps with the one before."""
    count = -(-rows // max(number, 1))
    for start in range(0, rows, count):
        first = min(start, rows - count)
        yield Piece(arrays, first, count, slice(start - first, count))


def _shared(axis: str, length: int) -> int:
    return max(LEAST[axis], 1 << (length - 1).bit_length() if length else 0)


def _padded(array: np.ndarray, name: str, size: dict[str, int]) -> np.ndarray:
    padded = empty(tuple(size[axis] for axis in AXES[name]), array.dtype)
    padded[...] = FILLERS.get(name, 0)
    padded[tuple(slice(length) for length in array.shape)] = array
    return padded
