"""Pairs of inputs and results → `Report`: every number that a report shows, and nothing of how it looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specdec_cli.check.fit import Fit, FitTest
from specdec_cli.check.judge import Judgement, Verdict, judge
from specdec_cli.check.pairs import Pair, Steps, steps
from specdec_cli.check.rows import Row
from specdec_cli.check.suspects import Suspect, Suspicion
from specdec_cli.errors import ExitCode, InputError
from specdec_cli.loading import load_verify_batch
from specdec_cli.near_ties import Rounding
from specdec_cli.settings import DEFAULTS, Settings


@dataclass(frozen=True)
class RowReport:
    """One row of one step of one pair."""

    input: str
    line: int | None
    judgement: Judgement
    counts_as: Verdict
    """The verdict, a near-tie being a difference where the check is strict."""


@dataclass(frozen=True)
class Failure:
    """A pair, or a line of it, that could not be checked."""

    input: str
    error: InputError


@dataclass(frozen=True)
class Report:
    """All that a check found."""

    precision: str
    strict: bool
    by_support: bool
    """The last token was judged by whether it can be drawn, in some step at least."""
    rows: list[RowReport]
    """In the order of the inputs."""
    failures: list[Failure]
    suspects: list[Suspect]
    replayed: int
    """Rows that mistakes were tried on: those that differ, or decide an exact tie otherwise."""
    passed_over: int
    """Differing rows that no mistake was tried on, because enough others were."""
    fit: Fit | None
    """Of the last tokens to r; None where s says what each should be."""

    def count(self, verdict: Verdict) -> int:
        """How many rows have a verdict."""
        return Counter(row.judgement.verdict for row in self.rows)[verdict]

    @property
    def several(self) -> bool:
        """Whether rows need the name of their input, or its line."""
        return len({(row.input, row.line) for row in self.rows}) > 1 or bool(self.failures)

    @property
    def only_draws_differ(self) -> bool:
        """Every difference is in a last token that other noise might have led to."""
        differing = [row.judgement for row in self.rows if row.judgement.verdict is Verdict.DIFFERS]
        return bool(differing) and all(each.in_draw for each in differing)

    def worst_first(self) -> list[RowReport]:
        """The rows that do not agree: differences before near-ties, the largest margin first."""

        def key(row: RowReport) -> tuple[bool, float]:
            margin = row.judgement.margin
            return row.counts_as is not Verdict.DIFFERS, float("-inf") if margin is None else -margin

        return sorted((row for row in self.rows if row.judgement.verdict is not Verdict.AGREES), key=key)

    @property
    def exit_code(self) -> ExitCode:
        """Bad input before a disagreement: not all was checked."""
        if self.failures:
            return ExitCode.INPUT
        differs = any(row.counts_as is Verdict.DIFFERS for row in self.rows)
        return ExitCode.DISAGREES if differs or (self.fit and not self.fit.fits) else ExitCode.OK


@dataclass(frozen=True)
class Standard:
    """What an engine is held to."""

    how: Rounding
    """The precision whose rounding is excused."""
    strict: bool = False
    """Nothing is excused."""
    by_support: bool = False
    """The last token need only be one that can be drawn, also where the input has `sample_uniforms`."""
    settings: Settings = DEFAULTS
    """How the right answer is found."""


def check(pairs: Sequence[Pair], standard: Standard) -> Report:
    """Check every step of every pair.

    Raises:
      EnvironmentFault: this machine cannot do it.
    """
    rows: list[RowReport] = []
    failures: list[Failure] = []
    suspicions = {by_support: Suspicion(by_support) for by_support in (False, True)}
    fit = FitTest()
    any_by_support = False
    for pair in pairs:
        for step in steps(pair):
            try:
                if isinstance(step, InputError):
                    raise step
                by_support = standard.by_support or not step.has_s
                any_by_support |= by_support
                rows += _check_step(pair, step, standard, by_support, suspicions[by_support], fit)
            except InputError as error:
                failures.append(Failure(pair.input, error.named(pair.input)))
    return Report(
        precision=standard.how.name,
        strict=standard.strict,
        by_support=any_by_support,
        rows=rows,
        failures=failures,
        suspects=[suspect for suspicion in suspicions.values() for suspect in suspicion.suspects()],
        replayed=sum(suspicion.replayed for suspicion in suspicions.values()),
        passed_over=sum(suspicion.passed_over for suspicion in suspicions.values()),
        fit=fit.result() if any_by_support else None,
    )


def _check_step(
    pair: Pair, step: Steps, standard: Standard, by_support: bool, suspicion: Suspicion, fit: FitTest
) -> Iterator[RowReport]:
    verification = load_verify_batch()(step.batch, standard.settings)
    judgements = judge(step.batch, verification, step.answer, standard.how, by_support=by_support)
    suspicion.add(step.batch, verification, step.answer, judgements, strict=standard.strict)
    for each in judgements:
        accepted = int(verification.num_accepted[each.row])
        if by_support and each.verdict is Verdict.AGREES:
            fit.add(Row(step.batch, each.row).weights(accepted), int(step.answer.tokens[each.row, accepted]))
        near_tie_counts = standard.strict and each.verdict is Verdict.NEAR_TIE
        yield RowReport(pair.input, step.line, each, Verdict.DIFFERS if near_tie_counts else each.verdict)
