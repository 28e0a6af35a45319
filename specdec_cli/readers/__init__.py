"""Files and streams → `Batch`. The format is told by content, never by name.

`json_text.py` and `npz.py` each turn bytes into five arrays; the checks that hold for arrays from anywhere are
`batch.py`'s.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from specdec_cli import shapes
from specdec_cli.batch import Batch, Reading, make_batch
from specdec_cli.errors import EnvironmentFault, InputError, UnfinishedError
from specdec_cli.readers import json_text, npz
from specdec_cli.readers.lines import Lines
from specdec_cli.readers.members import CHANGED, on_disk
from specdec_cli.rows import Share
from specdec_cli.structure import AXES

STDIN = "-"
"""The name that stands for standard input."""

ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")

# Formats that people hand over by mistake: what their first bytes are, and what to say.
_OTHER_FORMATS = {
    b"\x1f\x8b": (
        "is compressed with gzip, expected JSON or NPZ",
        "gunzip it first: gunzip -c FILE | specdec run -",
    ),
    b"\x28\xb5\x2f\xfd": ("is compressed with zstd, expected JSON or NPZ", "zstdcat FILE | specdec run -"),
    b"BZh": ("is compressed with bzip2, expected JSON or NPZ", "bunzip2 -c FILE | specdec run -"),
    b"\xfd7zXZ": ("is compressed with xz, expected JSON or NPZ", "xzcat FILE | specdec run -"),
    b"\x93NUMPY": (
        "is a single .npy array, expected an NPZ archive of five",
        "save all five together: numpy.savez(FILE, draft_tokens=…, draft_probs=…, …)",
    ),
    b"\xff\xfe\0\0": ("is UTF-32 text, expected UTF-8", "iconv -f UTF-32 -t UTF-8 FILE | specdec run -"),
    b"\xff\xfe": ("is UTF-16 text, expected UTF-8", "iconv -f UTF-16 -t UTF-8 FILE | specdec run -"),
    b"\xfe\xff": ("is UTF-16 text, expected UTF-8", "iconv -f UTF-16 -t UTF-8 FILE | specdec run -"),
    b"\x80": ("is a pickle, expected JSON or NPZ", "pickles are never loaded: save the arrays with numpy.savez"),
}


_BINARY_STARTS = {magic[:1] for magic in (*ZIP_MAGIC, *_OTHER_FORMATS)}


@dataclass(frozen=True)
class Document:
    """One step in an input: the whole of it, or a line of JSON Lines. Either its arrays or what is wrong."""

    source: str
    """The input's name for messages."""
    line: int | None
    """The line it stands on; None for a document that is more, or something else, than a line."""
    reading: Reading
    fields: dict[str, Any] | None
    error: InputError | None
    end: int | None
    """Bytes of the input up to its end; None when that is the end of the input."""
    more_follow: Callable[[], bool]
    """Whether the input goes on after it; may wait for what comes out of a pipe."""

    def batch(self) -> Batch:
        """The five arrays, their structure checked.

        Raises:
          InputError: they cannot be read, or are not what the contract accepts.
        """
        if self.fields is None:
            raise self.error or InputError("could not be read")
        return make_batch(self.fields, reading=self.reading, source=self.source)

    def in_lines(self) -> bool:
        """Whether this is one of several: JSON Lines."""
        return self.line is not None and self.more_follow()


def documents(name: str, wanted: Collection[str] = AXES, share: Share | None = None) -> Iterator[Document]:
    """Read an input step by step.

    JSON Lines are told from one JSON object by content: an object that ends on the line where it starts is a
    line, and every line after it is one too. Each is handed out before the next is read.

    Args:
      name: a path, or `-` for standard input.
      wanted: the fields to read, of an input or of an answer.
      share: the rows to read of an input that has a `fingerprint_if_apart`.

    Yields:
      The documents, in order; to be used before the next is asked for. Decimal reading for JSON, binary for NPZ.

    Raises:
      InputError: the input as a whole cannot be read; with its name.
    """
    source = "standard input" if name == STDIN else name or "''"
    try:
        with _opened(name) as stream:
            start = _start_of(stream)
            _refuse_other_formats(start)
            if start.startswith(ZIP_MAGIC):
                with _seekable(stream, start) as archive, npz.open_fields(archive, wanted, share) as fields:
                    yield Document(source, None, Reading.BINARY, fields, None, None, lambda: False)
            elif share:
                raise InputError(*CHANGED)
            else:
                yield from _json_documents(Lines(stream, start), source, wanted)
    except InputError as error:
        raise error.named(source) from None
    except EnvironmentFault as error:
        error.source = source
        raise
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", source=source) from None


def fingerprint_if_apart(name: str) -> str | None:
    """What tells an input from another, if several processes can each read rows of their own of it."""
    with suppress(OSError, ValueError):
        if os.path.isfile(name):  # a pipe can be read once
            with open(name, "rb") as stream:
                return npz.fingerprint_if_apart(stream)
    return None


def bytes_in_memory(name: str) -> int:
    """How many bytes a file's arrays have: an archive's once unpacked, else its own, about.

    Raises:
      OSError: it cannot be read.
    """
    with suppress(zipfile.BadZipFile, NotImplementedError, ValueError), zipfile.ZipFile(name) as archive:
        return sum(info.file_size for info in archive.infolist())
    return os.path.getsize(name)


def _json_documents(lines: Lines, source: str, wanted: Collection[str]) -> Iterator[Document]:
    def document(data: bytes, line: int | None, more_follow: Callable[[], bool] = lambda: True) -> Document:
        try:
            fields, fault = json_text.read_fields(data, wanted), None
        except InputError as error:
            fields, fault = None, error
        return Document(source, line, Reading.DECIMAL, fields, fault, lines.taken, more_follow)

    def each(numbered: Iterable[tuple[int, bytes]]) -> Iterator[Document]:
        return (document(line, number) for number, line in numbered if line.strip())

    first_at, first = next(((number, line) for number, line in lines if line.strip()), (0, b""))
    if not first:
        raise InputError("is empty, expected a JSON object")

    if json_text.may_be_whole(first):
        whole = document(first, first_at, lines.more_follow)
        if not isinstance(whole.error, UnfinishedError):
            yield whole
            yield from each(lines)
            return

    # The first line is no object by itself: it begins one, or is the line at fault of JSON Lines.
    gathered = [first]
    if not isinstance(document(first, first_at).error, UnfinishedError):
        while not (in_lines := json_text.is_input(gathered[-1]) or lines.silent()):
            line = lines.next()
            if line is None:
                break
            gathered.append(line)
        if in_lines:
            yield from each(enumerate(gathered, first_at))
            yield from each(lines)
            return
    data = b"".join(gathered) + lines.rest()
    whole = document(data, None)
    if whole.error is None or not any(map(json_text.is_input, data.split(b"\n")[1:])):
        yield whole
    else:
        yield from each(enumerate(data.split(b"\n"), first_at))


def _start_of(stream: BinaryIO) -> bytes:
    """As many bytes as tell the format, and no more than are there: a pipe may hold a short line, and wait."""
    start = stream.read(1)
    return start + stream.read(7) if start and start in _BINARY_STARTS else start


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == STDIN:
        if sys.stdin is None:
            raise InputError("is closed, expected JSON or NPZ")
        with suppress(OSError, ValueError):  # whoever shares it may have set it not to wait
            os.set_blocking(sys.stdin.fileno(), True)
        yield sys.stdin.buffer
        return
    if "\0" in name:
        raise InputError("is not a file name: it holds a NUL byte")
    with open(name, "rb") as stream:
        yield stream


@contextmanager
def _seekable(stream: BinaryIO, start: bytes) -> Iterator[BinaryIO]:
    """The whole stream from its beginning; a zip archive is read from its end, which a pipe cannot do."""
    if stream.seekable():
        stream.seek(-len(start), io.SEEK_CUR)
        yield stream
        return
    taken = start + stream.read(shapes.LARGE)
    large = len(taken) > shapes.LARGE
    with on_disk(stream, "a large NPZ from a pipe", taken) if large else io.BytesIO(taken) as whole:
        yield whole


def _refuse_other_formats(start: bytes) -> None:
    if start.startswith(b"\0"):  # /dev/zero, for one, has no end to look for
        raise InputError("is neither UTF-8 text nor NPZ: it starts with a NUL byte", "numpy.savez writes NPZ")
    if not start:
        raise InputError("is empty, expected JSON or NPZ", "was the file written to its end?")
    for magic, (problem, hint) in _OTHER_FORMATS.items():
        if start.startswith(magic):
            raise InputError(problem, hint)
