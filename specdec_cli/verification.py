"""One `Batch` → one `Verification`: devices, validation, the kernel, and then `decide.py`.

(The module is not called `verify`, because importing it would then put it in the place of the function
`specdec_cli.verify`.)
"""

from __future__ import annotations

import warnings
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_cli import exact, kernel
from specdec_cli.batch import AXES, Batch, Reading, is_jax, make_batch
from specdec_cli.buffers import Scratch
from specdec_cli.decide import Verification, decide, empty_residual_texts, no_rows
from specdec_cli.devices import computes_float64, default_platform, find_device, platform_of
from specdec_cli.errors import EmptyResidualWarning, InputError
from specdec_cli.kernel import Evidence
from specdec_cli.rounding import Precision, precision, summation_error
from specdec_cli.shapes import Piece, pieces
from specdec_cli.threads import in_threads, number_of_cores
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
    threads = number_of_cores() if platform == "cpu" else 1
    compute = partial(
        _compute,
        scratch=Scratch(),
        positions=batch.shape[1],
        how=how,
        where=where,
        one_by_one=platform == "cpu",
        validate=validate,
    )
    found = list(in_threads(compute, list(pieces(batch, threads, validate=validate)), threads))
    evidence, sums = found[0] if len(found) == 1 else jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    if validate:
        if dtype == "float32":
            sums = _judged_as_given(batch, sums)
        # The zeros of padding are added without rounding, so V is the batch's own.
        error = summation_error(batch.shape[2], how.unit) + how.reading_error
        check_distributions(batch, sums, error, sum_tolerance)
    return decide(batch, evidence)


def _compute(
    piece: Piece,
    scratch: Scratch,
    positions: int,
    how: Precision,
    where: jax.Device | None,
    one_by_one: bool,
    validate: bool,
) -> tuple[Evidence, dict[str, np.ndarray]]:
    """The kernel's evidence, and with `validate` its sums, of a piece's own rows and positions."""
    # A context, because the caller's process may well want float32 everywhere else.
    # Padding may hold NaN, and what overflows in float32 is decided exactly: neither is a fault to stop at.
    with jax.enable_x64(how.dtype == "float64"), jax.debug_nans(False), jax.debug_infs(False):
        placed = {name: _for_the_kernel(array, how.dtype, where) for name, array in piece.arrays.items()}
        if one_by_one:
            placed = {name: x if is_jax(x) else scratch.aligned(name, x) for name, x in placed.items()}
        program = kernel.verify_rows_and_sums if validate else kernel.verify_rows
        got = program(**placed, first=np.int32(piece.first), count=piece.count, how=how, one_by_one=one_by_one)
        evidence, sums = jax.tree.map(np.asarray, got if validate else (got, {}))
    cut = (part[piece.own, :positions] if part.ndim == 2 else part[piece.own] for part in evidence)
    own = {field: part[piece.own, : positions + (field == "target_probs")] for field, part in sums.items()}
    return Evidence._make(cut), own


def _judged_as_given(batch: Batch, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Mark what was no probability before it was rounded on its way to the device: -1e-300 became -0.0 there."""
    marked = dict(sums)
    for field in sums:
        given = getattr(batch, field)
        if given.dtype == np.float64:
            fine = finite_and_not_negative(np.asarray(given)).all(axis=-1)
            marked[field] = np.where(fine, sums[field], np.nan)
    return marked


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


def _for_the_kernel(array: Any, dtype: str, where: jax.Device | None) -> Any:
    """In the float type of the computation where that is narrower, on the device where that is not the default."""
    if dtype == "float32" and array.dtype == np.float64:
        with np.errstate(all="ignore"):  # what overflows becomes infinity, which the exact path then decides
            array = np.asarray(array).astype(np.float32)
    return array if where is None else jax.device_put(array, where)
