"""Why a JSON text cannot be parsed, and where: the sentence for what orjson refuses."""

from __future__ import annotations

import re

import orjson

from specdec_cli.errors import InputError, UnfinishedError, place_of
from specdec_cli.structure import ANSWER_AXES, AXES

_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]"))
_WORD = re.compile(rb"[-+]?[A-Za-z_][A-Za-z_0-9]*|[-+]?[0-9][0-9.eE+-]*|[^ \t\r\n]")
_WORD_BYTES = set(b"+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
_NOT_FINITE = (b"nan", b"inf", b"infinity")
_LITERALS = {b"None": "null", b"True": "true", b"False": "false"}


def parse_error(data: bytes, error: orjson.JSONDecodeError) -> InputError:
    """Turn orjson's refusal of `data` into a sentence with field, index, line and column."""
    if b"\0" in data:
        return InputError(
            "is neither UTF-8 text nor NPZ: it holds NUL bytes",
            "numpy.savez writes NPZ; iconv -f UTF-16 -t UTF-8 converts UTF-16 text",
        )
    try:
        data.decode()
    except UnicodeDecodeError as fault:
        return InputError(
            f"is not UTF-8 text: byte 0x{data[fault.start]:02x} at offset {fault.start}",
            "iconv converts text to UTF-8",
        )
    at = _byte_offset(data, error.pos)
    lines_before, start_of_line = data.count(b"\n", 0, at), data.rfind(b"\n", 0, at)
    place = f"column {at - start_of_line}"
    if b"\n" in data.strip():  # else it may be a line of JSON Lines, whose number is told elsewhere
        place = f"line {lines_before + 1}, {place}"
    word = _word_at(data, at)
    shown = word.decode(errors="backslashreplace")
    field, index = _position(data, at)

    if word.lstrip(b"+-").lower() in _NOT_FINITE:
        return InputError(
            f"is {shown}, which is not a JSON number ({place})",
            "every entry of a distribution is a finite number; see where it was computed",
            field=field,
            index=index,
        )
    if "infinity" in error.msg:  # orjson's word for a literal such as 1e400
        return InputError(
            f"is {shown}, beyond the range of a double ({place})",
            "probabilities and noise lie between 0 and 1",
            field=field,
            index=index,
        )
    if "after document" in error.msg or "trailing" in error.msg:
        return InputError(
            f"has text after the JSON document: {quoted(shown)} at {place}",
            "several documents are written as JSON Lines, each on a line of its own: jq -c . FILE",
        )
    if at >= len(data.rstrip()):
        return UnfinishedError(
            f"is not valid JSON: it ends in the middle ({place})", "was it written, or copied, to its end?"
        )
    hint = ""
    if word in _LITERALS:
        hint = f"{shown} is Python; in JSON it is {_LITERALS[word]}: write with json.dump, not with print"
    elif word.startswith(b"."):
        hint = f"a number needs a digit before its point: 0{shown}"
    elif word == b"'":
        hint = "JSON has double quotes only: write with json.dump, not with print"
    where = f", in {place_of(field, index)}" if field else ""
    if "depth" in error.msg:  # the index would be as deep
        hint, where = "an input is nested four levels deep", ""
    return InputError(f"is not valid JSON: {error.msg} at {place}{where}", hint)


def quoted(text: str) -> str:
    """A string from the input as JSON writes it: shortened, and harmless to a terminal."""
    shown = text if len(text) <= 20 else text[:20] + "…"
    return orjson.dumps(shown).decode().replace("\x7f", "\\u007f")


def _byte_offset(data: bytes, position: int) -> int:
    """The place of a fault in bytes; orjson counts characters where the text decodes."""
    if data.isascii():
        return min(position, len(data))
    return min(len(data.decode(errors="replace")[:position].encode()), len(data))


def _word_at(data: bytes, at: int) -> bytes:
    """The literal that the fault is in; orjson points to its start, its end or one past its sign."""
    start = at
    while start > 0 and data[start - 1] in _WORD_BYTES:
        start -= 1
    match = _WORD.match(data, start)
    return match.group()[:40] if match else b""


def _position(data: bytes, at: int) -> tuple[str | None, tuple[int, ...]]:
    """The field and index that a byte offset falls into, by counting brackets and commas before it."""
    start, name = max((data.rfind(f'"{field}"'.encode(), 0, at), field) for field in (*AXES, *ANSWER_AXES))
    if start < 0:
        return None, ()
    inside = data[start:at]
    counts: list[int] = []
    for bracket in inside.translate(None, delete=_NOT_BRACKETS):
        if bracket == ord("["):
            counts.append(0)
        elif counts:
            counts.pop()
            if counts:
                counts[-1] += 1
    if not counts:
        return name, ()
    counts[-1] = inside.count(b",", inside.rfind(b"["))
    return name, tuple(counts)
