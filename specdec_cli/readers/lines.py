"""Lines of a stream, each as soon as it is there: no read-ahead delays a line that has already come."""

from __future__ import annotations

import io
import os
import select
from collections.abc import Iterator
from typing import BinaryIO

_PIECE = 1 << 20
_REST = 1 << 28
"""Bytes of a file that are read at once when a line is longer than a piece: to join pieces costs as much again."""
WAIT_SECONDS = 0.5


class Lines:
    """Takes a binary stream apart into lines, and can tell whether another follows.

    Args:
      stream: a file, a pipe or a buffer, read from where it is.
      start: bytes that were already taken from it.
    """

    def __init__(self, stream: BinaryIO, start: bytes = b"") -> None:
        self._stream = stream
        self._pending = start
        self._at = 0
        """How much of it was given out."""
        self._ended = False
        self.count = 0
        """Lines given out so far."""
        self.taken = 0
        """Bytes given out so far."""

    def next(self) -> bytes | None:
        """The next line with its newline (the last may have none); None at the end."""
        pieces: list[bytes] = []
        while (end := self._pending.find(b"\n", self._at) + 1) == 0:
            if len(self._pending) - self._at >= _PIECE and self._take_again_to_the_end(sum(map(len, pieces))):
                pieces = []
                continue
            pieces.append(self._left())
            self._pending, self._at = self._take(), 0
            if not self._pending:
                break
        if end:
            pieces.append(self._pending[self._at : end])
        self._at = end
        line = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if not line:
            return None
        self.count += 1
        self.taken += len(line)
        return line

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are left, with their numbers from 1."""
        while (line := self.next()) is not None:
            yield self.count, line

    def _take_again_to_the_end(self, given: int) -> bool:
        """If it is a file, not too large, have all of it pending from `given` bytes before what is left."""
        back = given + len(self._pending) - self._at
        try:
            size = os.fstat(self._stream.fileno()).st_size - self._stream.tell()
            if not self._stream.seekable() or not 0 < size <= _REST:
                return False
            self._stream.seek(-back, io.SEEK_CUR)
        except (OSError, ValueError):
            return False  # no file
        self._pending, self._at = self._stream.read(), 0
        return True

    def _left(self) -> bytes:
        return self._pending[self._at :] if self._at else self._pending

    def rest(self) -> bytes:
        """Everything that is left, to the end of the stream."""
        pieces = [self._left()]
        while piece := self._take():
            pieces.append(piece)
        self._pending, self._at = b"", 0
        rest = b"".join(pieces)
        self.taken += len(rest)
        return rest

    def silent(self) -> bool:
        """Whether a stream that has not ended gives nothing for `WAIT_SECONDS`; never true of a file."""
        return self._at >= len(self._pending) and not self._ended and not self._ready()

    def more_follow(self) -> bool:
        """Whether there is anything but blank space before the end.

        On a pipe that stays open and silent the answer is yes, after `WAIT_SECONDS`: its writer has more to
        say, and may be waiting for us.
        """
        while not (left := self._left()).strip():
            if not self._ready():
                return True
            piece = self._take()
            if not piece:
                return False
            self._pending, self._at = left + piece, 0
        return True

    def _take(self) -> bytes:
        """What is there, at least a byte; empty at the end."""
        if self._ended:
            return b""
        read = getattr(self._stream, "read1", self._stream.read)
        while (piece := read(_PIECE)) is None:  # the stream is set not to wait
            select.select([self._stream], [], [])
        self._ended = not piece
        return piece

    def _ready(self) -> bool:
        """Whether a read would not block; files always are."""
        try:
            return self._stream.seekable() or bool(select.select([self._stream], [], [], WAIT_SECONDS)[0])
        except (io.UnsupportedOperation, ValueError, OSError):
            return True
