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

from specdec_cli.consoles import for_markdown
from specdec_cli.explain.candidates import Candidate
from specdec_cli.explain.data import (
    ACCEPTED,
    BONUS,
    CORRECTION,
    NOT_TESTED,
    PADDING,
    REJECTED,
    Draw,
    Engine,
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


def layout(explanation: Explanation, names: Names, markdown: bool, bars: bool = True) -> Iterator[RenderableType]:
    """The parts of an explanation, from top to bottom.

    Args:
      explanation: what to show.
      names: texts of tokens.
      markdown: tables and headings as Markdown writes them.
      bars: draw bars beside the numbers; without, where a line is too short for both.
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
        if row.engine is None:
            yield _strip(row, names)
        else:
            yield from _side_by_side(row, row.engine, names, markdown)
        yield Text()
        yield from _tests(row, names, markdown, bars)
        yield from _draw(row.draw, names, markdown, bars)
    more = explanation.summary.rows - len(explanation.rows)
    if more > 0:
        yield Text()
        yield Text(
            f"{more} more row{'s' if more > 1 else ''} not shown: specdec explain --row N or --rows A:B chooses",
            style="dim",
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
        f"{summary.accepted} of {summary.drafted} draft tokens accepted"
    )
    if summary.draft_acceptance_rate is not None:
        text.append(f" (draft acceptance rate {summary.draft_acceptance_rate:.3f})")
    if summary.mean_acceptance_length is not None:
        text.append(f", mean acceptance length {summary.mean_acceptance_length:.3f}")
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


def _side_by_side(row: Row, engine: Engine, names: Names, markdown: bool) -> Iterator[RenderableType]:
    """Token by token: the exact answer and the engine's."""
    table = _table(markdown, "", "num_accepted", "tokens")
    for name, accepted, tokens in (
        ("exact", row.num_accepted, row.tokens),
        ("engine", engine.num_accepted, engine.tokens),
    ):
        shown = ", ".join(_label(token, names, markdown).plain for token in tokens)
        table.add_row(name, str(accepted), Text(shown))
    yield table
    style = {"agrees": "green", "near-tie": "yellow", "differs": "red"}[engine.verdict]
    yield Text.assemble((engine.verdict, style), f": {engine.cause}" if engine.cause else "")
    yield Text()
    yield _strip(row, names)


def _tests(row: Row, names: Names, markdown: bool, bars: bool) -> Iterator[RenderableType]:
    if not row.tests:
        yield Text("no draft tokens: the bonus token is drawn at once")
        return
    table = _table(markdown, "i", "token", "p(x)", "q(x)", "p/q", "u", "", "margin", "overlap", *[""] * bars)
    for test in row.tests:
        if test.verdict == PADDING:
            table.add_row(str(test.position), "-", "", "", "", "", PADDING, style="dim")
            continue
        style = LOOKS[test.verdict][1]
        tested = test.verdict != NOT_TESTED
        table.add_row(
            str(test.position),
            _label(test.token, names, markdown),
            number(test.p),
            number(test.q),
            number(test.ratio),
            _below_one(test.u),
            Text(f"{LOOKS[test.verdict][0]} {test.verdict}", style=style),
            f"{number(test.margin)}{' *' if test.near_tie else ''}" if tested else "",
            f"{test.overlap:.3f}",
            *([_bar(test.overlap, 8)] if bars else []),
            style=None if tested else "dim",
        )
    yield table
    if any(test.near_tie for test in row.tests):
        yield Text(f"* {NEAR_TIE}", style="yellow")
    decided = [test for test in row.tests if test.verdict in (ACCEPTED, REJECTED)]
    if decided:  # the one that ended the step, or the closest
        yield Text()
        yield _formula(min(decided, key=lambda test: (test.verdict == ACCEPTED, abs(test.margin))))
    yield Text()


def _formula(test: Test) -> Text:
    verdict = (test.verdict, LOOKS[test.verdict][1])
    if test.p == 0:
        return Text.assemble(f"position {test.position}: p(x) = 0, which never passes → ", verdict)
    if test.q == 0:
        return Text.assemble(f"position {test.position}: q(x) = 0 < p(x), which always passes → ", verdict)
    u, ratio = _told_apart(test.u, test.ratio)
    return Text.assemble(
        f"position {test.position}: u = {u} {'<' if test.verdict == ACCEPTED else '≥'} "
        f"{number(test.p)}/{number(test.q)} = {ratio} → ",
        verdict,
    )


def _told_apart(u: float, ratio: float) -> tuple[str, str]:
    """Both sides of a comparison, with as many digits as it takes to see which is larger."""
    if u == ratio:
        return _below_one(u), _below_one(u)
    for digits in range(3, 18):
        shown_u, shown_ratio = (
            f"{u:.{max(digits, 4)}g}",
            f"{ratio:.{digits}f}" if ratio >= 1e-3 else f"{ratio:.{digits}e}",
        )
        if (u < ratio) == (float(shown_u) < float(shown_ratio)) and float(shown_u) != float(shown_ratio):
            return (shown_u if float(shown_u) < 1 else _below_one(u)), shown_ratio
    return repr(u), repr(ratio)


def _below_one(x: float) -> str:
    """Noise, which is below 1, with four digits or as many as it takes not to look like 1."""
    return next((s for s in (f"{x:.{digits}g}" for digits in range(4, 18)) if float(s) < 1), repr(x))


def _draw(draw: Draw, names: Names, markdown: bool, bars: bool) -> Iterator[RenderableType]:
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
        f" token drawn from {source}, mass {number(draw.mass)}, with s = {_below_one(draw.s)}",
    )
    likely = sorted((c for c in draw.candidates if c.token is not None), key=lambda c: -c.share)[:4]
    shares = ", ".join(f"r({c.token}) = {c.share:.3f}" for c in sorted(likely, key=lambda c: c.token or 0))
    yield Text(f"{shares}{', …' if len(draw.candidates) > len(likely) else ''}")
    yield Text()
    table = _table(markdown, "", "token", "p", "q", "residual", "r", "cumulative", *[""] * bars)
    for candidate in draw.candidates:
        _add_candidate(table, candidate, draw, _label(candidate.token, names, markdown), bars)
    yield table
    if draw.near_tie:
        yield Text(f"* {NEAR_TIE}", style="yellow")


def _add_candidate(table: Table, candidate: Candidate, draw: Draw, label: Text, bars: bool) -> None:
    stretch = ""
    if candidate.token is None:
        label = Text(f"{candidate.count} other{'s' if candidate.count > 1 else ''}")
    else:
        stretch = _stretch(candidate.start or 0.0, candidate.end or 0.0)
    symbol, style = LOOKS[draw.kind] if candidate.drawn else ("", "dim" if candidate.token is None else "")
    table.add_row(
        f"{symbol}{' *' if candidate.drawn and draw.near_tie else ''}",
        label,
        number(candidate.p),
        "" if candidate.q is None else number(candidate.q),
        number(candidate.residual),
        number(candidate.share),
        stretch,
        *([_bar(candidate.share)] if bars else []),
        style=style or None,
    )


def _label(token: int | None, names: Names, markdown: bool) -> Text:
    """A token's id and text: as they are, whatever brackets or bars they hold."""
    name = "" if token is None else names(token)
    if markdown:
        name = for_markdown(name)
    return Text(f"{token}{' ' + name if name else ''}")


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
    texts = {"", "token", "tokens"}
    for header in headers:
        # Folded rather than cut: a number without its end is worse than none.
        table.add_column(header, justify="left" if header in texts else "right", overflow="fold", min_width=1)
    return table


def _bar(share: float, width: int = BAR) -> ProgressBar:
    return ProgressBar(
        total=1.0,
        completed=min(share, 1.0),
        width=width,
        style="bright_black",
        complete_style="cyan",
        finished_style="cyan",
    )
