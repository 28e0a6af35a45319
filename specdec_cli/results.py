"""`-o FOLDER/`: a result for each input under the input's own name, and a record of what each was made from.

The records lie in a hidden folder within. One says which bytes, options and version made a result, and bears the
result's own digest in its name, so that it can be told whether the result need not be made again, or is not the
tool's. A record is written before its result is put in place: a process killed between the two leaves a record
without a result, which says nothing. There is no other state, so that any number of processes can share a folder.

Nothing here waits for the disk, which a thousand small files would feel: a result that a power cut damaged does
not match its record, and is found.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from specdec_cli import __version__
from specdec_cli.errors import EnvironmentFault, text_of
from specdec_cli.inputs import PATTERNS
from specdec_cli.writers import whole_file

RECORDS = ".specdec"
"""The folder of records in a folder of results."""
_LONGEST_RECORD = 10_000


class State(enum.Enum):
    """What stands where a result is to go; the values go on from the name of the result."""

    FREE = "is not there"
    FAILURE = "is a failure"
    """Which is always tried again."""
    SAME = "is already there"
    OTHER_INPUT = "is already there, made from other bytes"
    OTHER_OPTIONS = "is already there, made with other options"
    OTHER_VERSION = "is already there, made by another version of specdec"
    NO_FILE = "is already there, and is not a file"
    CHANGED = "is already there, and is not what specdec wrote"
    UNKNOWN = "is already there, with no record of what it was made from"


class ResultFile:
    """A result in the making."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.failed = False
        """Whether it holds a failure, which is to be tried again next time."""

    def write(self, piece: bytes) -> None:
        """Add to its end."""
        self._digest.update(piece)
        self._file.write(piece)

    def digest(self) -> str:
        """SHA-256 of what was written."""
        return self._digest.hexdigest()


@dataclass(frozen=True)
class ResultFolder:
    """A folder of results.

    Args:
      path: of the folder, as the user named it; made when the first result is.
      suffix: ".json" or ".npz".
      options: whatever else a result depends on, as JSON can hold it.
    """

    path: str
    suffix: str
    options: dict[str, Any]

    def result_of(self, place: str) -> str:
        """The path of the result of an input.

        Args:
          place: the input's own name, with folders above it if its result should be in such.
        """
        stem, suffix = os.path.splitext(place)
        known = suffix.lower() in PATTERNS
        as_lines = suffix.lower() == ".jsonl" and self.suffix == ".json"
        name = (stem if known else place) + (suffix if as_lines else self.suffix)
        return os.path.join(self.path, name)

    def state(self, place: str, input_digest: str | None) -> State:
        """Compare what is there with what would be made.

        Raises:
          EnvironmentFault: what is there cannot be read.
        """
        result = self.result_of(place)
        if not os.path.lexists(result):
            return State.FREE
        if not os.path.isfile(result):
            return State.NO_FILE
        try:
            found = digest_of(result)
        except OSError as error:
            raise EnvironmentFault(f"{result} cannot be read: {error.strerror or error}") from None
        record: Any = None
        path = self._record_of(place, found)
        with suppress(OSError, ValueError, RecursionError):
            if path.is_file() and path.stat().st_size < _LONGEST_RECORD:
                record = json.loads(path.read_bytes())
        if not isinstance(record, dict):
            others = self._record_of(place, "*")
            return State.CHANGED if any(others.parent.glob(others.name)) else State.UNKNOWN
        if record.get("failed"):
            return State.FAILURE
        if input_digest is None or record.get("input_sha256") != input_digest:
            return State.OTHER_INPUT
        if record.get("options") != self.options:
            return State.OTHER_OPTIONS
        return State.SAME if record.get("version") == __version__ else State.OTHER_VERSION

    @contextmanager
    def writing(self, place: str, input_digest: str | None, *, replace: bool) -> Iterator[ResultFile]:
        """A file for the result, put in its place with its record when the block ends without an exception.

        Raises:
          FileExistsError: another result is there, and is not to be replaced.
          EnvironmentFault: it cannot be written; what was there before is still there.
        """
        result = self.result_of(place)
        _make_folder(os.path.dirname(result))
        _make_folder(os.path.join(self.path, RECORDS))
        with whole_file(result, replace=replace, durable=False) as stream:
            file = ResultFile(stream)
            yield file
            record = {
                "result": text_of(place),
                "version": __version__,
                "options": self.options,
                "input_sha256": input_digest,
                "failed": file.failed,
            }
            self._write_record(place, file.digest(), json.dumps(record, indent=1).encode() + b"\n")

    def _write_record(self, place: str, result_digest: str, data: bytes) -> None:
        record = self._record_of(place, result_digest)
        if not record.is_file() or record.stat().st_size != len(data) or record.read_bytes() != data:
            with whole_file(str(record), durable=False) as file:
                file.write(data)

    def _record_of(self, place: str, result_digest: str) -> Path:
        own = hashlib.sha256(os.fsencode(os.path.relpath(self.result_of(place), self.path))).hexdigest()[:24]
        return Path(self.path, RECORDS, f"{own}-{result_digest[:24]}.json")


def digest_of(path: str) -> str:
    """SHA-256 of a file, as `sha256sum` writes it.

    Raises:
      OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _make_folder(path: str) -> None:
    try:
        os.makedirs(path or ".", exist_ok=True)
    except OSError as error:
        of_one = error.errno == errno.ENAMETOOLONG
        raise EnvironmentFault(f"{path} cannot be made: {error.strerror or error}", of_one=of_one) from None
