"""`Explanation`s → text for a terminal or a pipe, JSON, HTML, SVG, Markdown."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from math import isinf, isnan
from typing import Any, TextIO

import orjson
from rich import terminal_theme
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from specdec_cli.consoles import MARKDOWN_WIDTH, PAGE_WIDTH, text_for_file, text_for_stream
from specdec_cli.explain.data import Explanation
from specdec_cli.explain.layout import layout
from specdec_cli.explain.names import Names

BARS_FROM = 88
"""Columns from which there is room for numbers and bars."""
FORMATS = ("text", "json", "html", "svg", "markdown")
SUFFIXES = {".txt": "text", ".json": "json", ".jsonl": "json", ".html": "html", ".svg": "svg", ".md": "markdown"}


def render(explanations: Iterable[Explanation], names: Names, form: str, *, title: str = "specdec explain") -> str:
    """Make a document of explanations.

    Args:
      explanations: one for each step of the input.
      names: texts of tokens.
      form: one of `FORMATS` but "json" (see `parts`); text is plain here, `for_stream` writes it with colour.
      title: of an HTML or SVG document.
    """

    def show_all(console: Console) -> None:
        for explanation in explanations:
            show(explanation, names, console, markdown=form == "markdown")

    if form not in ("html", "svg"):
        return text_for_file(MARKDOWN_WIDTH if form == "markdown" else PAGE_WIDTH, show_all)
    page = Console(
        file=io.StringIO(), record=True, width=PAGE_WIDTH, color_system="truecolor", force_terminal=True
    )
    show_all(page)
    if form == "html":
        return page.export_html(inline_styles=True, theme=terminal_theme.DEFAULT_TERMINAL_THEME)
    return page.export_svg(title=title, code_format=_svg_without_network())


def parts(explanations: Iterable[Explanation], names: Names, form: str) -> Iterator[str]:
    """Explanations in any form: JSON line by line, as they come; any other as one document."""
    if form == "json":
        yield from map(to_json, explanations)
        return
    found = list(explanations)
    if found:
        yield render(found, names, form)


def for_stream(explanation: Explanation, names: Names, stream: TextIO) -> str:
    """Text as a stream can show it."""
    return text_for_stream(stream, lambda console: show(explanation, names, console))


def show(explanation: Explanation, names: Names, console: Console, *, markdown: bool = False) -> None:
    """Print an explanation on a console, whatever that leads to."""
    for part in layout(explanation, names, markdown, bars=console.width >= BARS_FROM):
        console.print(part, highlight=False, soft_wrap=False)


def to_json(explanation: Explanation) -> str:
    """One line of strict JSON with every number; an infinite ratio or margin is the string "Infinity"."""
    found = asdict(explanation)
    for row in found["rows"]:
        if row["engine"] is None:
            del row["engine"]
    return orjson.dumps(_strict(found)).decode() + "\n"


def _strict(value: Any) -> Any:
    if isinstance(value, float) and (isinf(value) or isnan(value)):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list) else value


def _svg_without_network() -> str:
    """rich's SVG page, without the fonts that it would fetch."""
    return re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
