"""`Verification` → JSON or NPZ bytes, and files that are written whole or not at all."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import orjson

from specdec_cli.errors import EnvironmentFault
from specdec_cli.verification import Verification


def to_json(verification: Verification) -> bytes:
    """`{"num_accepted":[…],"tokens":[[…]]}` and a newline."""
    return orjson.dumps(_answer(verification), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def to_npz(verification: Verification) -> bytes:
    """An archive of the same two arrays, int32."""
    buffer = io.BytesIO()
    answer = _answer(verification)
    np.savez(buffer, num_accepted=answer["num_accepted"], tokens=answer["tokens"])
    return buffer.getvalue()


FORMATS = {".json": to_json, ".npz": to_npz}
"""File name suffix → how a result is written to such a file."""


def _answer(verification: Verification) -> dict[str, np.ndarray]:
    return {"num_accepted": verification.num_accepted, "tokens": verification.tokens}


def write_file(path: str, data: bytes) -> None:
    """Write a file whole or not at all: beside its place, then renamed into it.

    An existing file keeps its mode, and a link stays a link; a pipe or device is written to as it is.

    Raises:
      EnvironmentFault: it cannot be written; what was there before is still there.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        _replace(target, data)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EnvironmentFault(f"{path} cannot be written: {reason}") from None


def _replace(target: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), _mode(target))
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _mode(target: Path) -> int:
    """The mode of the file that is replaced, or what the umask gives a new one."""
    with suppress(OSError):
        return stat.S_IMODE(target.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
