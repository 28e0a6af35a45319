"""`Explanation` → rich renderables. What each part looks like is decided here, and nothing is computed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isinf

from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from specdec_cli.explain.data import (
    ACCEPTED,
    BONUS,
    CORRECTION,
    NOT_TESTED,
    PADDING,
    REJECTED,
    Candidate,
    Draw,
    Explanation,
    Row,
    Summary,
    Test,
)
from specdec_cli.explain.names import Names

# Symbol and style of each word; the words stand beside them, so that neither colour nor symbol is needed.
LOOKS = {
    ACCEPTED: ("✓", "green"),
    REJECTED: ("✗", "red"),
    NOT_TESTED: ("·", "dim"),
    PADDING: ("-", "dim"),
    CORRECTION: ("➜", "bold cyan"),
    BONUS: ("➜", "bold cyan"),
}
BAR = 12
NEAR_TIE = "near-tie: closer than float32 rounding"


def layout(explanation: Explanation, names: Names, markdown: bool) -> Iterator[RenderableType]:
    """The parts of an explanation, from top to bottom.

    Args:
      explanation: what to show.
      names: texts of tokens.
      markdown: tables and headings as Markdown writes them.
    """
    place = explanation.source or "arrays"
    if explanation.line is not None:
        place += f": line {explanation.line}"
    yield Text(f"{'## ' if markdown else ''}{place}", style="bold")
    yield _summary(explanation.summary, markdown)
    for row in explanation.rows:
        yield Text()
        yield Text(f"{'### ' if markdown else ''}row {row.row}", style="bold")
        yield Text()
        yield _strip(row, names)
        yield Text()
        yield from _tests(row, names, markdown)
        yield from _draw(row.draw, names, markdown)
    more = explanation.summary.rows - len(explanation.rows)
    if more > 0:
        yield Text()
        yield Text(
            f"{more} more row{'s' if more > 1 else ''} not shown: --row N and --rows A:B choose", style="dim"
        )


def number(x: float) -> str:
    """Four to six significant digits."""
    if isinf(x):
        return "∞" if x > 0 else "-∞"
    text = f"{x:.4g}" if abs(x) >= 1e-3 or x == 0 else f"{x:.3e}"  # at most nine characters
    return re.sub(r"e([+-])0", r"e\1", text)


def _summary(summary: Summary, markdown: bool) -> RenderableType:
    text = Text(
        f"{summary.rows} row{'' if summary.rows == 1 else 's'}, "
        f"{summary.accepted} of {summary.drafted} draft tokens accepted "
        f"(draft acceptance rate {summary.draft_acceptance_rate:.3f}), "
        f"mean acceptance length {summary.mean_acceptance_length:.3f}"
    )
    notes = [
        (summary.near_ties, "with a near-tie (closer than float32 rounding)"),
        (summary.decided_exactly, "decided in exact arithmetic"),
        (summary.empty_residuals, "with an empty residual"),
    ]
    said = [f"{count} row{'' if count == 1 else 's'} {what}" for count, what in notes if count]
    if said:
        text.append("\n" + "; ".join(said))
    if summary.rows < 2:
        return text
    table = _table(markdown, "accepted", "rows", "")
    for length, count in enumerate(summary.accepted_lengths):
        table.add_row(str(length), str(count), _bar(count / summary.rows))
    return Group(text, Text(), table)


def _strip(row: Row, names: Names) -> RenderableType:
    strip = []
    parts = [(test.verdict, test.token) for test in row.tests]
    # The last token stands behind the draft token that it replaces, or behind them all.
    behind = row.num_accepted + (1 if row.draw.kind == CORRECTION else 0)
    parts.insert(behind, (row.draw.kind, row.draw.token))
    for word, token in parts:
        if word == PADDING:
            text = f"- {word}"
        else:
            symbol, name = LOOKS[word][0], names(token)
            text = f"{symbol} {token}{' ' + name if name else ''} {word}"
        strip.append(Text(text, style=LOOKS[word][1], no_wrap=True))
    return Columns(strip, padding=(0, 3))


def _tests(row: Row, names: Names, markdown: bool) -> Iterator[RenderableType]:
    if not row.tests:
        yield Text("no draft tokens: the bonus token is drawn at once")
        return
    table = _table(markdown, "i", "token", "p(x)", "q(x)", "p/q", "u", "", "margin", "overlap", "")
    for test in row.tests:
        if test.verdict == PADDING:
            table.add_row(str(test.position), "-", "", "", "", "", PADDING, "", "", "", style="dim")
            continue
        name = names(test.token)
        style = LOOKS[test.verdict][1]
        tested = test.verdict != NOT_TESTED
        table.add_row(
            str(test.position),
            f"{test.token}{' ' + name if name else ''}",
            number(test.p),
            number(test.q),
            number(test.ratio),
            number(test.u),
            Text(f"{LOOKS[test.verdict][0]} {test.verdict}", style=style),
            f"{number(test.margin)}{' *' if test.near_tie else ''}" if tested else "",
            f"{test.overlap:.3f}",
            _bar(test.overlap, 8),
            style=None if tested else "dim",
        )
    yield table
    if any(test.near_tie for test in row.tests):
        yield Text(f"* {NEAR_TIE}", style="yellow")
    decisive = next((test for test in row.tests if test.verdict == REJECTED), row.tests[0])
    if decisive.verdict in (ACCEPTED, REJECTED):
        yield Text()
        yield _formula(decisive)
    yield Text()


def _formula(test: Test) -> Text:
    accepted = test.verdict == ACCEPTED
    ratio = "∞" if isinf(test.ratio) else f"{test.ratio:.3f}" if test.ratio >= 0.001 else number(test.ratio)
    return Text.assemble(
        f"position {test.position}: u = {number(test.u)} {'<' if accepted else '≥'} "
        f"{number(test.p)}/{number(test.q)} = {ratio} → ",
        (test.verdict, LOOKS[test.verdict][1]),
    )


def _draw(draw: Draw, names: Names, markdown: bool) -> Iterator[RenderableType]:
    source = f"p at position {draw.position}"
    if draw.kind == CORRECTION:
        source = f"the residual max(p - q, 0) at position {draw.position}"
    if draw.empty_residual:
        yield Text(
            f"empty residual: p exceeds q nowhere at position {draw.position}, so the correction token "
            "is drawn from p itself",
            style="yellow",
        )
        source = f"p at position {draw.position}"
    yield Text.assemble(
        (draw.kind, LOOKS[draw.kind][1]),
        f" token drawn from {source}, mass {number(draw.mass)}, with s = {number(draw.s)}",
    )
    likely = sorted((c for c in draw.candidates if c.token is not None), key=lambda c: -c.share)[:4]
    shares = ", ".join(f"r({c.token}) = {c.share:.3f}" for c in sorted(likely, key=lambda c: c.token or 0))
    yield Text(f"{shares}{', …' if len(draw.candidates) > len(likely) else ''}")
    yield Text()
    table = _table(markdown, "", "token", "p", "q", "residual", "r", "cumulative", "")
    for candidate in draw.candidates:
        _add_candidate(table, candidate, draw, names)
    yield table
    if draw.near_tie:
        yield Text(f"* {NEAR_TIE}", style="yellow")


def _add_candidate(table: Table, candidate: Candidate, draw: Draw, names: Names) -> None:
    if candidate.token is None:
        label, stretch = f"{candidate.count} other{'s' if candidate.count > 1 else ''}", ""
    else:
        name = names(candidate.token)
        label = f"{candidate.token}{' ' + name if name else ''}"
        stretch = _stretch(candidate.start or 0.0, candidate.end or 0.0)
    symbol, style = LOOKS[draw.kind] if candidate.drawn else ("", "dim" if candidate.token is None else "")
    table.add_row(
        f"{symbol}{' *' if candidate.drawn and draw.near_tie else ''}",
        label,
        number(candidate.p),
        "" if draw.kind == BONUS else number(candidate.q),
        number(candidate.residual),
        number(candidate.share),
        stretch,
        _bar(candidate.share),
        style=style or None,
    )


def _stretch(start: float, end: float) -> str:
    """Both ends with as many decimals as tell them apart."""
    decimals = 4
    while decimals < 12 and end > start and f"{start:.{decimals}f}" == f"{end:.{decimals}f}":
        decimals += 1
    return f"{start:.{decimals}f} to {end:.{decimals}f}"


def _table(markdown: bool, *headers: str) -> Table:
    table = Table(
        box=box.MARKDOWN if markdown else box.SIMPLE_HEAD,
        pad_edge=markdown,
        padding=(0, 1) if markdown else 0,
        show_edge=markdown,
    )
    texts = {"", "token"}
    for header in headers:
        table.add_column(header, justify="left" if header in texts else "right", no_wrap=True, overflow="ellipsis")
    return table


def _bar(share: float, width: int = BAR) -> ProgressBar:
    return ProgressBar(
        total=1.0,
        completed=min(share, 1.0),
        width=width,
        style="dim",
        complete_style="cyan",
        finished_style="cyan",
    )
