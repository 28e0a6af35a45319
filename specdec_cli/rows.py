"""Rows of an array that are still in a file.

They are read in runs, one after another, into memory that is used again, and a thread reads ahead of who uses
them. So a file may be larger than the memory, and reading goes on while something else is computed.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from specdec_cli.buffers import empty


@dataclass(frozen=True)
class Share:
    """One of the processes that share the rows of an input."""

    number: int
    """Which, from 0."""
    of: int

    def of_rows(self, rows: int) -> slice:
        """Its rows: consecutive, and as many as another's, give or take one."""
        return slice(rows * self.number // self.of, rows * (self.number + 1) // self.of)


@dataclass(frozen=True)
class Checksum:
    """The CRC-32 of a stretch of a file, for the rest to be added to."""

    crc: int
    length: int


AHEAD = 3 << 26
"""Bytes of one array that may be read before they are asked for."""


class Source(Protocol):
    """The bytes of an array in C order, or a stretch of them."""

    def read_into(self, memory: memoryview) -> None:
        """Fill the memory with the bytes that follow those read last.

        Raises:
          InputError: they cannot be read.
        """

    def end(self) -> Checksum | None:
        """Check what was read, when all of it was; of a stretch, which cannot be checked alone, what it adds.

        Raises:
          InputError: it is not what was written.
        """

    def end_of_all(self, others: list[Checksum]) -> None:
        """Check all that was read, by the one who read the first stretch.

        Args:
          others: of the stretches that follow.

        Raises:
          InputError: it is not what was written.
        """

    def at(self, offset: int, size: int) -> bytes:
        """Any of the array's bytes, wherever reading is.

        Raises:
          InputError: they cannot be read.
        """

    def close(self) -> None:
        """Give back what it holds."""


class RowsInFile:
    """An array that can be read once, run by run, and a little of it anywhere.

    Args:
      source: its bytes, from the first row that is to be read.
      shape: (B, M, V), without a zero.
      dtype: what is stored; rows come in native byte order.
      runs: how many rows come at a time; the first no fewer than the others.
      first: the first row that is to be read; with the runs, all of them or a share.
    """

    def __init__(
        self,
        source: Source,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        runs: list[int],
        first: int = 0,
    ) -> None:
        self.shape, self.dtype, self.runs, self.first = shape, dtype.newbyteorder("="), runs, first
        self.checksum = None if runs else source.end()
        """Of a share of the rows, once they were read."""
        self.ndim, self.size = len(shape), int(np.prod(shape, dtype=np.int64))
        self._source, self._stored_as = source, dtype
        run_bytes = max(runs, default=1) * self.size // shape[0] * dtype.itemsize
        depth = min(max(AHEAD // run_bytes, 2), len(runs))
        self._memory: list[np.ndarray | None] = [None] * depth
        self._next = 0
        self._reader = ThreadPoolExecutor(1, "specdec-reader")
        self._coming: list[Future[np.ndarray]] = [self._reader.submit(self._read, run) for run in range(depth)]

    def next_rows(self) -> np.ndarray:
        """The next run of rows, which holds until the one after it is asked for.

        Raises:
          InputError: they cannot be read, or, with the last, all that was read is not what was written.
        """
        if self._next and len(self._coming) < len(self.runs):  # the last one's memory is free
            self._coming.append(self._reader.submit(self._read, len(self._coming)))
        self._next += 1
        try:
            return self._coming[self._next - 1].result()
        except Exception:
            self._next = len(self.runs)  # there is no way on, and no more to say
            raise

    def read_to_end(self) -> None:
        """Read what is left, only to find what is damaged.

        Raises:
          InputError: something is.
        """
        while self._next < len(self.runs):
            self.next_rows()

    def give_back(self) -> None:
        """Give the memory back that rows were read into."""
        self._coming, self._memory, self._next = [], [], len(self.runs)

    def end_of_all(self, others: list[Checksum]) -> None:
        """See `Source`."""
        self._source.end_of_all(others)

    def close(self) -> None:
        """Stop reading."""
        self._reader.shutdown(wait=True, cancel_futures=True)
        self._source.close()
        self.give_back()

    def __getitem__(self, index: tuple[Any, ...]) -> np.ndarray:
        """What NumPy would give for the indices of a row, a position and perhaps an entry, numbers or arrays."""
        places = np.ravel_multi_index(np.broadcast_arrays(*index), self.shape[: len(index)])
        rest = self.shape[len(index) :]
        size = int(np.prod(rest, dtype=np.int64)) * self.dtype.itemsize
        found = b"".join(self._source.at(place * size, size) for place in places.reshape(-1).tolist())
        return np.frombuffer(found, self._stored_as).reshape(places.shape + rest).astype(self.dtype)

    def _read(self, run: int) -> np.ndarray:
        place = run % len(self._memory)
        memory = self._memory[place]
        if memory is None:
            memory = self._memory[place] = empty((self.runs[0], *self.shape[1:]), self.dtype)
        rows = memory[: self.runs[run]]
        self._source.read_into(rows.reshape(-1).view(np.uint8).data)
        if not self._stored_as.isnative:
            rows.byteswap(inplace=True)
        if run == len(self.runs) - 1:
            self.checksum = self._source.end()
        return rows
