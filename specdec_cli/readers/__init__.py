"""Files and streams → `Batch`. The format is told by content, never by name.

`json_text.py` and `npz.py` each turn bytes into five arrays; the checks that hold for arrays from anywhere are
`batch.py`'s.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from specdec_cli.batch import Batch, Reading, make_batch
from specdec_cli.errors import InputError
from specdec_cli.readers import json_text, npz

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
    b"\xff\xfe": ("is UTF-16 text, expected UTF-8", "iconv -f UTF-16 -t UTF-8 FILE | specdec run -"),
    b"\xfe\xff": ("is UTF-16 text, expected UTF-8", "iconv -f UTF-16 -t UTF-8 FILE | specdec run -"),
    b"\x80\x02": (
        "is a pickle, expected JSON or NPZ",
        "pickles are never loaded: save the arrays with numpy.savez",
    ),
    b"\x80\x04": (
        "is a pickle, expected JSON or NPZ",
        "pickles are never loaded: save the arrays with numpy.savez",
    ),
    b"\x80\x05": (
        "is a pickle, expected JSON or NPZ",
        "pickles are never loaded: save the arrays with numpy.savez",
    ),
}


def read_batch(name: str) -> Batch:
    """Read one input.

    Args:
      name: a path, or `-` for standard input.

    Returns:
      The batch, its structure checked; decimal reading for JSON, binary for NPZ.

    Raises:
      InputError: with the input's name, and field and index where they are known.
    """
    source = "standard input" if name == STDIN else name
    try:
        with _opened(name) as stream:
            start = stream.read(8)
            _refuse_other_formats(start)
            if start.startswith(ZIP_MAGIC):
                fields = npz.read_fields(_seekable(stream, start))
                return make_batch(fields, reading=Reading.BINARY, source=source)
            fields = json_text.read_fields(start + stream.read())
            return make_batch(fields, reading=Reading.DECIMAL, source=source)
    except InputError as error:
        raise error.named(source) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", source=source) from None


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == STDIN:
        if sys.stdin is None:
            raise InputError("is closed, expected JSON or NPZ")
        yield sys.stdin.buffer
        return
    if "\0" in name:
        raise InputError("is not a file name: it holds a NUL byte")
    with open(name, "rb") as stream:
        yield stream


def _seekable(stream: BinaryIO, start: bytes) -> BinaryIO:
    """The whole stream from its beginning; a zip archive is read from its end, which a pipe cannot do."""
    if stream.seekable():
        stream.seek(-len(start), io.SEEK_CUR)
        return stream
    return io.BytesIO(start + stream.read())


def _refuse_other_formats(start: bytes) -> None:
    if not start:
        raise InputError("is empty, expected JSON or NPZ", "was the file written to its end?")
    for magic, (problem, hint) in _OTHER_FORMATS.items():
        if start.startswith(magic):
            raise InputError(problem, hint)
