"""Lines of a stream, each as soon as it is there: no read-ahead delays a line that has already come."""

from __future__ import annotations

import io
import select
from typing import BinaryIO

_PIECE = 1 << 20
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
        self._ended = False
        self.count = 0
        """Lines given out so far."""
        self.taken = 0
        """Bytes given out so far."""

    def next(self) -> bytes | None:
        """The next line with its newline (the last may have none); None at the end."""
        pieces: list[bytes] = []
        while b"\n" not in self._pending:
            pieces.append(self._pending)
            self._pending = self._take()
            if not self._pending:
                break
        head, newline, self._pending = self._pending.partition(b"\n")
        line = b"".join([*pieces, head, newline])
        if not line:
            return None
        self.count += 1
        self.taken += len(line)
        return line

    def rest(self) -> bytes:
        """Everything that is left, to the end of the stream."""
        pieces = [self._pending]
        while piece := self._take():
            pieces.append(piece)
        self._pending = b""
        rest = b"".join(pieces)
        self.taken += len(rest)
        return rest

    def more_follow(self) -> bool:
        """Whether there is anything but blank space before the end.

        On a pipe that stays open and silent the answer is yes, after `WAIT_SECONDS`: its writer has more to
        say, and may be waiting for us.
        """
        while not self._pending.strip():
            if not self._ready():
                return True
            piece = self._take()
            if not piece:
                return False
            self._pending += piece
        return True

    def _take(self) -> bytes:
        """What is there, at least a byte; empty at the end."""
        if self._ended:
            return b""
        read = getattr(self._stream, "read1", self._stream.read)
        piece: bytes = read(_PIECE)
        self._ended = not piece
        return piece

    def _ready(self) -> bool:
        """Whether a read would not block; files always are."""
        try:
            return self._stream.seekable() or bool(select.select([self._stream], [], [], WAIT_SECONDS)[0])
        except (io.UnsupportedOperation, ValueError, OSError):
            return True
