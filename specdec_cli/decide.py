"""The kernel's evidence → the answer: what floats decided surely is kept, the rest is decided exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from specdec_cli import exact
from specdec_cli.batch import PAD, Batch, Reading
from specdec_cli.errors import InputError
from specdec_cli.rounding import draw_bound, precision
from specdec_cli.validate import entries_at, entry_at

if TYPE_CHECKING:
    from specdec_cli.kernel import Evidence


@dataclass(frozen=True, eq=False)
class Decided:
    """The answer for a batch. NumPy arrays; B rows, G draft positions."""

    num_accepted: np.ndarray
    """int32 (B,): n, in 0..L."""
    tokens: np.ndarray
    """int32 (B, G + 1): the n accepted tokens, y, then `PAD`."""
    empty_residual: np.ndarray
    """bool (B,): a rejection left no residual, and y comes from p_n."""


@dataclass(frozen=True, eq=False)
class Verification(Decided):
    """The answer for a batch, and the evidence for it.

    Evidence is what the decisions were made with; none of it needs to be computed again to explain them.
    Positions from n + 1 on (and past a shorter draft) took no part: their `passed` is False.
    """

    draft_lengths: np.ndarray
    """intp (B,): L."""
    passed: np.ndarray
    """bool (B, G): the draft token was tested and accepted."""
    draft_token_probs: np.ndarray
    """float64 (B, G): q_i(x_i)."""
    target_token_probs: np.ndarray
    """float64 (B, G): p_i(x_i)."""
    accept_margin: np.ndarray
    """float64 (B, G): p − u·q, rounded (which can make it 0: whether it is positive is what `passed` says)."""
    accept_exact: np.ndarray
    """bool (B, G): the accept decision was too close for the kernel's floats, and was made exactly."""
    mass: np.ndarray
    """float64 (B,): T, the sum of the residual, or of p at the bonus position."""
    threshold: np.ndarray
    """float64 (B,): s·T."""
    below: np.ndarray
    """float64 (B,): the cumulative before y; before rounding, at most the threshold."""
    through: np.ndarray
    """float64 (B,): the cumulative through y; before rounding, above the threshold."""
    draw_exact: np.ndarray
    """bool (B,): y was drawn in exact arithmetic."""


def decide(batch: Batch, evidence: Evidence) -> Verification:
    """Take the kernel's decisions in the rows that it is sure of, and make those within their bounds exactly.

    Args:
      batch: what was verified.
      evidence: the kernel's, as NumPy arrays.

    Returns:
      The answer that exact arithmetic gives.

    Raises:
      InputError: a row that needs a closer look holds something else than probabilities.
    """
    with np.errstate(all="ignore"):
        # What is shown is computed here: how a device rounds and fuses is no one's business.
        q, p = _token_probs(batch, "draft_probs", evidence), _token_probs(batch, "target_probs", evidence)
        margin = p - batch.accept_uniforms * q

    lengths = batch.draft_lengths
    num_accepted, tokens = np.array(evidence.num_accepted), np.array(evidence.tokens)
    draws = [
        np.array(field, np.float64)
        for field in (evidence.mass, evidence.threshold, evidence.below, evidence.through)
    ]
    accept_exact = np.zeros(margin.shape, bool)
    empty, draw_exact = np.zeros((2, len(lengths)), bool)
    for row in np.flatnonzero(~np.asarray(evidence.sure)).tolist():
        n, closer = _accepted_prefix(batch, evidence, row)
        for position, exactly in closer.items():
            accept_exact[row, position], margin[row, position] = True, exact.to_float(exactly)
        if n == num_accepted[row] and float(evidence.draw_margin[row]) > float(evidence.draw_bound[row]):
            continue
        # A draw that the kernel made in float64 is too close for that; one in float32, or elsewhere, may not be.
        drawn, (p_n, q_n) = None, _drawn_from(batch, row, n)
        if n != num_accepted[row] or evidence.mass.dtype == np.float32:
            drawn = _draw_in_float64(batch, row, p_n, q_n)
        if drawn is None:
            draw_exact[row], drawn = True, _draw_exactly(batch, row, n, p_n, q_n)
        empty[row], num_accepted[row] = drawn.empty_residual, n
        tokens[row, :n], tokens[row, n], tokens[row, n + 1 :] = batch.draft_tokens[row, :n], drawn.token, PAD
        for field, number in zip(draws, (drawn.mass, drawn.threshold, drawn.below, drawn.through), strict=True):
            field[row] = number

    mass, threshold, below, through = draws
    return Verification(
        num_accepted=num_accepted,
        tokens=tokens,
        draft_lengths=lengths,
        passed=np.arange(margin.shape[1]) < num_accepted[:, None],
        draft_token_probs=q,
        target_token_probs=p,
        accept_margin=margin,
        accept_exact=accept_exact,
        mass=mass,
        threshold=threshold,
        below=below,
        through=through,
        draw_exact=draw_exact,
        empty_residual=empty,
    )


def _token_probs(batch: Batch, field: str, evidence: Evidence) -> np.ndarray:
    """The probabilities of the draft tokens (B, G), from the input itself where the device got it rounded."""
    given = getattr(batch, field)
    gathered = evidence.draft_token_probs if field == "draft_probs" else evidence.target_token_probs
    if given.dtype == gathered.dtype:
        return np.asarray(gathered, np.float64)
    rows, positions = np.indices(batch.draft_tokens.shape)
    drafted = batch.draft_tokens != PAD
    picked = np.asarray(given)[rows, positions, np.where(drafted, batch.draft_tokens, 0)]
    return np.where(drafted, picked, 0.0)


def _accepted_prefix(batch: Batch, evidence: Evidence, row: int) -> tuple[int, dict[int, Fraction]]:
    """n, and by position the exact margins of those before the first failure that floats did not decide."""
    margins, bounds = evidence.accept_margin[row].tolist(), evidence.accept_bound[row].tolist()
    closer: dict[int, Fraction] = {}
    length = batch.draft_length(row)
    for position in range(length):
        passes = margins[position] > 0
        if not abs(margins[position]) > bounds[position]:  # written so that NaN is not sure
            closer[position] = _accept_exactly(batch, row, position)
            passes = closer[position] > 0
        if not passes:
            return position, closer
    return length, closer


def _accept_exactly(batch: Batch, row: int, position: int) -> Fraction:
    """The margin p − u·q at one position."""
    index = (row, position, int(batch.draft_tokens[row, position]))
    return exact.accept_margin(
        float(batch.accept_uniforms[row, position]),
        entry_at(batch, "draft_probs", index),
        entry_at(batch, "target_probs", index),
        batch.reading,
    )


def _drawn_from(batch: Batch, row: int, position: int) -> tuple[np.ndarray, np.ndarray | None]:
    """p and q of a correction token at that position, or p of the bonus token."""
    p = entries_at(batch, "target_probs", row, position)
    is_bonus = position == batch.draft_length(row)
    return p, None if is_bonus else entries_at(batch, "draft_probs", row, position)


def _draw_in_float64(batch: Batch, row: int, p: np.ndarray, q: np.ndarray | None) -> exact.Draw | None:
    """The draw that a kernel in float64 would make; None where that does not decide."""
    input_bits = 8 * min(probs.dtype.itemsize for probs in (p, q) if probs is not None)
    how = precision("float64", decimal=batch.reading is Reading.DECIMAL, input_bits=input_bits)
    with np.errstate(all="ignore"):  # comparisons are written so that NaN does not decide
        p = p.astype(np.float64)
        q = np.zeros_like(p) if q is None else q.astype(np.float64)
        cumulative = np.cumsum(np.maximum(p - q, 0))
        mass = cumulative[-1]
        threshold = batch.sample_uniforms[row] * mass
        y = int(np.argmax(cumulative > threshold))
        below, through = cumulative[y - 1] if y else 0.0, cumulative[y]
        bound = draw_bound(mass, (p + q).sum(), len(p), how, len(p))
        if not min(through - threshold, threshold - below) > bound:
            return None
    return exact.Draw(y, False, float(mass), float(threshold), float(below), float(through))


def _draw_exactly(batch: Batch, row: int, position: int, p: np.ndarray, q: np.ndarray | None) -> exact.Draw:
    """The draw that exact arithmetic makes.

    Raises:
      InputError: there is none, p being all zeros at that position.
    """
    drawn = exact.draw(p, q, float(batch.sample_uniforms[row]), batch.reading)
    if drawn is None:
        raise InputError(
            "is all zeros, so there is no token to draw",
            "a distribution sums to 1",
            source=batch.source,
            field="target_probs",
            index=(row, position),
        )
    return drawn


def no_rows(batch: Batch) -> Verification:
    """The answer for B = 0, where G and V may be any numbers and nothing is computed."""
    place, row = np.zeros((0, batch.shape[1])), np.zeros(0)
    return Verification(
        num_accepted=row.astype(np.int32),
        tokens=np.zeros((0, batch.shape[1] + 1), np.int32),
        draft_lengths=row.astype(np.intp),
        passed=place.astype(bool),
        draft_token_probs=place,
        target_token_probs=place,
        accept_margin=place,
        accept_exact=place.astype(bool),
        mass=row,
        threshold=row,
        below=row,
        through=row,
        draw_exact=row.astype(bool),
        empty_residual=row.astype(bool),
    )


_Kind = TypeVar("_Kind", bound=Decided)


def joined(kind: type[_Kind], parts: Sequence[_Kind]) -> _Kind:
    """The answer for consecutive rows, one or more of each, and as much beside it as the kind has."""
    if len(parts) == 1:
        return parts[0]
    arrays = ([getattr(part, field.name) for part in parts] for field in fields(kind))
    return kind(*map(np.concatenate, arrays))


MOST_TEXTS = 10


def empty_residual_texts(verification: Decided) -> list[str]:
    """A sentence for each row whose correction token could not come from the residual; of many, the first ten."""
    rows = np.flatnonzero(verification.empty_residual)
    texts = [
        f"row {row}: empty residual at position {n}: the draft token was rejected, yet target_probs[{row}][{n}] "
        f"exceeds draft_probs[{row}][{n}] nowhere; the token was drawn from target_probs[{row}][{n}]"
        for row, n in zip(rows[:MOST_TEXTS].tolist(), verification.num_accepted[rows].tolist(), strict=False)
    ]
    more = len(rows) - len(texts)
    return [*texts, f"empty residuals in {more} more rows"] if more else texts
