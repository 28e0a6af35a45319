"""An NPZ archive → five arrays, without pickle and without believing a header.

zipfile finds the members and checks their CRCs; NumPy parses the .npy headers. What is added here: a header's
claim is compared with what the archive holds before anything is allocated for it, duplicate members are refused,
and bfloat16, which NumPy stores as the anonymous two-byte type `V2`, is given its name back. Probabilities of more
than a few rows are left in the file, to be read as they are used (`rows.py`).
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

import ml_dtypes
import numpy as np
from numpy.lib import format as npy

from specdec_cli import shapes
from specdec_cli.errors import InputError
from specdec_cli.readers.members import CHANGED, COPY_AGAIN, StoredBytes, UnpackedBytes, damage
from specdec_cli.rows import RowsInFile, Share, Source
from specdec_cli.structure import AXES, PROB_DTYPES, PROB_FIELDS, check_structure

_SUFFIX = ".npy"
# .npy version → bytes of the header's length, parser of length and header
_PARSERS = {(1, 0): (2, npy.read_array_header_1_0), (2, 0): (4, npy.read_array_header_2_0)}
_LONGEST_HEADER = 10_000
_DEFLATE_LIMIT = 1100
"""Deflate packs no more than 1032 to 1."""
_END_RECORD = 22


@contextmanager
def open_fields(
    stream: BinaryIO, wanted: Collection[str] = AXES, share: Share | None = None
) -> Iterator[dict[str, Any]]:
    """Read the arrays of an archive.

    Types and shapes are checked from the headers before any data are read, so that a few bytes cannot unpack to
    gigabytes for nothing.

    Args:
      stream: seekable, at the archive's start.
      wanted: the fields to read.
      share: of an archive that has a `fingerprint_if_apart`, only these rows are to be read.

    Yields:
      The arrays by name, those of the wanted that are there, in the file's own byte order, large probabilities as
      `RowsInFile`, which hold until the context ends; other members with None, unread.

    Raises:
      InputError: without the input's name, which is not known here.
    """
    with ExitStack() as open_things:
        with damage("is a damaged or truncated NPZ archive"):
            archive = open_things.enter_context(zipfile.ZipFile(stream))
            _refuse_bytes_around(archive, stream)
            members = _members(archive, wanted)
            headers = {name: _read_header(archive, name, info) for name, info in members.items()}
            if headers.keys() == AXES.keys():
                # Arrays of the right type and shape that take no memory.
                check_structure({n: np.broadcast_to(np.zeros((), h.dtype), h.shape) for n, h in headers.items()})
            fields = dict.fromkeys(info.filename.removesuffix(_SUFFIX) for info in archive.infolist())
            if share and not _are_apart(archive, members, headers):
                raise InputError(*CHANGED)
            runs = _runs(headers, share)
            sources: dict[str, Source] = {}
            for name, info in members.items():
                if (runs or share) and name in PROB_FIELDS and headers[name].may_stay:
                    sources[name] = _source(archive, name, info, headers[name], share)
                else:
                    fields[name] = _read_data(archive, name, info, headers[name])
            # All is opened by now, before another thread reads any of it: Python 3.12.8, 3.13.1 and older open
            # a member at a place that such a read may have moved (python/cpython#127847).
            for name, source in sources.items():
                first = share.of_rows(headers[name].shape[0]).start if share else 0
                fields[name] = rows = RowsInFile(source, headers[name].shape, headers[name].dtype, runs, first)
                open_things.callback(rows.close)
        yield fields


def fingerprint_if_apart(stream: BinaryIO) -> str | None:
    """What tells an archive from another, if it has many rows that can be read apart: stored, row after row.

    Args:
      stream: a file, at the archive's start.

    Returns:
      A digest of its directory, which has the CRC of every member; None for other archives.
    """
    with suppress(Exception), zipfile.ZipFile(stream) as archive:  # what is wrong is told when it is read
        members = _members(archive, AXES)
        headers = {name: _read_header(archive, name, info) for name, info in members.items()}
        if _are_apart(archive, members, headers):
            directory = [
                (each.filename, each.CRC, each.file_size, each.header_offset) for each in archive.infolist()
            ]
            return hashlib.sha256(repr(directory).encode()).hexdigest()
    return None


def _are_apart(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], headers: dict[str, _Header]) -> bool:
    """Whether rows of the probabilities are many, and can be found without reading those before."""
    return bool(_runs(headers, None)) and all(
        headers[name].may_stay and _is_stored(archive, members[name]) for name in PROB_FIELDS
    )


def _runs(headers: dict[str, _Header], share: Share | None) -> list[int]:
    """The runs of rows in which probabilities are read; none where they are few enough to be read at once."""
    probs = [headers[name] for name in PROB_FIELDS if name in headers]
    if len(probs) < 2 or any(len(header.shape) != 3 or 0 in header.shape[::2] for header in probs):
        return []
    row_bytes = sum(math.prod(header.shape[1:]) * header.dtype.itemsize for header in probs)
    rows = probs[0].shape[0]
    if probs[1].shape[0] != rows or rows * row_bytes <= shapes.LARGE:
        return []
    own = len(range(rows)[share.of_rows(rows)]) if share else rows
    return list(shapes.runs_of_rows(own, row_bytes))


def _source(
    archive: zipfile.ZipFile, field: str, info: zipfile.ZipInfo, header: _Header, share: Share | None
) -> Source:
    member = archive.open(info)
    start = member.read(header.length)
    if not _is_stored(archive, info):
        return UnpackedBytes(member, archive.open(info), field, header.length)
    stream = cast(BinaryIO, archive.fp)
    if share is None:
        return StoredBytes(stream, info, field, start)
    first = share.of_rows(header.shape[0]).start
    place = first * math.prod(header.shape[1:]) * header.dtype.itemsize
    return StoredBytes(stream, info, field, start, place, share.number == 0)


def _is_stored(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
    """Whether a member's bytes can be read where they lie in a file, by its descriptor."""
    stream: Any = archive.fp
    try:
        return info.compress_type == zipfile.ZIP_STORED and hasattr(os, "preadv") and stream.fileno() >= 0
    except (OSError, ValueError, AttributeError):
        return False


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    length: int
    """Bytes before the data."""

    @property
    def may_stay(self) -> bool:
        """Whether the array can be read row by row."""
        return not self.fortran_order and self.dtype.name in PROB_DTYPES and math.prod(self.shape) > 0


def _members(archive: zipfile.ZipFile, wanted: Collection[str]) -> dict[str, zipfile.ZipInfo]:
    """The members that hold the wanted arrays."""
    if any(info.filename.endswith("/data.pkl") for info in archive.infolist()):
        raise InputError(
            "is a file of torch.save, expected an NPZ archive",
            "pickles are never loaded: numpy.savez(FILE, draft_tokens=….numpy(), …) writes what can be read",
        )
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(_SUFFIX)
        if name in wanted:
            if name in members:
                raise InputError(
                    f"has two members for {name}: {members[name].filename} and {info.filename}",
                    "which of the two is meant would be a guess: save the archive anew with one",
                )
            members[name] = info
    return {name: members[name] for name in wanted if name in members}


def _refuse_bytes_around(archive: zipfile.ZipFile, stream: BinaryIO) -> None:
    """Refuse what zipfile passes over: bytes before the first member, another archive say, or after the end."""
    first = min((info.header_offset for info in archive.infolist()), default=0)
    stream.seek(-_END_RECORD - len(archive.comment), io.SEEK_END)
    if first or not stream.read(4) == b"PK\5\6":
        raise InputError("is a damaged NPZ archive, or holds bytes before or after it", COPY_AGAIN)


def _read_header(archive: zipfile.ZipFile, field: str, info: zipfile.ZipInfo) -> _Header:
    """A member's header, and whether the archive can hold what it claims."""
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        how = "encrypted" if info.flag_bits & 1 else f"compressed by method {info.compress_type}"
        raise InputError(f"is {how}, expected stored or deflated", "numpy.savez writes it", field=field)
    with damage("is damaged", field), archive.open(info) as member:
        header = _parse_header(field, member)
        held = info.file_size - header.length
        claimed = math.prod(header.shape) * header.dtype.itemsize
        if claimed != held:
            raise InputError(
                f"claims shape {header.shape} of {header.dtype}, {claimed} bytes, "
                f"but the archive holds {held} for it",
                COPY_AGAIN,
                field=field,
            )
    possible = info.compress_size * (_DEFLATE_LIMIT if info.compress_type == zipfile.ZIP_DEFLATED else 1)
    if info.file_size > possible or info.compress_size > _size(archive):
        raise InputError(f"claims {info.file_size} bytes, more than the file holds", COPY_AGAIN, field=field)
    return header


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """NumPy stores bfloat16 as the anonymous two-byte type."""
    return np.dtype(ml_dtypes.bfloat16) if dtype == np.dtype("V2") else dtype


def _size(archive: zipfile.ZipFile) -> int:
    assert archive.fp is not None
    return archive.fp.seek(0, io.SEEK_END)


def _read_data(archive: zipfile.ZipFile, field: str, info: zipfile.ZipInfo, header: _Header) -> np.ndarray:
    with damage("is damaged", field), archive.open(info) as member:
        member.read(header.length)
        data = member.read(info.file_size - header.length)
        end = member.read(1)  # reaching the end is what makes zipfile check the CRC
    if len(data) != info.file_size - header.length or end:
        raise InputError(f"is damaged: {len(data)} bytes of {info.file_size}", COPY_AGAIN, field=field)
    return np.frombuffer(data, header.dtype).reshape(header.shape, order="F" if header.fortran_order else "C")


def _parse_header(field: str, member: IO[bytes]) -> _Header:
    """Shape, order and type as the header gives them; the types that are never read are refused."""
    try:
        version = npy.read_magic(member)
        if version not in _PARSERS:
            raise ValueError(f"version {version[0]}.{version[1]}, expected 1.0 or 2.0")
        size, parse = _PARSERS[version]
        length = member.read(size)
        if int.from_bytes(length, "little") > _LONGEST_HEADER:
            raise ValueError(f"{int.from_bytes(length, 'little')} bytes long")
        text = member.read(int.from_bytes(length, "little"))
        # NumPy warns of headers that Python 2 wrote, and reads them all the same.
        with warnings.catch_warnings(action="ignore"):
            shape, fortran_order, dtype = parse(io.BytesIO(length + text))
        if not all(type(axis) is int and 0 <= axis < 2**31 for axis in shape) or len(shape) > 32:
            raise ValueError(f"shape {shape}")
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise  # the data are damaged, not the header
    except Exception as error:  # NumPy evaluates the header as a Python literal, which fails in many ways
        said = (str(error) or type(error).__name__).splitlines()[0][:100]
        raise InputError(f"has an invalid .npy header: {said}", COPY_AGAIN, field=field) from None
    if dtype.hasobject:
        raise InputError(
            "is an object array, expected numbers",
            "object arrays are pickles, which can run code and are never loaded: convert the array to a "
            "number type before saving it",
            field=field,
        )
    if dtype.itemsize == 0 or dtype.names or (dtype.kind == "V" and dtype != np.dtype("V2")):
        raise InputError(
            f"holds {dtype} values, expected numbers",
            "NumPy stores types that it does not know (float8, int4) as bytes: convert to float32 before saving",
            field=field,
        )
    return _Header(shape, fortran_order, _real(dtype), 8 + size + len(text))
