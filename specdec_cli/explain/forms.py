"""`Explanation`s → text for a terminal or a pipe, JSON, HTML, SVG, Markdown."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from math import isinf, isnan
from typing import Any, TextIO

import orjson
from rich import terminal_theme
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from specdec_cli.explain.data import Explanation
from specdec_cli.explain.layout import layout
from specdec_cli.explain.names import Names

PAGE_WIDTH = 104
"""Columns where no terminal sets them: pipes, files and pages."""
LEAST_WIDTH = 40
BARS_FROM = 88
"""Columns from which there is room for numbers and bars."""
MARKDOWN_WIDTH = 400
"""Wide enough that no table is cut."""

FORMATS = ("text", "json", "html", "svg", "markdown")
SUFFIXES = {".txt": "text", ".json": "json", ".jsonl": "json", ".html": "html", ".svg": "svg", ".md": "markdown"}

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


def render(explanations: Iterable[Explanation], names: Names, form: str, *, title: str = "specdec explain") -> str:
    """Make a document of explanations.

    Args:
      explanations: one for each step of the input.
      names: texts of tokens.
      form: one of `FORMATS` but "json" (see `parts`); text is plain here, `for_stream` writes it with colour.
      title: of an HTML or SVG document.
    """
    width = MARKDOWN_WIDTH if form == "markdown" else PAGE_WIDTH
    page = form in ("html", "svg")
    console = Console(
        file=io.StringIO(),
        record=page,
        width=width,
        color_system="truecolor" if page else None,
        force_terminal=page,
    )
    for explanation in explanations:
        show(explanation, names, console, markdown=form == "markdown")
    if form == "html":
        return console.export_html(inline_styles=True, theme=terminal_theme.DEFAULT_TERMINAL_THEME)
    if form == "svg":
        return console.export_svg(title=title, code_format=_svg_without_network())
    assert isinstance(console.file, io.StringIO)
    return _without_trailing_blanks(console.file.getvalue())


def parts(explanations: Iterable[Explanation], names: Names, form: str) -> Iterator[str]:
    """Explanations in any form: JSON line by line, as they come; any other as one document."""
    if form == "json":
        yield from map(to_json, explanations)
        return
    found = list(explanations)
    if found:
        yield render(found, names, form)


def for_stream(explanation: Explanation, names: Names, stream: TextIO) -> str:
    """Text as a stream can show it: with a terminal's colour and width, plain in a pipe, ASCII where need be."""
    terminal = stream.isatty()
    console = Console(file=stream, force_terminal=terminal, color_system="auto" if terminal else None)
    if not terminal and "COLUMNS" not in os.environ:
        console.width = PAGE_WIDTH
    console.width = max(console.width, LEAST_WIDTH)
    with console.capture() as captured:
        show(explanation, names, console)
    text = captured.get()
    if not terminal:
        text = _without_trailing_blanks(text)
    return text if "utf" in (stream.encoding or "").lower() else to_ascii(text)


def _without_trailing_blanks(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n"))


def show(explanation: Explanation, names: Names, console: Console, *, markdown: bool = False) -> None:
    """Print an explanation on a console, whatever that leads to."""
    for part in layout(explanation, names, markdown, bars=console.width >= BARS_FROM):
        console.print(part, highlight=False, soft_wrap=False)


def to_json(explanation: Explanation) -> str:
    """One line of strict JSON with every number; an infinite ratio or margin is the string "Infinity"."""
    return orjson.dumps(_strict(asdict(explanation))).decode() + "\n"


def to_ascii(text: str) -> str:
    """The same with what ASCII has, for a stream that can carry no more."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def _strict(value: Any) -> Any:
    if isinstance(value, float) and (isinf(value) or isnan(value)):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list) else value


def _svg_without_network() -> str:
    """rich's SVG page, without the fonts that it would fetch."""
    return re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
