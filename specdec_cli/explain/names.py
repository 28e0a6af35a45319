"""Token ids → readable texts, from a vocabulary file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from specdec_cli.errors import InputError

Names = Callable[[int], str]
"""A token id → its text in quotes, or an empty string where the vocabulary has none."""


def no_names(_: int) -> str:
    """Without a vocabulary."""
    return ""


def read_names(path: str) -> Names:
    """Read a vocabulary.

    Args:
      path: a JSON file: a list of texts, an object `{"text": id}`, or a Hugging Face `tokenizer.json`, whose
        `model.vocab` is one of the two.

    Raises:
      InputError: it cannot be read, or is something else.
    """
    try:
        with open(path, "rb") as file:
            document = orjson.loads(file.read())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", source=path) from None
    except orjson.JSONDecodeError as error:
        raise InputError(
            f"is not valid JSON: {error}", "--tokens takes a vocabulary as JSON", source=path
        ) from None
    added: dict[int, str] = {}
    if isinstance(document, dict) and isinstance(document.get("model"), dict):
        for item in document.get("added_tokens") or []:
            added[item["id"]] = item["content"]
        document = document["model"].get("vocab")
    texts = _texts(document)
    if texts is None:
        raise InputError(
            "is not a vocabulary",
            'expected a JSON list of texts, an object {"text": id}, or a tokenizer.json',
            source=path,
        )
    byte_level = any("Ġ" in text for text in texts.values()) and not any("▁" in text for text in texts.values())
    readable = {i: _readable(text, byte_level) for i, text in texts.items()} | added
    return lambda token: _quoted(readable[token]) if token in readable else ""


def _texts(document: Any) -> dict[int, str] | None:
    if isinstance(document, dict) and all(type(i) is int for i in document.values()):
        return {i: text for text, i in document.items()}
    if isinstance(document, list):
        # A Unigram tokenizer lists [text, score] pairs.
        texts = [item[0] if isinstance(item, list) and item else item for item in document]
        if all(isinstance(text, str) or text is None for text in texts) and any(texts):
            return {i: text for i, text in enumerate(texts) if text is not None}
    return None


def _readable(text: str, byte_level: bool) -> str:
    if byte_level and all(character in _BYTE_OF for character in text):
        return bytes(_BYTE_OF[character] for character in text).decode(errors="backslashreplace")
    if re.fullmatch(r"<0x[0-9A-F]{2}>", text):  # SentencePiece's spelling of a byte
        return bytes([int(text[3:5], 16)]).decode(errors="backslashreplace")
    return text.replace("▁", " ")  # and its mark for a space


def _byte_level_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes for bytes (Radford et al. 2019); printable ones are themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()


def _quoted(text: str) -> str:
    """In quotes, so that spaces show, and with control characters escaped."""
    shown = text if len(text) <= 24 else text[:24] + "…"
    escaped = shown.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in f'"{escaped}"')
