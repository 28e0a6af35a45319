"""One JSON object → five arrays.

orjson parses; what is added here is what it lets pass or leaves unsaid: duplicate keys, the shape and type of
nested lists, and where a bad number stands. Integers become int64 and the rest float64, without NumPy's
conversions of booleans, strings and null into numbers.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import numpy as np
import orjson

from specdec_cli.batch import AXES
from specdec_cli.errors import InputError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_STRINGS_AND_BRACES = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}]', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*:")
_BARE_WORD = re.compile(rb"[-+]?(?:NaN|nan|Infinity|inf(?:inity)?|None|True|False)\b")

_TYPE_NAMES = {bool: "a boolean", str: "a string", type(None): "null", dict: "an object", list: "a list"}


def read_fields(data: bytes) -> dict[str, Any]:
    """Parse one document.

    Args:
      data: UTF-8, with or without a byte order mark.

    Returns:
      The arrays by name, those of the five that are there; other keys are left out.

    Raises:
      InputError: without the input's name, which is not known here.
    """
    data = data.removeprefix(_BYTE_ORDER_MARK)
    document = _parse(data)
    if not isinstance(document, dict):
        raise InputError(
            f"holds {_name_of(document)}, expected an object",
            f'an input looks like {{"draft_tokens": …, …}} with the keys {", ".join(AXES)}',
        )
    _refuse_duplicate_keys(data, document)
    return {name: _to_array(name, document[name]) for name in AXES if name in document}


def _parse(data: bytes) -> Any:
    if not data.strip(b" \t\r\n"):
        raise InputError("is empty, expected a JSON object")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        at = _byte_offset(data, error.pos)
        line = data.count(b"\n", 0, at) + 1
        column = at - data.rfind(b"\n", 0, at)
        word = _BARE_WORD.match(data, at) or _BARE_WORD.match(data, max(at - 1, 0))
        if word:
            raise InputError(
                f"is not valid JSON: {word.group().decode()} at line {line}, column {column}",
                "JSON has no NaN, Infinity or Python literals; a distribution has only finite numbers",
            ) from None
        raise InputError(f"is not valid JSON: {error.msg} at line {line}, column {column}") from None


def _byte_offset(data: bytes, position: int) -> int:
    """Orjson counts characters where the text decodes, bytes where it does not."""
    if data.isascii():
        return min(position, len(data))
    return min(len(data.decode(errors="replace")[:position].encode()), len(data))


def _refuse_duplicate_keys(data: bytes, document: dict[str, Any]) -> None:
    """Orjson keeps the last of two equal keys without a word."""
    if data.count(b'"') == 2 * len(document):
        return  # as many strings as distinct keys: each string is a key, and each key is there once
    open_objects: list[set[Any]] = []
    for match in _STRINGS_AND_BRACES.finditer(data):
        token = match.group()
        if token == b"{":
            open_objects.append(set())
        elif token == b"}":
            open_objects.pop()
        elif _COLON.match(data, match.end()):
            key = orjson.loads(token)
            if key in open_objects[-1]:
                raise InputError(
                    f'has the key "{key}" twice', "which of the two is meant would be a guess: keep one"
                )
            open_objects[-1].add(key)


def _to_array(field: str, value: Any) -> np.ndarray:
    """Nested lists → int64 (draft_tokens) or float64, as deep as the field has axes."""
    axes = AXES[field]
    if not isinstance(value, list):
        raise InputError(
            f"is {_name_of(value)}, of shape (), expected a list of shape ({', '.join(axes)})", field=field
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
            _wrong_depth(field, level, shape, axes)
    if 0 in shape:
        return np.zeros(shape)
    return _numbers(field, level, shape)


def _check_lengths(field: str, level: list[Any], shape: list[int], depth: int) -> None:
    for flat, items in enumerate(level):
        if len(items) != shape[-1]:
            index = _unravel(flat, shape[:depth])
            first = "".join(f"[{0}]" for _ in index)
            hint = "a row with fewer draft tokens is padded with -1, and its other fields with anything"
            raise InputError(
                f"is ragged: it has {len(items)} {_entries(len(items))}, {field}{first} has {shape[-1]}",
                hint if depth == 1 or "probs" in field else "",
                field=field,
                index=index,
            )


def _entries(count: int) -> str:
    return "entry" if count == 1 else "entries"


def _wrong_depth(field: str, level: list[Any], shape: list[int], axes: tuple[str, ...]) -> NoReturn:
    flat = next(i for i, item in enumerate(level) if type(item) is not list)
    hint = "a single row still needs its axis: wrap it in [ ]" if len(shape) == len(axes) - 1 else ""
    raise InputError(
        f"is {_name_of(level[flat])}, expected a list: {field} has {len(axes)} axes, ({', '.join(axes)})",
        hint,
        field=field,
        index=_unravel(flat, shape),
    )


def _numbers(field: str, level: list[list[Any]], shape: list[int]) -> np.ndarray:
    whole = field == "draft_tokens"
    allowed = {int} if whole else {int, float}
    array = np.empty((len(level), shape[-1]), np.int64 if whole else np.float64)
    for flat, leaves in enumerate(level):
        if not set(map(type, leaves)) <= allowed:
            last = next(i for i, leaf in enumerate(leaves) if type(leaf) not in allowed)
            _bad_leaf(field, leaves[last], (*_unravel(flat, shape[:-1]), last), whole)
        try:
            array[flat] = leaves
        except OverflowError:
            last = next(i for i, leaf in enumerate(leaves) if not -(2**63) <= leaf < 2**63)
            _bad_leaf(field, leaves[last], (*_unravel(flat, shape[:-1]), last), whole)
    return array.reshape(shape)


def _bad_leaf(field: str, leaf: Any, index: tuple[int, ...], whole: bool) -> NoReturn:
    expected = "a token id, an integer" if whole else "a number"
    hint = ""
    if whole and isinstance(leaf, float):
        hint = "token ids are written without a decimal point and fit in 32 bits"
    elif leaf is None:
        hint = "null is what some encoders write for NaN"
    raise InputError(f"is {_name_of(leaf)}, expected {expected}", hint, field=field, index=index)


def _unravel(flat: int, shape: list[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()


def _name_of(value: Any) -> str:
    """`the string "0.75"`, `null`, `a list`, `0.5`."""
    if isinstance(value, str):
        shown = value if len(value) <= 20 else value[:20] + "…"
        return f'the string "{shown}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return _TYPE_NAMES.get(type(value)) or repr(value)
