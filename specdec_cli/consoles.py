"""What rich prints → text that a stream, a pipe or a file can carry."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from typing import TextIO

from rich.console import Console

PAGE_WIDTH = 104
"""Columns where no terminal sets them: pipes, files and pages."""
LEAST_WIDTH = 40
MARKDOWN_WIDTH = 400
"""Wide enough that no table is cut."""

_ASCII = str.maketrans(
    {
        "✓": "+",
        "✗": "x",
        "·": ".",
        "➜": ">",
        "→": "->",
        "≥": ">=",
        "∞": "inf",
        "━": "#",
        "╸": "#",
        "╺": "#",
        "…": "~",
        "─": "-",
    }
)


def text_for_stream(stream: TextIO, show: Callable[[Console], None]) -> str:
    """Text as a stream can show it: with a terminal's colour and width, plain in a pipe, ASCII where need be."""
    terminal = stream.isatty()
    console = Console(file=stream, force_terminal=terminal, color_system="auto" if terminal else None)
    if not terminal and "COLUMNS" not in os.environ:
        console.width = PAGE_WIDTH
    console.width = max(console.width, LEAST_WIDTH)
    with console.capture() as captured:
        show(console)
    text = captured.get()
    if not terminal:
        text = without_trailing_blanks(text)
    return text if "utf" in (stream.encoding or "").lower() else to_ascii(text)


def text_for_file(width: int, show: Callable[[Console], None]) -> str:
    """Plain text of a width."""
    file = io.StringIO()
    show(Console(file=file, width=width, color_system=None, force_terminal=False))
    return without_trailing_blanks(file.getvalue())


def without_trailing_blanks(text: str) -> str:
    """The same with no line ending in blanks, which rich fills tables with."""
    return "\n".join(line.rstrip() for line in text.split("\n"))


def one_line(text: str) -> str:
    """A file name, say, with what steers a terminal or breaks a line written out."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: repr(match.group())[1:-1], text)


def for_markdown(text: str) -> str:
    """The same where Markdown would take it for its own."""
    return re.sub(r"([|<>`*_\\&])", r"\\\1", text)


def to_ascii(text: str) -> str:
    """The same with what ASCII has, for a stream that can carry no more."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()
