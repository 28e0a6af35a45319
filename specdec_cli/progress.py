"""What a person is told while outcomes come: errors and warnings, a bar on a terminal, a summary, an exit code."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING

from specdec_cli import terminal
from specdec_cli.errors import ExitCode, SpecdecError
from specdec_cli.outcome import Outcome, Status
from specdec_cli.readers import STDIN

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.0
"""Seconds before a bar is shown: what is done sooner needs none."""


class Told:
    """Passes outcomes on, and tells a person about each.

    Args:
      found: the outcomes.
      names: the inputs, for the bar.
      several: count at the end what became of the steps, if some failed.
      by_input: count the inputs instead, whatever became of them.
      fail_fast: stop at the first step that fails; of inputs, who finds the outcomes sees to it.
      quiet: say nothing but errors.
      bar: show a bar, if there is a terminal for it.
      to_stdout: results go there, and are progress enough on a terminal.
    """

    def __init__(
        self,
        found: Iterable[Outcome],
        names: Sequence[str] = (),
        *,
        several: bool = False,
        by_input: bool = False,
        fail_fast: bool = False,
        quiet: bool = False,
        bar: bool = False,
        to_stdout: bool = True,
    ) -> None:
        self._found = found
        self._several = several
        self._by_input = by_input
        self._fail_fast = fail_fast
        self._quiet = quiet
        place = terminal.is_terminal(sys.stderr) and not (to_stdout and terminal.is_terminal(sys.stdout))
        self._bar = _Bar(names) if bar and not quiet and place else None
        self._counts: Counter[Status] = Counter()
        self._last: tuple[int, Status] | None = None
        self._exit_code = ExitCode.OK

    def __iter__(self) -> Iterator[Outcome]:
        if self._by_input and not self._quiet:
            terminal.farewell = lambda: f"stopped: {self._account()}; --resume does the rest"
        try:
            for outcome in self._found:
                self._count(outcome)
                if outcome.error is not None:
                    self._tell(outcome.error)
                for words in outcome.warnings():
                    self.say(words)
                if self._bar is not None:
                    self._bar.advance(outcome)
                yield outcome
                if outcome.error is not None and self._fail_fast and not self._by_input:
                    return
                del outcome
        finally:
            terminal.farewell = None
            if self._bar is not None:
                self._bar.hide()

    def _count(self, outcome: Outcome) -> None:
        status = outcome.status
        if self._by_input and self._last is not None and self._last[0] == outcome.number:
            # A further step of an input that was counted: one that fails makes it a failure.
            if status is not Status.FAILED or self._last[1] is Status.FAILED:
                return
            self._counts[self._last[1]] -= 1
        self._counts[status] += 1
        self._last = outcome.number, status

    def fail(self, error: SpecdecError) -> None:
        """Tell of a failure that no outcome stands for, and count it."""
        self._counts[Status.FAILED] += 1
        self._tell(error)

    def _tell(self, error: SpecdecError) -> None:
        if self._bar is not None:
            self._bar.hide()
        terminal.say(error.block())
        # An input at fault outranks a machine at fault: it will fail anywhere.
        if self._exit_code is not ExitCode.INPUT:
            self._exit_code = error.exit_code

    def explain(self, text: str) -> None:
        """Show what the user asked for, styled as it is."""
        if self._bar is not None:
            self._bar.hide()
        terminal.show(text)

    def say(self, words: str) -> None:
        """Tell what is no error, unless asked for quiet."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.hide()
        terminal.say(words)

    def counted(self) -> tuple[dict[str, int], ExitCode]:
        """How many came to which end, by its word, and how to exit."""
        return {status.value: number for status, number in self._counts.items()}, self._exit_code

    def include(self, counts: Mapping[str, int], exit_code: int) -> None:
        """Count what another process has counted, and told of."""
        for word, number in counts.items():
            self._counts[Status(word)] += number
        if exit_code and self._exit_code is not ExitCode.INPUT:
            self._exit_code = ExitCode(exit_code)

    def end(self) -> ExitCode:
        """Tell what became of all, and say how to exit."""
        failed = self._counts[Status.FAILED]
        if self._several and (failed or self._by_input):
            stopped = ", stopped at the first failure" if self._fail_fast and failed else ""
            self.say(self._account() + stopped)
        return self._exit_code

    def _account(self) -> str:
        total = sum(self._counts.values())
        what = "input" if self._by_input else "step"
        parts = [f"{self._counts[status]:,} {status.value}" for status in Status if self._counts[status]]
        return f"{total:,} {what}{'s' * (total != 1)}: {', '.join(parts) or 'none done'}"


def _size(name: str) -> int | None:
    """Bytes of a file, 0 of what is not there; None of a stream."""
    with suppress(OSError, ValueError):
        status = os.stat(name)
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    return None if name == STDIN else 0


class _Bar:
    """Files, rows, rows a second, bytes and the time left, on stderr."""

    def __init__(self, names: Sequence[str]) -> None:
        sizes = [_size(name) for name in names]
        self._ends = list(accumulate(size or 0 for size in sizes))
        self._total = None if None in sizes else sum(self._ends[-1:])
        self._rows = 0
        self._begun = time.monotonic()
        self._shown = False
        self._progress: Progress | None = None

    def advance(self, outcome: Outcome) -> None:
        """Count an outcome, and show the bar if the work is long."""
        if outcome.verification is not None:
            self._rows += len(outcome.verification.num_accepted)
        elapsed = time.monotonic() - self._begun
        if elapsed < PATIENCE:
            return
        if self._progress is None:
            self._progress = _progress(self._total)
        within = outcome.document.end if outcome.document is not None else None
        end = self._ends[outcome.number]
        before = self._ends[outcome.number - 1] if outcome.number else 0
        done = end if within is None else before + within
        files = outcome.number + (self._total is not None and done >= end)
        self._progress.update(
            self._progress.task_ids[0],
            completed=done,
            description=f"{files:,}/{len(self._ends):,} files",
            rows=f"{self._rows:,} rows, {self._rows / elapsed:,.0f}/s",
        )
        if not self._shown:
            terminal.mending = _SHOW_CURSOR
            with suppress(OSError):
                self._progress.start()
            self._shown = True

    def hide(self) -> None:
        """Take the bar off the screen, until the next outcome."""
        if self._shown and self._progress is not None:
            with suppress(OSError):  # the terminal has gone
                self._progress.stop()
            terminal.mending = b""
            self._shown = False


_SHOW_CURSOR = b"\r\x1b[2K\x1b[?25h"
"""Erases the line and brings back the cursor, which rich hides: for an end that lets nothing else be done."""


def _progress(total: int | None) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]}"),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    progress.add_task("", total=total, rows="")
    return progress
