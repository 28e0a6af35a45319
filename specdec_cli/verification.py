"""One `Batch` → one `Verification`: devices, validation, the kernel, and then `decide.py`.

(The module is not called `verify`, because importing it would then put it in the place of the function
`specdec_cli.verify`.)
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_cli import exact, kernel
from specdec_cli.batch import Batch, Reading, is_jax, make_batch
from specdec_cli.buffers import Scratch
from specdec_cli.decide import Verification, decide, empty_residual_texts, joined, no_rows
from specdec_cli.devices import computes_float64, default_device, devices_beside, find_device, home_of
from specdec_cli.errors import EmptyResidualWarning, InputError
from specdec_cli.kernel import Evidence
from specdec_cli.mesh import mesh_of, on_every_device, spread
from specdec_cli.programs import Programs
from specdec_cli.rounding import Precision, precision, summation_error
from specdec_cli.shapes import Piece, first_row, parts, pieces, read_to_end
from specdec_cli.structure import AXES, PROB_FIELDS
from specdec_cli.threads import in_threads, number_of_cores
from specdec_cli.validate import check_distributions, finite_and_not_negative


def verify_batch(
    batch: Batch,
    *,
    validate: bool = True,
    sum_tolerance: Fraction | None = None,
    device: str | None = None,
    devices: int | str | None = None,
    dtype: str | None = None,
    programs: Programs | None = None,
) -> Verification:
    """Verify every row of a batch, exactly.

    Args:
      batch: the input.
      validate: check that the probabilities are distributions. Without it, an input that is not may be refused
        or answered, by chance; one that is (or only sums to something else) is answered all the same.
      sum_tolerance: how far from 1 a sum may be, exclusive; by default 1e-3, and 1e-2 for 16-bit floats.
      device: "cpu", "gpu" or "tpu"; by default JAX's default device, or where the probabilities are.
      devices: over how many devices of that kind rows are shared, 1 or more, or "all"; by default that one alone.
      dtype: what the kernel computes in; by default "float64" where the device has it, else "float32".
        The answer does not depend on it.
      programs: compiled ones that are kept; by default none are.

    Returns:
      The answer with its evidence.

    Raises:
      InputError: a row is not a distribution, or (without `validate`) holds a value that cannot be decided on.
      EnvironmentFault: there is no such device, or there are not so many.
    """
    if batch.shape[0] == 0:
        return no_rows(batch)
    where = find_device(device)
    if where is None and is_jax(batch.draft_probs) and is_jax(batch.target_probs):
        homes = batch.draft_probs.devices(), batch.target_probs.devices()
        if homes[0] != homes[1] and devices is None:
            raise InputError(
                f"is on {homes[0]}, target_probs on {homes[1]}", "put both on one device", field="draft_probs"
            )
    if where is None:
        on_device = [probs for probs in (batch.target_probs, batch.draft_probs) if is_jax(probs)]
        where = home_of(on_device[0]) if on_device else default_device()
    dtype = dtype or ("float64" if computes_float64(where.platform) else "float32")
    how = precision(
        dtype,
        decimal=batch.reading is Reading.DECIMAL,
        input_bits=8 * min(getattr(batch, field).dtype.itemsize for field in PROB_FIELDS),
    )
    chosen = (where,) if devices is None else devices_beside(where, devices)
    moves = device is not None or devices is not None
    task = _Task(how, chosen, moves, validate, sum_tolerance, programs or Programs(None))
    found: list[Verification] = []
    try:
        for part in parts(batch):
            found.append(task.verify(part))
    except InputError as error:
        read_to_end(batch)  # damage, if there is any, says more than what was made of the numbers
        raise error.moved(first_row(batch) + sum(len(part.num_accepted) for part in found)) from None
    return joined(Verification, found) if found else no_rows(batch)


@dataclass(frozen=True)
class _Task:
    """What is to be done with every part of a batch."""

    how: Precision
    devices: tuple[jax.Device, ...]
    moves: bool
    """Arrays on another device are to be computed with here."""
    validate: bool
    sum_tolerance: Fraction | None
    programs: Programs
    scratch: Scratch = field(default_factory=Scratch)

    def verify(self, part: Batch) -> Verification:
        """The answer for rows that are in memory."""
        threads = number_of_cores() if self.on_cpu and len(self.devices) == 1 else 1
        _, positions, vocabulary = part.shape
        computed = in_threads(
            partial(self.compute, positions=positions),
            list(pieces(part, threads, validate=self.validate)),
            threads,
        )
        evidence, sums = (
            computed[0] if len(computed) == 1 else jax.tree.map(lambda *arrays: np.concatenate(arrays), *computed)
        )
        if self.validate:
            if self.how.dtype == "float32":
                sums = _judged_as_given(part, sums)
            # The zeros of padding are added without rounding, so V is the batch's own.
            error = summation_error(vocabulary, self.how.unit) + self.how.reading_error
            check_distributions(part, sums, error, self.sum_tolerance)
        return decide(part, evidence)

    @property
    def on_cpu(self) -> bool:
        """Rows are computed one by one, in memory that JAX can take as it is."""
        return bool(self.devices[0].platform == "cpu")

    def compute(self, piece: Piece, positions: int) -> tuple[Evidence, dict[str, np.ndarray]]:
        """The kernel's evidence, and where it is asked for its sums, of a piece's own rows and positions."""
        # Contexts, because the caller's process may well want something else, and every thread has its own.
        # Padding may hold NaN, and what overflows in float32 is decided exactly: neither is a fault to stop at.
        with (
            ExitStack() as surroundings,
            jax.enable_x64(self.how.dtype == "float64"),
            jax.default_device(self.devices[0]),
            jax.debug_nans(False),
            jax.debug_infs(False),
            jax.transfer_guard("allow"),
        ):
            placed = {name: self.placed(name, array) for name, array in piece.arrays.items()}
            function = kernel.verify_rows_and_sums if self.validate else kernel.verify_rows
            options: dict[str, Any] = {"how": self.how, "one_by_one": self.on_cpu}
            if len(self.devices) > 1:
                mesh = mesh_of(self.devices)
                function = on_every_device(function, mesh)
                surroundings.enter_context(jax.set_mesh(mesh))  # a mesh of the caller's is another
                placed = {name: spread(name, array, mesh) for name, array in placed.items()}
            elif piece.count < len(piece.arrays["draft_tokens"]):
                placed["first"] = np.int32(piece.first)
                options["count"] = piece.count
            got = self.programs.run(function, placed, self.devices, **options)
            evidence, sums = jax.tree.map(np.asarray, got if self.validate else (got, {}))
        cut = (part[piece.own, :positions] if part.ndim == 2 else part[piece.own] for part in evidence)
        own = {name: part[piece.own, : positions + (name == "target_probs")] for name, part in sums.items()}
        return Evidence._make(cut), own

    def placed(self, name: str, array: Any) -> Any:
        """An array in the kernel's float type, if that is narrower, and where it is to be computed with."""
        if self.how.dtype == "float32" and array.dtype == np.float64:
            with np.errstate(all="ignore"):  # what overflows becomes infinity, which the exact path then decides
                array = np.asarray(array).astype(np.float32)
        if self.moves and is_jax(array) and len(self.devices) == 1:
            array = jax.device_put(array, self.devices[0])
        return array if is_jax(array) or not self.on_cpu else self.scratch.aligned(name, array)


def _judged_as_given(batch: Batch, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Mark what was no probability before it was rounded on its way to the device: -1e-300 became -0.0 there."""
    marked = dict(sums)
    for name in sums:
        given = getattr(batch, name)
        if given.dtype == np.float64:
            fine = finite_and_not_negative(np.asarray(given)).all(axis=-1)
            marked[name] = np.where(fine, sums[name], np.nan)
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
    devices: int | str | None = None,
) -> dict[str, jax.Array]:
    """`specdec_cli.verify`; see there."""
    given = (draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms)
    with jax.transfer_guard("allow"):  # what is moved here, and how much of it, does not depend on the caller
        batch = make_batch(dict(zip(AXES, given, strict=True)))
        tolerance = None if sum_tolerance is None else exact.value(sum_tolerance, Reading.DECIMAL)
        if devices is not None and devices != "all":
            devices = _number_of(devices)
        verification = verify_batch(batch, validate=validate, sum_tolerance=tolerance, devices=devices)
        answer = {"num_accepted": verification.num_accepted, "tokens": verification.tokens}
        hand_over = _handed_over if is_jax(batch.target_probs) else partial(jax.tree.map, jnp.asarray)
        arrays: dict[str, jax.Array] = hand_over(answer)
    for text in empty_residual_texts(verification):
        warnings.warn(text, EmptyResidualWarning, stacklevel=3)
    return arrays


def _number_of(devices: Any) -> int:
    try:
        number = 0 if isinstance(devices, bool) else index(devices)
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(f"devices is {devices!r}, expected a number of 1 or more, or 'all'")
    return number


@jax.jit
def _handed_over(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, in JAX's arrays in a third of the time that `jnp.asarray` takes, once this shape is compiled."""
    arrays: dict[str, Any] = jax.tree.map(jnp.asarray, answer)
    return arrays
