"""One `Batch` → one `Verification`: devices, validation, the kernel, and then `decide.py`.

(The module is not called `verify`, because importing it would then put it in the place of the function
`specdec_cli.verify`.)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, cast

import jax
import numpy as np

from specdec_cli import exact, kernel
from specdec_cli.batch import AXES, Batch, Reading, is_jax, make_batch
from specdec_cli.decide import Verification, decide, empty_residual_texts, no_rows
from specdec_cli.devices import computes_float64, default_platform, find_device, platform_of
from specdec_cli.errors import EmptyResidualWarning, InputError
from specdec_cli.kernel import Evidence
from specdec_cli.rounding import Precision, precision, summation_error
from specdec_cli.shapes import pieces
from specdec_cli.validate import PROB_FIELDS, check_distributions, finite_and_not_negative


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
        return no_rows(batch)
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
    # A context, because the caller's process may well want float32 everywhere else.
    # Padding may hold NaN, and what overflows in float32 is decided exactly: neither is a fault to stop at.
    with jax.enable_x64(dtype == "float64"), jax.debug_nans(False), jax.debug_infs(False):
        found = [
            _compute(count, arrays, batch.shape, how, where, platform == "cpu", validate)
            for count, arrays in _pieces(batch)
        ]
    evidence = Evidence._make(map(np.concatenate, zip(*(part for part, _ in found), strict=True)))
    if validate:
        for field in found[0][1]:
            sums, fine = map(np.concatenate, zip(*(part[field] for _, part in found), strict=True))
            given = getattr(batch, field)
            if dtype == "float32" and given.dtype == np.float64:
                # What was rounded on its way to the device is judged as it was: -1e-300 became -0.0 there.
                fine = finite_and_not_negative(np.asarray(given)).all(axis=-1)
            # The zeros of padding are added without rounding, so V is the batch's own.
            error = summation_error(batch.shape[2], how.unit) + how.reading_error
            check_distributions(batch, field, sums, fine, error, sum_tolerance)
    return decide(batch, evidence)


def _pieces(batch: Batch) -> Iterable[tuple[int, dict[str, Any]]]:
    """Arrays that live on a device stay as they are."""
    if is_jax(batch.draft_probs) or is_jax(batch.target_probs):
        return [(batch.shape[0], {name: getattr(batch, name) for name in AXES})]
    return pieces(batch)


def _compute(
    count: int,
    arrays: dict[str, Any],
    shape: tuple[int, int, int],
    how: Precision,
    where: jax.Device | None,
    one_by_one: bool,
    validate: bool,
) -> tuple[Evidence, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """The kernel's evidence, and with `validate` its sums and signs, without what belongs to padding."""
    placed = {name: _on_device(array, how.dtype, where) for name, array in arrays.items()}
    if validate:
        evidence, sums = jax.device_get(kernel.verify_rows_and_sums(**placed, how=how, one_by_one=one_by_one))
    else:
        evidence, sums = jax.device_get(kernel.verify_rows(**placed, how=how, one_by_one=one_by_one)), {}
    of_positions = shape[1]
    own = {
        field: tuple(part[:count, : of_positions + (field == "target_probs")] for part in parts)
        for field, parts in sums.items()
    }
    cut = (part[:count, :of_positions] if part.ndim == 2 else part[:count] for part in evidence)
    return Evidence._make(cut), own


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
        "num_accepted": jax.device_put(verification.num_accepted),
        "tokens": jax.device_put(verification.tokens),
    }


def _on_device(array: Any, dtype: str, where: jax.Device | None) -> jax.Array:
    if dtype == "float32" and array.dtype == np.float64:
        with np.errstate(all="ignore"):  # what overflows becomes infinity, which the exact path then decides
            array = np.asarray(array).astype(np.float32)
    if is_jax(array) and where is None:
        return cast(jax.Array, array)
    return cast(jax.Array, jax.device_put(array, where))
