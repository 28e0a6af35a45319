"""One `Batch` → one `Verification`: validation, the kernel, and exact arithmetic where floats did not suffice.

(The module is not called `verify`, because importing it would then put it in the place of the function
`specdec_cli.verify`.)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from specdec_cli import exact, kernel
from specdec_cli.batch import AXES, PAD, Batch, Reading, is_jax, make_batch
from specdec_cli.devices import computes_float64, default_platform, find_device, platform_of
from specdec_cli.errors import EmptyResidualWarning, InputError
from specdec_cli.rounding import Precision, precision, summation_error
from specdec_cli.validate import (
    PROB_FIELDS,
    check_distributions,
    entries_at,
    entry_at,
    finite_and_not_negative,
)


@dataclass(frozen=True, eq=False)
class Verification:
    """The answer for a batch, and the evidence for it. NumPy arrays; B rows, G draft positions.

    Evidence is what the decisions were made with; none of it needs to be computed again to explain them.
    Positions from n + 1 on (and past a shorter draft) took no part: their `passed` is False.
    """

    num_accepted: np.ndarray
    """int32 (B,): n, in 0..L."""
    tokens: np.ndarray
    """int32 (B, G + 1): the n accepted tokens, y, then `PAD`."""
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
    empty_residual: np.ndarray
    """bool (B,): a rejection left no residual, and y comes from p_n."""


def verify_batch(
    batch: Batch,
    *,
    validate: bool = True,
    sum_tolerance: Fraction | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> Verification:
    """Verify every row of a batch, exactly.

    Args:
      batch: the input.
      validate: check that the probabilities are distributions. Without it, an input that is not may be refused
        or answered, by chance; one that is (or only sums to something else) is answered all the same.
      sum_tolerance: how far from 1 a sum may be, exclusive; by default 1e-3, and 1e-2 for 16-bit floats.
      device: "cpu", "gpu" or "tpu"; by default JAX's default device, or where the probabilities are.
      dtype: what the kernel computes in; by default "float64" where the device has it, else "float32".
        The answer does not depend on it.

    Returns:
      The answer with its evidence.

    Raises:
      InputError: a row is not a distribution, or (without `validate`) holds a value that cannot be decided on.
      EnvironmentFault: there is no such device.
    """
    rows = batch.shape[0]
    if rows == 0:
        return _settle(batch, None)
    where = find_device(device)
    if where is None and is_jax(batch.draft_probs) and is_jax(batch.target_probs):
        homes = batch.draft_probs.devices(), batch.target_probs.devices()
        if homes[0] != homes[1]:
            raise InputError(
                f"is on {homes[0]}, target_probs on {homes[1]}", "put both on one device", field="draft_probs"
            )
    platform = (
        platform_of(batch.target_probs)
        if is_jax(batch.target_probs) and where is None
        else default_platform(where)
    )
    dtype = dtype or ("float64" if computes_float64(platform) else "float32")
    how = precision(
        dtype,
        decimal=batch.reading is Reading.DECIMAL,
        input_bits=8 * min(getattr(batch, field).dtype.itemsize for field in PROB_FIELDS),
    )
    one_by_one = platform == "cpu"
    # A context, because the caller's process may well want float32 everywhere else.
    with jax.enable_x64(dtype == "float64"):
        arrays = {name: _on_device(getattr(batch, name), dtype, where) for name in AXES}
        if validate:
            for field in PROB_FIELDS:
                _validate(batch, field, arrays[field], sum_tolerance, how, one_by_one)
        evidence = kernel.verify_rows(**arrays, how=how, one_by_one=one_by_one)
        return _settle(batch, jax.device_get(evidence))


def verify_arrays(
    draft_tokens: Any,
    draft_probs: Any,
    target_probs: Any,
    accept_uniforms: Any,
    sample_uniforms: Any,
    *,
    validate: bool = True,
    sum_tolerance: float | None = None,
) -> dict[str, jax.Array]:
    """`specdec_cli.verify`; see there."""
    given = (draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms)
    batch = make_batch(dict(zip(AXES, given, strict=True)))
    tolerance = None if sum_tolerance is None else exact.value(sum_tolerance, Reading.DECIMAL)
    verification = verify_batch(batch, validate=validate, sum_tolerance=tolerance)
    for text in empty_residual_texts(verification):
        warnings.warn(text, EmptyResidualWarning, stacklevel=3)
    return {
        "num_accepted": jnp.asarray(verification.num_accepted),
        "tokens": jnp.asarray(verification.tokens),
    }


def empty_residual_texts(verification: Verification) -> list[str]:
    """A sentence for each row whose correction token could not come from the residual."""
    return [
        f"row {row}: empty residual at position {n}: the draft token was rejected, yet target_probs[{row}][{n}] "
        f"exceeds draft_probs[{row}][{n}] nowhere; the token was drawn from target_probs[{row}][{n}]"
        for row, n in enumerate(verification.num_accepted.tolist())
        if verification.empty_residual[row]
    ]


def _on_device(array: Any, dtype: str, where: jax.Device | None) -> jax.Array:
    if dtype == "float32" and array.dtype == np.float64:
        with np.errstate(all="ignore"):  # what overflows becomes infinity, which the exact path then decides
            array = np.asarray(array).astype(np.float32)
    if is_jax(array) and where is None:
        return cast(jax.Array, array)
    return cast(jax.Array, jax.device_put(array, where))


def _validate(
    batch: Batch,
    field: str,
    array: jax.Array,
    tolerance: Fraction | None,
    how: Precision,
    one_by_one: bool,
) -> None:
    if array.size:
        sums, fine = jax.device_get(kernel.row_sums(array, how=how, one_by_one=one_by_one))
        given = getattr(batch, field)
        if given.dtype != array.dtype:
            # What was rounded on its way to the device is judged as it was: -1e-300 became -0.0 there.
            fine = finite_and_not_negative(np.asarray(given)).all(axis=-1)
        error = summation_error(batch.shape[2], how.unit) + how.reading_error
        check_distributions(batch, field, sums, fine, error, tolerance)


def _settle(batch: Batch, evidence: kernel.Evidence | None) -> Verification:
    """Take the kernel's decisions where their margins exceed their bounds, and make the others exactly."""
    rows, positions, _ = batch.shape
    if evidence is None:
        evidence = _no_evidence(rows, positions)
    lengths = batch.draft_lengths
    drafted = np.arange(positions) < lengths[:, None]
    with np.errstate(all="ignore"):
        margin = np.array(evidence.accept_margin, np.float64)
        sure = np.abs(evidence.accept_margin) > evidence.accept_bound  # written so that NaN is not sure
        draw_sure = (
            np.minimum(evidence.through - evidence.threshold, evidence.threshold - evidence.below)
            > evidence.draw_bound
        )

    passes = drafted & (margin > 0)
    accept_exact = np.zeros_like(drafted)
    # Doubt about a position matters only when no earlier one has surely failed.
    failed = drafted & sure & ~passes
    reached: np.ndarray = np.cumsum(failed, axis=1) - failed == 0
    doubtful = drafted & ~sure & reached
    for row in np.flatnonzero(doubtful.any(axis=1)).tolist():
        for position in np.flatnonzero(doubtful[row]).tolist():
            exactly = _accept_exactly(batch, row, position)
            accept_exact[row, position] = True
            margin[row, position] = exact.to_float(exactly)
            passes[row, position] = exactly > 0
            if exactly <= 0:
                break
    num_accepted = np.cumprod(passes, axis=1, dtype=np.int32).sum(axis=1, dtype=np.int32)

    token = evidence.token.copy()
    draws = [np.array(field, np.float64) for field in evidence[6:10]]
    empty = np.zeros(rows, bool)
    draw_exact = ~(draw_sure & (num_accepted == evidence.num_accepted))
    for row in np.flatnonzero(draw_exact).tolist():
        drawn = _draw_exactly(batch, row, int(num_accepted[row]))
        token[row], empty[row] = drawn.token, drawn.empty_residual
        for field, number in zip(draws, (drawn.mass, drawn.threshold, drawn.below, drawn.through), strict=True):
            field[row] = number

    kept = np.arange(positions) < num_accepted[:, None]
    tokens = np.full((rows, positions + 1), PAD, np.int32)
    tokens[:, :positions][kept] = batch.draft_tokens[kept]
    tokens[np.arange(rows), num_accepted] = token
    mass, threshold, below, through = draws
    return Verification(
        num_accepted=num_accepted,
        tokens=tokens,
        draft_lengths=lengths,
        passed=kept,
        draft_token_probs=_token_probs(batch, "draft_probs", evidence.draft_token_probs),
        target_token_probs=_token_probs(batch, "target_probs", evidence.target_token_probs),
        accept_margin=margin,
        accept_exact=accept_exact,
        mass=mass,
        threshold=threshold,
        below=below,
        through=through,
        draw_exact=draw_exact,
        empty_residual=empty,
    )


def _token_probs(batch: Batch, field: str, gathered: Any) -> np.ndarray:
    """The probabilities of the draft tokens (B, G), from the input itself where the device got it rounded."""
    given = getattr(batch, field)
    if given.dtype == gathered.dtype or batch.shape[0] == 0:
        return np.asarray(gathered, np.float64)
    rows, positions = np.indices(batch.draft_tokens.shape)
    drafted = batch.draft_tokens != PAD
    picked = np.asarray(given)[rows, positions, np.where(drafted, batch.draft_tokens, 0)]
    return np.where(drafted, picked, 0.0)


def _accept_exactly(batch: Batch, row: int, position: int) -> Fraction:
    """P − u·q at one position."""
    index = (row, position, int(batch.draft_tokens[row, position]))
    return exact.accept_margin(
        float(batch.accept_uniforms[row, position]),
        entry_at(batch, "draft_probs", index),
        entry_at(batch, "target_probs", index),
        batch.reading,
    )


def _draw_exactly(batch: Batch, row: int, position: int) -> exact.Draw:
    """The correction token at a position, or the bonus token when the position is the draft's length."""
    p = entries_at(batch, "target_probs", row, position)
    is_bonus = position == batch.draft_lengths[row]
    q = None if is_bonus else entries_at(batch, "draft_probs", row, position)
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


def _no_evidence(rows: int, positions: int) -> kernel.Evidence:
    """What the kernel would return for no rows, whose vocabulary may be empty too."""
    row, place = np.zeros(rows), np.zeros((rows, positions))
    ids = np.zeros(rows, np.int32)
    return kernel.Evidence(ids, ids, place, place, place, place, row, row, row, row, row)  # type: ignore[arg-type]
