"""Batch and Verification → `Explanation`: every number that an explanation shows, and nothing of how it looks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specdec_cli.batch import Batch
from specdec_cli.decide import Verification
from specdec_cli.errors import InputError
from specdec_cli.exact import to_float, value
from specdec_cli.explain.candidates import Candidate, find_candidates
from specdec_cli.near_ties import near_tie_accept, near_tie_draw

ACCEPTED, REJECTED, NOT_TESTED, PADDING = "accepted", "rejected", "not tested", "padding"
CORRECTION, BONUS = "correction", "bonus"

FIRST_ROWS = 5
"""Rows that are explained when none are chosen."""
TOP = 6
"""Candidates of a draw that are listed."""


@dataclass(frozen=True)
class Test:
    """One draft position of a row."""

    position: int
    token: int
    verdict: str
    """`accepted`, `rejected`, `not tested` (after the first failure) or `padding` (of a shorter draft)."""
    p: float
    q: float
    ratio: float
    """p/q; infinity for q = 0 < p, and 0 for p = 0."""
    u: float
    margin: float
    """p/q − u: how much larger u could have been (or, when negative, by how much it was too large)."""
    near_tie: bool
    """A float32 computation of the test need not come out the same."""
    exact: bool
    """Floats did not suffice, and it was decided in exact arithmetic."""
    overlap: float
    """Σ min(p, q) over the vocabulary: the chance that a token drawn from q is accepted here."""


@dataclass(frozen=True)
class Draw:
    """The last token of a row."""

    kind: str
    """`correction` or `bonus`."""
    position: int
    token: int
    s: float
    mass: float
    empty_residual: bool
    near_tie: bool
    exact: bool
    candidates: list[Candidate]


@dataclass(frozen=True)
class Engine:
    """An engine's answer for a row, beside the exact one."""

    num_accepted: int
    tokens: list[int]
    """As the engine gave them, without the padding at the end."""
    verdict: str
    """`agrees`, `near-tie` or `differs`."""
    cause: str
    """Why it does not agree."""


@dataclass(frozen=True)
class Row:
    """One row of the batch."""

    row: int
    num_accepted: int
    tokens: list[int]
    tests: list[Test]
    draw: Draw
    engine: Engine | None = None


@dataclass(frozen=True)
class Summary:
    """The whole batch in a few numbers, under vLLM's names."""

    rows: int
    drafted: int
    accepted: int
    mean_acceptance_length: float | None
    """1 + accepted/rows: tokens emitted a step; None without rows."""
    draft_acceptance_rate: float | None
    """accepted/drafted, of all draft tokens, tested or not; None without any."""
    accepted_lengths: list[int]
    """How many rows accepted 0, 1, … G tokens."""
    near_ties: int
    """Rows with a decision closer than float32 rounding."""
    decided_exactly: int
    empty_residuals: int


@dataclass(frozen=True)
class Explanation:
    """A batch explained: the summary, and the rows that were chosen."""

    source: str | None
    line: int | None
    summary: Summary
    rows: list[Row]


@np.errstate(all="ignore")  # what is not validated may hold anything
def explain(
    batch: Batch,
    verification: Verification,
    *,
    rows: Iterable[int] = (),
    span: slice | None = None,
    top: int = TOP,
    line: int | None = None,
    engine: Sequence[Engine] | None = None,
) -> Explanation:
    """Gather what explains a batch.

    Args:
      batch: the input.
      verification: its answer and evidence.
      rows: which rows, in this order.
      span: more rows; without either, the first `FIRST_ROWS`.
      top: how many of the likeliest candidates of a draw to list. The drawn token and its neighbours always are.
      line: the input's line in JSON Lines.
      engine: an engine's answer for each row of the batch, to be shown beside the exact one.

    Raises:
      InputError: a row is not there.
    """
    count = batch.shape[0]
    chosen = list(dict.fromkeys([*rows, *(range(count)[span] if span else ())]))
    if span not in (None, slice(None, None)) and not range(count)[span]:
        wanted = f"{'' if span.start is None else span.start}:{'' if span.stop is None else span.stop}"
        raise InputError(
            f"has none of the rows {wanted}, it has {count}, numbered from 0", source=batch.source, line=line
        )
    if not chosen:
        chosen = list(range(min(count, FIRST_ROWS)))
    for row in chosen:
        if not 0 <= row < count:
            raise InputError(f"has no row {row}: it has {count}, numbered from 0", source=batch.source, line=line)
    accept_ties, draw_ties = _near_ties(batch, verification)
    return Explanation(
        source=batch.source,
        line=line,
        summary=_summary(batch, verification, accept_ties, draw_ties),
        rows=[
            replace(
                _row(batch, verification, row, accept_ties[row], bool(draw_ties[row]), top),
                engine=None if engine is None else engine[row],
            )
            for row in chosen
        ],
    )


def _near_ties(batch: Batch, verification: Verification) -> tuple[np.ndarray, np.ndarray]:
    """bool (B, G) and (B,): decisions that were made, and closer than float32 rounding."""
    positions = np.arange(batch.shape[1])
    tested = (positions <= verification.num_accepted[:, None]) & (positions < verification.draft_lengths[:, None])
    p, q = verification.target_token_probs, verification.draft_token_probs
    accepts = tested & near_tie_accept(verification.accept_margin, batch.accept_uniforms * q, p)
    # Nothing lies below the first token that can be drawn.
    to_below = np.where(verification.below > 0, verification.threshold - verification.below, np.inf)
    to_through = verification.through - verification.threshold
    is_bonus = verification.num_accepted == verification.draft_lengths
    distance = np.minimum(to_below, to_through)
    return accepts, near_tie_draw(distance, verification.mass, batch.shape[2], is_bonus)


def _summary(batch: Batch, verification: Verification, accepts: np.ndarray, draws: np.ndarray) -> Summary:
    rows, positions, _ = batch.shape
    accepted, drafted = int(verification.num_accepted.sum()), int(verification.draft_lengths.sum())
    return Summary(
        rows=rows,
        drafted=drafted,
        accepted=accepted,
        mean_acceptance_length=1 + accepted / rows if rows else None,
        draft_acceptance_rate=accepted / drafted if drafted else None,
        accepted_lengths=np.bincount(verification.num_accepted, minlength=positions + 1).tolist() if rows else [],
        near_ties=int((accepts.any(axis=1) | draws).sum()),
        decided_exactly=int((verification.accept_exact.any(axis=1) | verification.draw_exact).sum()),
        empty_residuals=int(verification.empty_residual.sum()),
    )


def _row(
    batch: Batch, verification: Verification, row: int, accept_ties: np.ndarray, draw_tie: bool, top: int
) -> Row:
    length = int(verification.draft_lengths[row])
    accepted = int(verification.num_accepted[row])
    tests = []
    for position in range(batch.shape[1]):
        verdict = (
            PADDING
            if position >= length
            else ACCEPTED
            if verification.passed[row, position]
            else REJECTED
            if position == accepted
            else NOT_TESTED
        )
        tests.append(_test(batch, verification, row, position, verdict, bool(accept_ties[position])))
    return Row(
        row=row,
        num_accepted=accepted,
        tokens=[int(token) for token in verification.tokens[row, : accepted + 1]],
        tests=tests,
        draw=_draw(batch, verification, row, draw_tie, top),
    )


def _test(batch: Batch, verification: Verification, row: int, position: int, verdict: str, near_tie: bool) -> Test:
    p = float(verification.target_token_probs[row, position])
    q = float(verification.draft_token_probs[row, position])
    read = verdict != PADDING
    overlap = 0.0
    if read:
        overlap = float(
            np.minimum(
                _entries(batch.target_probs, row, position), _entries(batch.draft_probs, row, position)
            ).sum()
        )
    u = float(batch.accept_uniforms[row, position])
    ratio = margin = 0.0 if p == 0 else math.inf
    if read and not (math.isfinite(p) and math.isfinite(q)):  # unvalidated, and behind the first failure
        ratio = margin = math.nan
    elif read and q > 0:
        exact_p, exact_q = value(p, batch.reading), value(q, batch.reading)
        ratio, margin = to_float(exact_p / exact_q), to_float(exact_p / exact_q - value(u, batch.reading))
    elif p == 0:
        margin = -u
    return Test(
        position=position,
        token=int(batch.draft_tokens[row, position]),
        verdict=verdict,
        p=p,
        q=q,
        ratio=ratio,
        u=u,
        margin=margin if read else 0.0,
        near_tie=near_tie,
        exact=bool(verification.accept_exact[row, position]),
        overlap=overlap,
    )


def _draw(batch: Batch, verification: Verification, row: int, near_tie: bool, top: int) -> Draw:
    position = int(verification.num_accepted[row])
    is_bonus = position == verification.draft_lengths[row]
    token = int(verification.tokens[row, position])
    empty = bool(verification.empty_residual[row])
    p = _entries(batch.target_probs, row, position)
    q = None if is_bonus else _entries(batch.draft_probs, row, position)
    weights = p if q is None or empty else np.maximum(p - q, 0)
    return Draw(
        kind=BONUS if is_bonus else CORRECTION,
        position=position,
        token=token,
        s=float(batch.sample_uniforms[row]),
        mass=float(verification.mass[row]),
        empty_residual=empty,
        near_tie=near_tie,
        exact=bool(verification.draw_exact[row]),
        candidates=find_candidates(p, q, weights, token, top, verification, row),
    )


def _entries(probs: Any, row: int, position: int) -> np.ndarray:
    return np.asarray(probs[row, position]).astype(np.float64)
