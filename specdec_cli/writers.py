"""`Verification` → JSON or NPZ bytes, and files that are written whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np
import orjson

from specdec_cli.decide import Verification
from specdec_cli.errors import EnvironmentFault, SpecdecError
from specdec_cli.pipeline import Outcome

_JSON_LINE = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def to_json(verification: Verification) -> bytes:
    """`{"num_accepted":[…],"tokens":[[…]]}` and a newline."""
    return orjson.dumps(_answer(verification), option=_JSON_LINE)


def to_npz(verification: Verification) -> bytes:
    """An archive of the same two arrays, int32."""
    buffer = io.BytesIO()
    answer = _answer(verification)
    np.savez(buffer, num_accepted=answer["num_accepted"], tokens=answer["tokens"])
    return buffer.getvalue()


FORMATS = {".json": to_json, ".jsonl": to_json, ".npz": to_npz}
"""File name suffix → how a result is written to such a file."""


def encode(outcome: Outcome, suffix: str) -> bytes | None:
    """What an outcome becomes in a file of a format; None for a failure that leaves no record.

    Args:
      outcome: a result, or an error.
      suffix: one of `FORMATS`.
    """
    # A file name need not be text, JSON must: bytes that are not UTF-8 become \\xff.
    named = {"input": os.fsencode(outcome.name).decode("utf-8", "backslashreplace")}
    if outcome.verification is not None:
        if not outcome.several or suffix == ".npz":
            return FORMATS[suffix](outcome.verification)
        line = {} if outcome.line is None else {"line": outcome.line}
        return orjson.dumps({**named, **line, **_answer(outcome.verification)}, option=_JSON_LINE)
    if outcome.error is None or not outcome.recorded or suffix == ".npz":
        return None
    return orjson.dumps({**named, "error": outcome.error.record()}, option=_JSON_LINE)


def only_one(pieces: Iterable[bytes], path: str) -> Iterator[bytes]:
    """Pass on the one result that a `.json` or `.npz` file can hold.

    Raises:
      SpecdecError: there is a second.
    """
    for count, piece in enumerate(pieces):
        if count:
            raise SpecdecError(f"there are several results, and {path} holds one", "-o FILE.jsonl takes them all")
        yield piece


def _answer(verification: Verification) -> dict[str, np.ndarray]:
    return {"num_accepted": verification.num_accepted, "tokens": verification.tokens}


def write_file(path: str, pieces: Iterable[bytes]) -> None:
    """Write a file whole or not at all: it is made beside its place, without a name, then put into it.

    An existing file keeps its mode, and a link stays a link; a pipe or device is written to as it is. Without
    any piece nothing is written.

    Raises:
      EnvironmentFault: it cannot be written; what was there before is still there.
    """
    pieces = iter(pieces)
    first = next(pieces, None)
    if first is None:
        return
    whole = chain([first], pieces)
    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                file.writelines(whole)
        else:
            _replace(target, whole)
    except (OSError, ValueError) as error:
        if isinstance(error, SpecdecError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise EnvironmentFault(f"{path} cannot be written: {reason}") from None


def _replace(target: Path, pieces: Iterable[bytes]) -> None:
    mode = _mode(target)
    handle, name = _temporary(target)
    with os.fdopen(handle, "wb") as file:
        try:
            file.writelines(pieces)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            if name is None:
                name = f"{target.parent}/{_PREFIX}{os.getpid()}"
                temporary_names.add(name)
                # A directory handle, though the path needs none, makes Python follow the link in /proc.
                os.link(f"/proc/self/fd/{file.fileno()}", name, src_dir_fd=file.fileno())
            os.replace(name, target)
        except BaseException:
            if name is not None:
                with suppress(OSError):
                    os.unlink(name)
            raise
        finally:
            temporary_names.discard(name or "")


def _temporary(target: Path) -> tuple[int, str | None]:
    """A new file in the target's folder; without a name where the system can, so that no kill leaves it there."""
    with suppress(AttributeError, OSError):
        return os.open(target.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600), None
    handle, name = tempfile.mkstemp(prefix=_PREFIX, dir=target.parent)
    temporary_names.add(name)
    return handle, name


_PREFIX = ".specdec."
temporary_names: set[str] = set()
"""Files that must go when the process is stopped where nothing can be raised."""


def _mode(target: Path) -> int:
    """The mode of the file that is replaced, or what the umask gives a new one."""
    with suppress(OSError):
        return stat.S_IMODE(target.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
