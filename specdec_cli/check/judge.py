"""Each row of an engine's answer → a verdict, and the first cause of a difference.

An engine that says n accepted tokens says that positions 0 … n − 1 passed and that position n did not (unless the
draft ended there), and that its last token was drawn at position n. Each of these decisions is compared with the
exact one *for that position*: an engine that turns a near-tie and then draws rightly from where it stands has made
one difference, and not two.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from specdec_cli import exact
from specdec_cli.batch import PAD, Batch
from specdec_cli.check.answer import Answer
from specdec_cli.check.rows import Row
from specdec_cli.decide import Verification
from specdec_cli.errors import InputError
from specdec_cli.near_ties import Rounding, near_tie_accept, near_tie_draw
from specdec_cli.validate import entries_at, entry_at


class Verdict(enum.Enum):
    """What a row of an engine's answer is."""

    AGREES = "agrees"
    NEAR_TIE = "near-tie"
    """It differs, by decisions that were all closer than the engine's precision."""
    DIFFERS = "differs"


@dataclass(frozen=True)
class Judgement:
    """A row, its verdict and why."""

    row: int
    verdict: Verdict
    cause: str = ""
    """The first difference that is not a near-tie, or else the first; empty where there is none."""
    in_draw: bool = False
    """The cause is another last token, which s does not lead to but other noise might."""
    is_tie: bool = False
    """Both sides of the comparison are exactly equal, so that < and ≤ decide differently and rounding need not."""
    margin: float | None = None
    """How far the decision was from coming out as the engine has it: of u in an accept test, of s in a draw. None
    where no noise would have led to the engine's answer."""


@dataclass(frozen=True)
class _Difference:
    cause: str
    margin: float | None
    near_tie: bool
    in_draw: bool = False
    is_tie: bool = False


@np.errstate(all="ignore")  # what is not validated may hold anything
def judge(
    batch: Batch, verification: Verification, answer: Answer, how: Rounding, *, by_support: bool = False
) -> list[Judgement]:
    """Compare every row.

    Args:
      batch: the input.
      verification: its exact answer.
      answer: the engine's.
      how: the engine's precision.
      by_support: the engine drew its last token with noise of its own, so that only r(y) > 0 is asked of it.

    Returns:
      A judgement for each row, in order.

    Raises:
      InputError: what the engine's answer rests on is no probability, which an input that was not validated may
        hold where the exact step does not look.
    """
    found = [Judgement(row, Verdict.AGREES) for row in range(batch.shape[0])]
    for row in np.flatnonzero(~_equal(verification, answer)).tolist():
        differences = list(_differences(batch, verification, answer, row, how, by_support))
        if differences:
            worst = next((each for each in differences if not each.near_tie), differences[0])
            verdict = Verdict.NEAR_TIE if worst.near_tie else Verdict.DIFFERS
            found[row] = Judgement(row, verdict, worst.cause, worst.in_draw, worst.is_tie, worst.margin)
    return found


def _equal(verification: Verification, answer: Answer) -> np.ndarray:
    """bool (B,): rows that equal the exact answer, and need no closer look."""
    width = max(answer.tokens.shape[1], verification.tokens.shape[1])
    theirs, ours = (
        np.pad(tokens, ((0, 0), (0, width - tokens.shape[1])), constant_values=PAD)
        for tokens in (answer.tokens, verification.tokens)
    )
    return np.asarray((answer.num_accepted == verification.num_accepted) & (theirs == ours).all(axis=1))


def _differences(
    batch: Batch, verification: Verification, answer: Answer, index: int, how: Rounding, by_support: bool
) -> Iterator[_Difference]:
    row = Row(batch, index)
    accepted = int(answer.num_accepted[index])
    if not 0 <= accepted <= row.length:
        yield _Difference(
            f"engine says num_accepted = {accepted}, and there are {row.length} draft tokens", None, False
        )
        return
    yield from _accept_differences(row, verification, accepted, how)
    emitted = answer.tokens[index]
    wrong = _structural_fault(row, accepted, emitted)
    if wrong:
        yield _Difference(wrong, None, False)
        return
    difference = _draw_difference(row, verification, accepted, int(emitted[accepted]), how, by_support)
    if difference is not None:
        yield difference


def _accept_differences(
    row: Row, verification: Verification, accepted: int, how: Rounding
) -> Iterator[_Difference]:
    """The accept tests that the engine's count implies, as far as they are not as they should be."""
    exactly = int(verification.num_accepted[row.index])
    p, q = row.p_x, row.q_x
    for position in range(min(exactly, accepted), min(accepted + 1, row.length)):
        engine_passes = position < accepted
        u = float(row.u[position])
        at = (row.index, position, int(row.tokens[position]))
        margin = exact.accept_margin(
            u, entry_at(row.batch, "draft_probs", at), entry_at(row.batch, "target_probs", at), row.batch.reading
        )
        if (margin > 0) == engine_passes:
            continue
        said = ("accepted", "rejects") if engine_passes else ("rejected", "accepts")
        near = near_tie_accept(exact.to_float(margin), u * q[position], p[position], how)
        distance = _ratio_distance(u, float(p[position]), float(q[position]))
        yield _Difference(
            f"engine {said[0]} position {position}, exact {said[1]}: {_test(u, p[position], q[position])}"
            + ("" if distance is None else f", margin {distance:.3g}"),
            distance,
            bool(near),
            is_tie=margin == 0,
        )


def _ratio_distance(u: float, p: float, q: float) -> float | None:
    """|p/q − u|: how far u was from deciding otherwise. None where no u decides otherwise."""
    if p == 0 or q == 0:
        return None
    return abs(p / q - u)


def _test(u: float, p: float, q: float) -> str:
    if p == 0:
        return f"u = {u:.6g}, p = 0, which never passes"
    if q == 0:
        return f"u = {u:.6g}, q = 0 < p = {p:.6g}, which always passes"
    ratio = p / q
    if u == ratio:  # as far as doubles go
        return f"u = {float(u)!r}, p/q = {float(ratio)!r}"
    digits = _digits_that_tell_apart(u, ratio)
    return f"u = {u:.{digits}g}, p/q = {ratio:.{digits}g}"


def _digits_that_tell_apart(*numbers: float) -> int:
    """Significant digits, three or more, with which none reads as the next."""
    for digits in range(3, 17):
        shown = [f"{number:.{digits}g}" for number in numbers]
        if all(one != other for one, other in pairwise(shown)):
            return digits
    return 17


def _structural_fault(row: Row, accepted: int, emitted: np.ndarray) -> str:
    """What is wrong with a row of tokens, whatever was accepted and drawn; empty if nothing is."""
    vocabulary = row.batch.shape[2]
    if emitted.size <= accepted or emitted[accepted] == PAD:
        return f"engine emits {int((emitted != PAD).sum())} tokens, expected {accepted + 1}: no last token"
    for position in range(accepted):
        if emitted[position] != row.tokens[position]:
            return (
                f"engine's accepted token {position} is {emitted[position]}, "
                f"the draft token is {row.tokens[position]}"
            )
    if not 0 <= emitted[accepted] < vocabulary:
        return f"engine's last token is {emitted[accepted]}, outside 0..{vocabulary - 1}"
    after = np.flatnonzero(emitted[accepted + 1 :] != PAD)
    if after.size:
        position = accepted + 1 + int(after[0])
        return f"engine emits {emitted[position]} at place {position}, behind its last token: expected {PAD}"
    return ""


def _draw_difference(
    row: Row, verification: Verification, position: int, token: int, how: Rounding, by_support: bool
) -> _Difference | None:
    kind = "bonus" if position == row.length else "correction"
    if not entries_at(row.batch, "target_probs", row.index, position).any():
        raise InputError(
            "is all zeros, so there is no token to draw", field="target_probs", index=(row.index, position)
        )
    if position < row.length:
        entries_at(row.batch, "draft_probs", row.index, position)
    weights = row.weights(position)
    if weights[token] == 0:
        source = "p" if position == row.length or not _has_residual(row, position) else "the residual"
        return _Difference(
            f"engine's {kind} token {token} cannot be drawn: {source} is 0 there"
            + (f", p = {row.p(position)[token]:.6g}" if source != "p" else "")
            + (f" ≤ q = {row.q(position)[token]:.6g}" if source != "p" else ""),
            None,
            _may_appear_by_rounding(row, position, token, how, by_support),
        )
    if by_support:
        return None
    right = _token_of(row, verification, position)
    if token == right:
        return None
    distance, mass, theirs = _stretch(weights, token, row.s)
    _, _, ours = _stretch(weights, right, row.s)
    near = near_tie_draw(distance, mass, weights.size, position == row.length, how)
    digits = _digits_that_tell_apart(ours[0], row.s, ours[1])
    more = max(digits, _digits_that_tell_apart(*theirs))
    same = "same prefix, other token" if position == int(verification.num_accepted[row.index]) else "then"
    return _Difference(
        f"{same}: s = {row.s:.{digits}g} owns token {right} ({ours[0]:.{digits}g} to {ours[1]:.{digits}g}), "
        f"engine drew {token} ({theirs[0]:.{more}g} to {theirs[1]:.{more}g})",
        distance / mass,
        bool(near),
        in_draw=True,
        is_tie=distance == 0,
    )


def _may_appear_by_rounding(row: Row, position: int, token: int, how: Rounding, by_support: bool) -> bool:
    """Whether rounded entries may leave a residual where there is none, or nowhere, so that p stands for it."""
    if position == row.length:
        return False
    p, q, weights = row.p(position), row.q(position), row.weights(position)
    if p[token] == 0:
        return False
    mass = float(weights.sum())
    if mass <= 2 * how.unit + how.smallest * weights.size:
        return True
    if q[token] - p[token] > how.unit * (p[token] + q[token]) + how.smallest:
        return False
    distance = _stretch(weights, token, row.s)[0]
    return by_support or bool(near_tie_draw(distance, mass, weights.size, False, how))


def _has_residual(row: Row, position: int) -> bool:
    return bool((row.p(position) > row.q(position)).any())


def _token_of(row: Row, verification: Verification, position: int) -> int:
    """The exact draw at a position, be it the one where the exact step ends or another."""
    if position == int(verification.num_accepted[row.index]):
        return int(verification.tokens[row.index, position])
    q = None if position == row.length else row.q(position)
    drawn = exact.draw(row.p(position), q, row.s, row.batch.reading)
    assert drawn is not None, "a distribution was validated, so it has a token to draw"
    return drawn.token


def _stretch(weights: np.ndarray, token: int, s: float) -> tuple[float, float, tuple[float, float]]:
    """How far s·T is outside a token's stretch, T, and the stretch as a part of [0, 1]."""
    before, through, mass = (math.fsum(weights[:end].tolist()) for end in (token, token + 1, weights.size))
    threshold = s * mass
    return max(before - threshold, threshold - through, 0.0), mass, (before / mass, min(through / mass, 1.0))
