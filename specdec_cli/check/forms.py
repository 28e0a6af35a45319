"""`Report` → text for a terminal or a pipe, JSON, Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TextIO

import orjson
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_cli.check.fit import Fit
from specdec_cli.check.judge import Verdict
from specdec_cli.check.report import Report, RowReport
from specdec_cli.consoles import MARKDOWN_WIDTH, for_markdown, one_line, text_for_file, text_for_stream
from specdec_cli.errors import text_of

MOST_ROWS = 20
"""Rows that a text lists; JSON has all."""
STYLES = {Verdict.AGREES: "green", Verdict.NEAR_TIE: "yellow", Verdict.DIFFERS: "red"}


def write(report: Report, form: str, stream: TextIO) -> str:
    """A report in a form, "text" as `stream` can show it, "json" or "markdown"."""
    if form == "text":
        return for_stream(report, stream)
    return to_json(report) if form == "json" else to_markdown(report)


def to_json(report: Report) -> str:
    """All of it, as one line."""
    whole = {
        "summary": {
            "rows": len(report.rows),
            "agrees": report.count(Verdict.AGREES),
            "near_tie": report.count(Verdict.NEAR_TIE),
            "differs": report.count(Verdict.DIFFERS),
            "failed": len(report.failures),
            "precision": report.precision,
            "strict": report.strict,
            "draw": "support" if report.by_support else "exact",
            "exit_code": int(report.exit_code),
        },
        "rows": [
            {
                "input": text_of(row.input),
                "line": row.line,
                "index": row.judgement.row,
                "verdict": row.judgement.verdict.value,
                "cause": row.judgement.cause,
                "margin": row.judgement.margin,
            }
            for row in report.rows
        ],
        "mistakes": [asdict(suspect) for suspect in report.suspects],
        "fit": None if report.fit is None else asdict(report.fit),
        "failures": [{"input": text_of(each.input), "error": each.error.record()} for each in report.failures],
    }
    return orjson.dumps(whole).decode() + "\n"


def for_stream(report: Report, stream: TextIO) -> str:
    """Text as a stream can show it: a row on a line, never wrapped, so that it can be searched."""
    return text_for_stream(stream, lambda console: _show(report, console, markdown=False))


def to_markdown(report: Report) -> str:
    """For an issue."""
    return text_for_file(MARKDOWN_WIDTH, lambda console: _show(report, console, markdown=True))


def _show(report: Report, console: Console, *, markdown: bool) -> None:
    for part in _layout(report, markdown):
        console.print(part, highlight=False, soft_wrap=not markdown)


def _layout(report: Report, markdown: bool) -> Iterator[RenderableType]:
    yield _summary(report)
    worst = report.worst_first()
    if worst:
        yield Text()
        yield from _rows(worst[:MOST_ROWS], report.several, markdown)
        if len(worst) > MOST_ROWS:
            yield Text(f"{len(worst) - MOST_ROWS:,} more: --format json has them all", style="dim")
    if report.fit is not None:
        yield Text()
        yield _fit(report.fit)
    if report.replayed:
        yield Text()
        yield from _mistakes(report, markdown)
        if report.only_draws_differ and not report.suspects:
            yield Text(
                "only last tokens differ: if the engine draws them with noise of its own, --draw support "
                "judges them by whether they can be drawn"
            )


def _rows(rows: list[RowReport], several: bool, markdown: bool) -> Iterator[RenderableType]:
    cells = [
        (
            _place(row, several),
            Text(row.judgement.verdict.value, style=STYLES[row.judgement.verdict]),
            Text(row.judgement.cause),
        )
        for row in rows
    ]
    yield from _columns(("row", "verdict", "first cause"), cells, markdown)


def _summary(report: Report) -> Text:
    text = Text(f"{len(report.rows):,} row{'s' * (len(report.rows) != 1)}: ")
    words = {
        Verdict.AGREES: "agree",
        Verdict.NEAR_TIE: f"near-tie ({report.precision})",
        Verdict.DIFFERS: "differ",
    }
    for number, (verdict, word) in enumerate(words.items()):
        count = report.count(verdict)
        text.append(", " * bool(number))
        text.append(f"{count:,} {word}", style=STYLES[verdict] if count else "dim")
    if report.strict and report.count(Verdict.NEAR_TIE):
        text.append(", which --strict counts as differing")
    if report.by_support:
        text.append("; last tokens judged by whether they can be drawn")
    if report.failures:
        text.append(f"; {len(report.failures):,} could not be checked", style="red")
    return text


def _place(row: RowReport, several: bool) -> Text:
    line = "" if row.line is None else f"line {row.line}: "
    name = f"{text_of(row.input)}: " if several else ""
    return Text(one_line(f"{name}{line}row {row.judgement.row}"))


def _fit(fit: Fit) -> Text:
    if not fit.rows:
        return Text("no row to test the draws of")
    verdict = ("fit", "green") if fit.fits else ("do not fit", "red")
    return Text.assemble(
        f"last tokens of {fit.rows:,} row{'s' * (fit.rows != 1)} ",
        verdict,
        f" what they should be drawn from: p-value {fit.p_value:.3g} in the order {fit.order} "
        f"(a right engine is below {fit.false_alarm:g} once in {1 / fit.false_alarm:,.0f} times)",
        "" if fit.fits or fit.likeliest < fit.rows else "; each is the likeliest: argmax instead of sampling?",
    )


def _mistakes(report: Report, markdown: bool) -> Iterator[RenderableType]:
    rows = "the differing rows" if report.count(Verdict.DIFFERS) else "the ties decided otherwise"
    if not report.suspects:
        yield Text(f"no known mistake is consistent with {rows}")
        return
    yield Text(f"{rows} are consistent with:")
    cells = [
        (
            Text(each.name + (f" ({', or '.join(each.variants)})" if each.variants else "")),
            Text(f"{each.reproduced:,} of {each.differing:,} differing rows"),
            Text(f"{each.telling:,} rows, right on {each.matched:,}"),
        )
        for each in report.suspects
    ]
    yield from _columns(("mistake", "reproduced", "told apart by"), cells, markdown)
    if report.passed_over:
        every = report.replayed + report.passed_over
        yield Text(f"({report.replayed:,} of {every:,} such rows were replayed)", style="dim")


def _columns(
    headers: tuple[str, ...], rows: Sequence[tuple[Text, ...]], markdown: bool
) -> Iterator[RenderableType]:
    """A Markdown table, or lines with their cells below each other."""
    if markdown:
        table = Table(*headers, box=box.MARKDOWN)
        for row in rows:
            table.add_row(*(Text(for_markdown(cell.plain)) for cell in row))
        yield table
        return
    everything = [tuple(Text(header, style="dim") for header in headers), *rows]
    widths = [max(row[column].cell_len for row in everything) for column in range(len(headers))]
    for row in everything:
        line = Text()
        for cell, width in zip(row, widths, strict=True):
            line.append_text(cell).append(" " * (width - cell.cell_len + 2))
        line.rstrip()
        yield line
