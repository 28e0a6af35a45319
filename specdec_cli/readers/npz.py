"""An NPZ archive → five arrays, without pickle and without believing a header.

zipfile finds the members and checks their CRCs; NumPy parses the .npy headers. What is added here: a header's
claim is compared with what the archive holds before anything is allocated for it, duplicate members are refused,
and bfloat16, which NumPy stores as the anonymous two-byte type `V2`, is given its name back.
"""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, BinaryIO

import ml_dtypes
import numpy as np
from numpy.lib import format as npy

from specdec_cli.batch import AXES
from specdec_cli.errors import InputError

_SUFFIX = ".npy"
_READ_HEADER = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_COPY_AGAIN = "was it copied or written to its end? `unzip -t FILE` checks it"


def read_fields(stream: BinaryIO) -> dict[str, Any]:
    """Read the five arrays of an archive.

    Args:
      stream: seekable, at the archive's start.

    Returns:
      The arrays by name, those of the five that are there, in the file's own byte order; other members with
      None, unread.

    Raises:
      InputError: without the input's name, which is not known here.
    """
    with _damage("is a damaged or truncated NPZ archive"), zipfile.ZipFile(stream) as archive:
        others = dict.fromkeys(info.filename.removesuffix(_SUFFIX) for info in archive.infolist())
        return others | {name: _read_member(archive, name, info) for name, info in _members(archive).items()}


@contextmanager
def _damage(problem: str, field: str | None = None) -> Iterator[None]:
    """Name the fault of an archive.

    zipfile answers damaged bytes with BadZipFile, EOFError, zlib.error, struct.error, NotImplementedError,
    RuntimeError, ValueError, OSError and more, by where the damage is; there is no list to rely on.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except (NotImplementedError, RuntimeError) as error:  # a compression that is not known, or encryption
        raise InputError(f"cannot be unpacked: {error}", "numpy.savez writes what can", field=field) from None
    except Exception as error:
        raise InputError(f"{problem}: {error or type(error).__name__}", _COPY_AGAIN, field=field) from None


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members that hold the five arrays."""
    if any(info.filename.endswith("/data.pkl") for info in archive.infolist()):
        raise InputError(
            "is a file of torch.save, expected an NPZ archive",
            "pickles are never loaded: numpy.savez(FILE, draft_tokens=….numpy(), …) writes what can be read",
        )
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(_SUFFIX)
        if name in AXES:
            if name in members:
                raise InputError(
                    f"has two members for {name}: {members[name].filename} and {info.filename}",
                    "which of the two is meant would be a guess: save the archive anew with one",
                )
            members[name] = info
    return {name: members[name] for name in AXES if name in members}


def _read_member(archive: zipfile.ZipFile, field: str, info: zipfile.ZipInfo) -> np.ndarray:
    with _damage("is damaged", field), archive.open(info) as member:
        shape, fortran_order, dtype = _header(field, member)
        held = info.file_size - member.tell()
        claimed = math.prod(shape) * dtype.itemsize
        if claimed != held:
            raise InputError(
                f"claims shape {shape} of {dtype}, {claimed} bytes, but the archive holds {held} for it",
                _COPY_AGAIN,
                field=field,
            )
        data = member.read(held)
        end = member.read(1)  # reaching the end is what makes zipfile check the CRC
    if len(data) != held or end:
        raise InputError(f"is damaged: {len(data)} bytes of {held}", _COPY_AGAIN, field=field)
    if dtype == np.dtype("V2"):
        dtype = np.dtype(ml_dtypes.bfloat16)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C")


def _header(field: str, member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type as the header gives them; the types that are never read are refused."""
    try:
        version = npy.read_magic(member)
        if version not in _READ_HEADER:
            raise ValueError(f"version {version[0]}.{version[1]}, expected 1.0 or 2.0")
        with warnings.catch_warnings(
            action="ignore"
        ):  # of headers that Python 2 wrote, which are read all the same
            shape, fortran_order, dtype = _READ_HEADER[version](member)
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"shape {shape}")
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise  # the data are damaged, not the header
    except Exception as error:  # NumPy evaluates the header as a Python literal, which fails in many ways
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"has an invalid .npy header: {text}", _COPY_AGAIN, field=field) from None
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
    return shape, fortran_order, dtype
