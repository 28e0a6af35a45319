"""The bytes of an array in an NPZ archive, as they come: stored or deflated. The CRC is computed on the way."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import xor
from tempfile import TemporaryFile
from typing import IO, BinaryIO, cast

from specdec_cli.errors import EnvironmentFault, InputError, fault_of
from specdec_cli.rows import Checksum

COPY_AGAIN = "was it copied or written to its end? `unzip -t FILE` checks it"
CHANGED = "changed while it was read", "run it again when it is whole"
_LOCAL_HEADER = struct.Struct("<26xHH")
_PIECE = 1 << 20
"""Bytes that are moved at a time."""


@contextmanager
def damage(problem: str, field: str | None = None) -> Iterator[None]:
    """Name the fault of an archive.

    zipfile answers damaged bytes with BadZipFile, EOFError, zlib.error, struct.error, NotImplementedError,
    RuntimeError, ValueError, OSError and more, by where the damage is; there is no list to rely on.
    """
    try:
        yield
    except (InputError, EnvironmentFault):
        raise
    except Exception as error:
        if fault_of(error) is not None:
            raise
        said = str(error)[:200] or ("it ends too early" if isinstance(error, EOFError) else type(error).__name__)
        raise InputError(f"{problem}: {said}", COPY_AGAIN, field=field) from None


def on_disk(stream: IO[bytes], what: str, start: bytes = b"") -> BinaryIO:
    """All of a stream, in a file without a name: it may be more than the memory holds.

    Args:
      stream: what is read to its end.
      what: what it is, for messages.
      start: what was read of it before.

    Raises:
      EnvironmentFault: the file cannot be written.
    """
    file, piece = None, start
    while True:
        try:
            file = file or TemporaryFile()  # noqa: SIM115
            file.write(piece)
            file.flush()
        except OSError as error:
            raise EnvironmentFault(
                f"{what} is kept in a temporary file, which cannot be written: {error.strerror}",
                "TMPDIR names a folder with more room",
                of_one=True,
            ) from None
        piece = stream.read(_PIECE)
        if not piece:
            file.seek(0)
            return cast(BinaryIO, file)


def joined_crc(crc: int, then: Checksum) -> int:
    """The CRC-32 of bytes with this one followed by others.

    A zero byte takes the CRC's register through a linear map over GF(2), so many of them through a power of it,
    which is found by squaring: as zlib's crc32_combine does, which Python's zlib does not offer.
    """
    # The map of one zero bit, by what it makes of each bit of the register; squared three times, of a byte.
    power = [0xEDB88320, *(1 << bit for bit in range(31))]
    for _ in range(3):
        power = [_mapped(power, column) for column in power]
    length = then.length
    while length:
        if length & 1:
            crc = _mapped(power, crc)
        power = [_mapped(power, column) for column in power]
        length >>= 1
    return crc ^ then.crc


def _mapped(columns: list[int], bits: int) -> int:
    return reduce(xor, (column for bit, column in enumerate(columns) if bits >> bit & 1), 0)


class StoredBytes:
    """A member that is not compressed: read where it lies, past zipfile, which would copy it once more.

    (Mapped memory would be quicker for who reads it once, but what others write to the file would change it after
    its CRC was computed, and a file cut short would end the process.)

    Args:
      stream: the archive, a file.
      info: the member.
      field: its name, for messages.
      header: the bytes that come before the array's.
      place: where in the array a stretch of it begins that is to be read; None to read all.
      is_first: of the stretches; the header counts to that one.
    """

    def __init__(
        self,
        stream: BinaryIO,
        info: zipfile.ZipInfo,
        field: str,
        header: bytes,
        place: int | None = None,
        is_first: bool = True,
    ) -> None:
        self._file, self._info, self._field = stream.fileno(), info, field
        self._written = self._when_written()
        lengths = _LOCAL_HEADER.unpack(os.pread(self._file, _LOCAL_HEADER.size, info.header_offset))
        self._start = info.header_offset + _LOCAL_HEADER.size + sum(lengths) + len(header)
        self._is_stretch = place is not None
        self._at = self._begun = self._start + (place or 0)
        self._crc = zlib.crc32(header if is_first else b"")

    def read_into(self, memory: memoryview) -> None:
        """See `rows.Source`."""
        self._read(memory, self._at)
        self._at += len(memory)
        self._crc = zlib.crc32(memory, self._crc)

    def end(self) -> Checksum | None:
        """See `rows.Source`."""
        if self._is_stretch:
            return Checksum(self._crc, self._at - self._begun)
        self.end_of_all([])
        return None

    def end_of_all(self, others: list[Checksum]) -> None:
        """See `rows.Source`."""
        if reduce(joined_crc, others, self._crc) != self._info.CRC:
            raise InputError(
                f"is damaged: Bad CRC-32 for file {self._info.filename!r}", COPY_AGAIN, field=self._field
            )

    def at(self, offset: int, size: int) -> bytes:
        """See `rows.Source`."""
        memory = bytearray(size)
        self._read(memoryview(memory), self._start + offset)
        if self._when_written() != self._written:  # the CRC was of what stood there before
            raise InputError(*CHANGED, field=self._field)
        return bytes(memory)

    def close(self) -> None:
        """See `rows.Source`; the archive is its opener's."""

    def _when_written(self) -> int:
        return os.fstat(self._file).st_mtime_ns

    def _read(self, memory: memoryview, place: int) -> None:
        taken = 0
        while taken < len(memory):
            try:
                count = os.preadv(self._file, [memory[taken:]], place + taken)
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror or error}", field=self._field) from None
            if count == 0:
                raise InputError("is damaged: the file ends before it does", COPY_AGAIN, field=self._field)
            taken += count


class UnpackedBytes:
    """A member that zipfile unpacks, and whose CRC it checks: one that is compressed.

    Args:
      member: the member, opened and read up to the array.
      again: the same, opened anew, for what is asked for out of turn: all of it is unpacked into a temporary file.
      field: its name, for messages.
      header_length: the bytes before the array.
    """

    def __init__(self, member: IO[bytes], again: IO[bytes], field: str, header_length: int) -> None:
        self._member, self._again, self._field, self._header_length = member, again, field, header_length
        self._whole: BinaryIO | None = None

    def read_into(self, memory: memoryview) -> None:
        """See `rows.Source`."""
        taken = 0
        while taken < len(memory):
            piece = self._read(min(_PIECE, len(memory) - taken))
            if not piece:
                raise InputError("is damaged: it ends too early", COPY_AGAIN, field=self._field)
            memory[taken : taken + len(piece)] = piece
            taken += len(piece)

    def end_of_all(self, others: list[Checksum]) -> None:
        """See `rows.Source`; there are no others."""

    def end(self) -> None:
        """See `rows.Source`; reaching the end is what makes zipfile check the CRC."""
        if self._read(1):
            raise InputError("is damaged: it holds more than it says", COPY_AGAIN, field=self._field)

    def at(self, offset: int, size: int) -> bytes:
        """See `rows.Source`."""
        if self._whole is None:
            with damage("is damaged", self._field):
                self._again.seek(0)  # a first attempt may have failed
                self._whole = on_disk(self._again, "what is unpacked from an NPZ")
        self._whole.seek(self._header_length + offset)
        return self._whole.read(size)

    def close(self) -> None:
        """See `rows.Source`."""
        if self._whole is not None:
            self._whole.close()

    def _read(self, size: int) -> bytes:
        with damage("is damaged", self._field):
            return self._member.read(size)
