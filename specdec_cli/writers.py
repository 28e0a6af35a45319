"""Answers → JSON or NPZ bytes, and files that are written whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson

from specdec_cli.decide import Decided
from specdec_cli.errors import EnvironmentFault, SpecdecError, text_of
from specdec_cli.outcome import Outcome

_JSON_LINE = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def to_json(verification: Decided) -> bytes:
    """`{"num_accepted":[…],"tokens":[[…]]}` and a newline."""
    return orjson.dumps(_answer(verification), option=_JSON_LINE)


def to_npz(verification: Decided) -> bytes:
    """An archive of the same two arrays, int32."""
    return _npz(**_answer(verification))


FORMATS = {".json": to_json, ".jsonl": to_json, ".npz": to_npz}
"""File name suffix → how a result is written to such a file."""


def encode(outcome: Outcome, suffix: str, *, record: bool | None = None) -> bytes | None:
    """What an outcome becomes in a file of a format; None for a failure that leaves no record.

    Args:
      outcome: a result, or an error.
      suffix: one of `FORMATS`.
      record: whether a failure leaves a record; by default if others follow it in the same output.
    """
    named = {"input": text_of(outcome.name)}
    if outcome.verification is not None:
        if not outcome.several or suffix == ".npz":
            return FORMATS[suffix](outcome.verification)
        line = {} if outcome.line is None else {"line": outcome.line}
        return orjson.dumps({**named, **line, **_answer(outcome.verification)}, option=_JSON_LINE)
    if record is None:
        record = outcome.recorded and suffix != ".npz"
    if outcome.error is None or not record:
        return None
    failure = orjson.dumps({**named, "error": outcome.error.record()}, option=orjson.OPT_APPEND_NEWLINE)
    return _npz(error=np.array(failure.decode())) if suffix == ".npz" else failure


def only_one(pieces: Iterable[bytes], path: str) -> Iterator[bytes]:
    """Pass on the one result that a `.json` or `.npz` file can hold.

    Raises:
      SpecdecError: there is a second.
    """
    for count, piece in enumerate(pieces):
        if count:
            raise SpecdecError(f"there are several results, and {path} holds one", "-o FILE.jsonl takes them all")
        yield piece


def _npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _answer(verification: Decided) -> dict[str, np.ndarray]:
    return {"num_accepted": verification.num_accepted, "tokens": verification.tokens}


def write_file(path: str, pieces: Iterable[bytes]) -> None:
    """Write a file whole or not at all (see `whole_file`); without any piece nothing is written.

    Raises:
      EnvironmentFault: it cannot be written; what was there before is still there.
    """
    pieces = iter(pieces)
    first = next(pieces, None)
    if first is None:
        return
    with whole_file(path) as file:
        file.writelines(chain([first], pieces))


@contextmanager
def whole_file(path: str, *, replace: bool = True, durable: bool = True) -> Iterator[BinaryIO]:
    """A file that is there whole when the block ends, and not at all when it ends with an exception.

    It is made beside its place, without a name where the system can, then put into it. An existing file keeps its
    mode, and a link stays a link; a pipe or device is written to as it is.

    Args:
      path: its place.
      replace: put it in the place of a file that is there.
      durable: wait until it is on the disk, so that no power cut can undo it.

    Raises:
      FileExistsError: there is a file, and it is not to be replaced.
      EnvironmentFault: it cannot be written; what was there before is still there.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        in_place = target.exists() and not target.is_file()
        with target.open("wb") if in_place else _in_its_place(target, replace, durable) as file:
            yield file
    except FileExistsError:
        raise
    except OSError as error:
        of_one = error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
        raise EnvironmentFault(f"{path} cannot be written: {error.strerror or error}", of_one=of_one) from None


@contextmanager
def _in_its_place(target: Path, replace: bool, durable: bool) -> Iterator[BinaryIO]:
    mode = _mode(target)
    handle, name = _temporary(target)
    with os.fdopen(handle, "wb") as file:
        try:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
            try:
                if name is None:
                    _link(file.fileno(), str(target))
                else:
                    os.link(name, target)
                    os.unlink(name)
            except OSError as error:
                # There is a file, or this file system has no links.
                if not replace and isinstance(error, FileExistsError):
                    raise
                name = name or _name_it(file.fileno(), target)
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


def _name_it(handle: int, target: Path) -> str:
    """Give a nameless file a name beside its place: a rename replaces what is there, a link does not."""
    name = f"{target.parent}/{_PREFIX}{secrets.token_hex(8)}"
    temporary_names.add(name)
    _link(handle, name)
    return name


def _link(handle: int, name: str) -> None:
    # A directory handle, though the path needs none, makes Python follow the link in /proc.
    os.link(f"/proc/self/fd/{handle}", name, src_dir_fd=handle)


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
