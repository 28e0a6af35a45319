"""One JSON object → five arrays.

orjson parses; what is added here is what it lets pass or leaves unsaid: duplicate keys, the shape and type of
nested lists, and where a bad number stands. Integers become int64 and the rest float64, without NumPy's
conversions of booleans, strings and null into numbers.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

import numpy as np
import orjson

from specdec_cli.buffers import empty
from specdec_cli.errors import InputError, place_of
from specdec_cli.readers.json_faults import parse_error, quoted
from specdec_cli.structure import ANSWER_AXES, AXES, INTEGER_FIELDS, axes_of, axes_text

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLANKS = b" \t\r\n"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*:")

_TYPE_NAMES = {bool: "a boolean", str: "a string", type(None): "null", dict: "an object", list: "a list"}


def read_fields(data: bytes, wanted: Collection[str] = AXES) -> dict[str, Any]:
    """Parse one document.

    Args:
      data: UTF-8, with or without a byte order mark.
      wanted: the fields to read.

    Returns:
      The arrays by name, those of the wanted that are there; other keys with None.

    Raises:
      InputError: without the input's name, which is not known here.
    """
    data = data.removeprefix(BYTE_ORDER_MARK)
    if not data.strip(BLANKS):
        raise InputError("is empty, expected a JSON object")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise parse_error(data, error) from None
    if not isinstance(document, dict):
        raise InputError(
            f"holds {_name_of(document)}, expected an object",
            f'expected is {{"{next(iter(wanted))}": …, …}} with the keys {", ".join(wanted)}',
        )
    _refuse_duplicate_keys(data, document)
    # Other keys are only kept by name, so that a misspelt one can be shown.
    return {key: _to_array(key, value) if key in wanted else None for key, value in document.items()}


def may_be_whole(line: bytes) -> bool:
    """Whether a line looks like a whole object, before anything is parsed."""
    text = line.removeprefix(BYTE_ORDER_MARK).strip(BLANKS)
    return text.startswith(b"{") and text.endswith(b"}")


def is_input(line: bytes) -> bool:
    """Whether a line by itself is an object with a field of ours."""
    if not may_be_whole(line):
        return False
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return any(name in document for name in (*AXES, *ANSWER_AXES))


def _refuse_duplicate_keys(data: bytes, document: dict[str, Any]) -> None:
    """Find a key that an object has twice; orjson keeps the last of them without a word."""
    if data.count(b'"') == 2 * len(document):
        return  # as many strings as distinct keys: each string is a key, and each key is there once
    keys_of_open: list[set[str]] = []
    for token, end in _strings_and_braces(data):
        if token == b"{":
            keys_of_open.append(set())
        elif token == b"}":
            keys_of_open.pop()
        elif _COLON.match(data, end):
            key = orjson.loads(token)
            if key in keys_of_open[-1]:
                raise InputError(
                    f"has the key {quoted(key)} twice",
                    "which of the two is meant would be a guess: keep one",
                )
            keys_of_open[-1].add(key)


def _strings_and_braces(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Each string, `{` and `}` of a valid JSON text, with the offset where it ends.

    Between them lie long stretches of numbers, which `bytes.find` passes over at the speed of memory.
    """
    start = 0
    while start < len(data):
        quote = data.find(b'"', start)
        end = quote if quote >= 0 else len(data)
        braces = [at for brace in (b"{", b"}") for at in _all(data, brace, start, end)]
        for at in sorted(braces):
            yield data[at : at + 1], at + 1
        if quote < 0:
            return
        string = _STRING.match(data, quote)
        assert string is not None, "orjson has read this text, so its strings end"
        yield string.group(), string.end()
        start = string.end()


def _all(data: bytes, what: bytes, start: int, end: int) -> Iterator[int]:
    while (at := data.find(what, start, end)) >= 0:
        yield at
        start = at + 1


def _to_array(field: str, value: Any) -> np.ndarray:
    """Nested lists → int64 (tokens and counts) or float64, as deep as the field has axes."""
    axes = axes_of(field)
    if not isinstance(value, list):
        raise InputError(
            f"is {_name_of(value)}, of shape (), expected nested lists, {axes_text(field)}", field=field
        )
    shape: list[int] = []
    level: list[Any] = [value]
    for depth in range(len(axes)):
        shape.append(len(level[0]))
        _check_lengths(field, level, shape, depth)
        if depth + 1 == len(axes) or not shape[-1]:
            break
        level = [item for items in level for item in items]
        if not all(type(item) is list for item in level):
            _wrong_depth(field, level, shape)
    if 0 in shape:
        return np.zeros(shape)
    return _numbers(field, level, shape)


def _check_lengths(field: str, level: list[Any], shape: list[int], depth: int) -> None:
    lengths = [len(items) for items in level]
    if len(set(lengths)) == 1:
        return
    usual = Counter(lengths).most_common(1)[0][0]  # the first of the commonest
    odd, model = (next(i for i, n in enumerate(lengths) if (n == usual) is same) for same in (False, True))
    model_place = place_of(field, _unravel(model, shape[:depth]))
    raise InputError(
        f"is ragged: it has {lengths[odd]} {_entries(lengths[odd])}, {model_place} has {usual}",
        ("" if depth != 1 else "rows are padded with -1" if field == "tokens" else _SHORTER),
        field=field,
        index=_unravel(odd, shape[:depth]),
    )


_SHORTER = "a row with fewer draft tokens is padded: draft_tokens with -1, the other fields with any numbers"


def _entries(count: int) -> str:
    return "entry" if count == 1 else "entries"


def _wrong_depth(field: str, level: list[Any], shape: list[int]) -> NoReturn:
    flat = next(i for i, item in enumerate(level) if type(item) is not list)
    hint = "every axis is needed, of a single row too: wrap it in [ ]"
    if level[flat] is None:
        hint = "what a shorter draft leaves out is filled with lists of numbers too"
    raise InputError(
        f"is {_name_of(level[flat])}, expected a list: the field has {axes_text(field)}",
        hint,
        field=field,
        index=_unravel(flat, shape),
    )


def _numbers(field: str, level: list[list[Any]], shape: list[int]) -> np.ndarray:
    whole = field in INTEGER_FIELDS
    allowed = {int} if whole else {int, float}
    numbers = empty((len(level), shape[-1]), np.dtype(np.int64 if whole else np.float64))
    for flat, leaves in enumerate(level):
        try:
            numbers[flat] = array(numbers.dtype.char, leaves)  # refuses what is not a number, but for booleans
            may_be_booleans = (numbers[flat] == 0) | (numbers[flat] == 1)
            fine = not may_be_booleans.any() or set(map(type, leaves)) <= allowed
        except (TypeError, OverflowError):
            fine = False
        if not fine:
            bad = next(i for i, leaf in enumerate(leaves) if type(leaf) not in allowed or _is_beyond(leaf, whole))
            _bad_leaf(field, leaves[bad], (*_unravel(flat, shape[:-1]), bad), whole)
    return numbers.reshape(shape)


def _is_beyond(leaf: Any, whole: bool) -> bool:
    return whole and not -(2**63) <= leaf < 2**63


def _bad_leaf(field: str, leaf: Any, index: tuple[int, ...], whole: bool) -> NoReturn:
    expected = ("an integer" if field == "num_accepted" else "a token id, an integer") if whole else "a number"
    hint = ""
    if whole and isinstance(leaf, float):
        hint = "token ids are written without a decimal point and fit in 32 bits"
    elif whole and type(leaf) is int:
        expected = "a token id of 32 bits"
    elif leaf is None:
        hint = "null is what some encoders write for NaN"
    raise InputError(f"is {_name_of(leaf)}, expected {expected}", hint, field=field, index=index)


def _unravel(flat: int, shape: list[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()


def _name_of(value: Any) -> str:
    """`the string "0.75"`, `null`, `a list`, `0.5`."""
    if isinstance(value, str):
        return f"the string {quoted(value)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _TYPE_NAMES.get(type(value)) or repr(value)
