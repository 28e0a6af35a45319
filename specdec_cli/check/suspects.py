"""Which known mistakes an engine's answers are consistent with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specdec_cli.batch import Batch
from specdec_cli.check.answer import Answer
from specdec_cli.check.judge import Judgement, Verdict
from specdec_cli.check.mistakes import MISTAKES, Mistake, Replay
from specdec_cli.check.rows import Row
from specdec_cli.decide import Verification

MOST_ROWS = 64
"""Rows that are replayed, of those that differ and as many of those that do not: a replay costs a pass over V."""


@dataclass(frozen=True)
class Suspect:
    """A mistake that most of the differing rows are consistent with."""

    name: str
    variants: list[str]
    """The ways to make it that fit best, and that the data do not tell apart; empty where there is only one."""
    reproduced: int
    """Differing rows on which the mistake comes to the engine's answer."""
    differing: int
    """Differing rows that were replayed."""
    telling: int
    """Replayed rows, differing or not, on which the mistake comes to another answer than the exact one."""
    matched: int
    """Those of them on which it comes to the engine's answer."""


@dataclass
class _Count:
    reproduced: int = 0
    telling: int = 0
    matched: int = 0


class Suspicion:
    """Replays mistakes batch by batch.

    Args:
      by_support: the engine's noise for the last token is not known, so that only what it could draw is compared.
    """

    def __init__(self, by_support: bool) -> None:
        self._by_support = by_support
        self._counts: dict[tuple[str, str], _Count] = defaultdict(_Count)
        self._differing = self._others = 0
        self.passed_over = 0
        """Differing rows that were not replayed, because enough others were."""

    def add(
        self,
        batch: Batch,
        verification: Verification,
        answer: Answer,
        judgements: Sequence[Judgement],
        *,
        strict: bool = False,
    ) -> None:
        """Replay the rows of a batch: those that differ, and, once one did, some that do not.

        A tie that was decided otherwise counts as differing, near-tie though it is: a mistake shows there too.
        With `strict` every near-tie does.
        """
        differing = [
            each.row
            for each in judgements
            if each.verdict is Verdict.DIFFERS or (each.verdict is Verdict.NEAR_TIE and (strict or each.is_tie))
        ]
        others = [each.row for each in judgements if each.verdict is Verdict.AGREES]
        chosen = differing[: MOST_ROWS - self._differing]
        self.passed_over += len(differing) - len(chosen)
        self._differing += len(chosen)
        for row in chosen:
            self._replay(Row(batch, row), verification, answer, differs=True)
        if self._differing:
            beside = others[: MOST_ROWS - self._others]
            self._others += len(beside)
            for row in beside:
                self._replay(Row(batch, row), verification, answer, differs=False)

    def _replay(self, row: Row, verification: Verification, answer: Answer, differs: bool) -> None:
        exact = int(verification.num_accepted[row.index])
        exact_token = int(verification.tokens[row.index, exact])
        accepted = int(answer.num_accepted[row.index])
        emitted = answer.tokens[row.index]
        token = int(emitted[accepted]) if 0 <= accepted < emitted.size else -1
        intact = 0 <= accepted <= row.length and bool(np.array_equal(emitted[:accepted], row.tokens[:accepted]))
        for mistake, variant, replay in self._replays():
            step = replay(row)
            if self._by_support:
                possible = 0 <= token < len(step.weights) and bool(step.weights[token] > 0)
                matches = intact and step.num_accepted == accepted and possible
                tells = step.num_accepted != exact or differs or not possible
            else:
                matches = intact and (step.num_accepted, step.token) == (accepted, token)
                tells = (step.num_accepted, step.token) != (exact, exact_token)
            count = self._counts[mistake.name, variant]
            count.reproduced += matches and differs
            count.telling += tells
            count.matched += matches and tells

    def _replays(self) -> list[tuple[Mistake, str, Replay]]:
        return [
            (mistake, variant, replay)
            for mistake in MISTAKES
            if not (mistake.needs_s and self._by_support)
            for variant, replay in mistake.variants.items()
        ]

    @property
    def replayed(self) -> int:
        """Differing rows that were replayed."""
        return self._differing

    def suspects(self) -> list[Suspect]:
        """Mistakes that explain most of the differing rows and are mostly right where they tell; best first."""
        found = []
        for mistake in MISTAKES:
            tried = [
                Suspect(mistake.name, [variant], count.reproduced, self._differing, count.telling, count.matched)
                for variant in mistake.variants
                for count in [self._counts[mistake.name, variant]]
            ]
            best = max(tried, key=_fit)
            if 2 * best.reproduced > best.differing and 4 * best.matched >= 3 * best.telling:
                as_good = [each.variants[0] for each in tried if _fit(each) == _fit(best)]
                found.append(replace(best, variants=[variant for variant in as_good if variant]))
        return sorted(found, key=_fit, reverse=True)


def _fit(suspect: Suspect) -> tuple[int, int]:
    """What is better is larger: more differing rows explained, fewer rows contradicted."""
    return suspect.reproduced, suspect.matched - suspect.telling
