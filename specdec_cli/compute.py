"""Rows in memory → what the kernel makes of them, on the devices that are to work on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
from ml_dtypes import bfloat16

from specdec_cli import kernel
from specdec_cli.batch import Batch, Reading, is_jax
from specdec_cli.buffers import Scratch
from specdec_cli.devices import computes_float64, default_device, devices_beside, find_device, home_of
from specdec_cli.errors import InputError
from specdec_cli.kernel import Evidence
from specdec_cli.mesh import mesh_of, on_every_device, spread
from specdec_cli.programs import Programs
from specdec_cli.rounding import Precision, additions, precision, summation_error
from specdec_cli.settings import Settings
from specdec_cli.shapes import Piece, pieces
from specdec_cli.structure import PROB_FIELDS
from specdec_cli.sums import BFLOAT16_BITS
from specdec_cli.threads import in_threads, number_of_cores
from specdec_cli.validate import check_distributions, finite_and_not_negative


@dataclass(frozen=True)
class Computed:
    """What the kernel made of a piece of a batch, where it was made."""

    piece: Piece
    positions: int
    """G, of the batch."""
    evidence: Evidence
    sums: dict[str, Any]
    """Of the probabilities by field, (N, G) or (N, G + 1): those that were asked for, and are of something."""

    def own(self, name: str) -> np.ndarray:
        """A field of the evidence in memory, for the piece's own rows."""
        found = self._own(getattr(self.evidence, name), self.positions + (name == "tokens"))
        return found.view(bfloat16) if found.dtype == BFLOAT16_BITS else found

    def own_sums(self, name: str) -> np.ndarray:
        """The sums of a field in memory, for the piece's own rows."""
        return self._own(self.sums[name], self.positions + (name == "target_probs"))

    def _own(self, array: Any, positions: int) -> np.ndarray:
        rows = np.asarray(array)[self.piece.own]
        return rows if rows.ndim == 1 else rows[:, :positions]


def joined_rows(parts: Iterable[np.ndarray]) -> np.ndarray:
    """An array of consecutive pieces, one or more."""
    arrays = list(parts)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def evidence_of(computed: Sequence[Computed]) -> Evidence:
    """The evidence for consecutive pieces, as NumPy arrays."""
    return Evidence._make(joined_rows(each.own(name) for each in computed) for name in Evidence._fields)


@dataclass(frozen=True)
class Task:
    """What is to be done with every part of a batch."""

    how: Precision
    devices: tuple[jax.Device, ...]
    moves: bool
    """Arrays on another device are to be computed with here."""
    settings: Settings
    programs: Programs
    scratch: Scratch = field(default_factory=Scratch)

    def compute(self, part: Batch) -> list[Computed]:
        """What the kernel makes of rows that are in memory.

        Raises:
          InputError: they are to be validated, and a row is not a distribution.
        """
        threads = number_of_cores() if self.on_cpu and len(self.devices) == 1 else 1
        cut = list(pieces(part, threads, validate=self.settings.validate))
        computed = in_threads(partial(self._compute, positions=part.shape[1]), cut, threads)
        if self.settings.validate:
            sums = {name: joined_rows(each.own_sums(name) for each in computed) for name in computed[0].sums}
            if self.how.dtype == "float32":
                sums = _judged_as_given(part, sums)
            # The zeros of padding are added without rounding, so V is the batch's own.
            error = summation_error(additions(part.shape[2]), self.how.unit) + self.how.reading_error
            check_distributions(part, sums, error, self.settings.sum_tolerance)
        return computed

    @property
    def on_cpu(self) -> bool:
        """Rows are computed one by one, in memory that JAX can take as it is."""
        return bool(self.devices[0].platform == "cpu")

    def _compute(self, piece: Piece, positions: int) -> Computed:
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
            placed = {name: self._placed(name, array) for name, array in piece.arrays.items()}
            function = kernel.verify_rows_and_sums if self.settings.validate else kernel.verify_rows
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
            # Until then the memory that it is made from must not be used again.
            jax.block_until_ready(got)  # type: ignore[no-untyped-call]
        evidence, sums = got if self.settings.validate else (got, {})
        return Computed(piece, positions, evidence, sums)

    def _placed(self, name: str, array: Any) -> Any:
        """An array as the kernel wants it, and where it is to be computed with."""
        if self.how.dtype == "float32" and array.dtype == np.float64:
            with np.errstate(all="ignore"):  # what overflows becomes infinity, which the exact path then decides
                array = np.asarray(array).astype(np.float32)
        if self.moves and is_jax(array) and len(self.devices) == 1:
            array = jax.device_put(array, self.devices[0])
        if not self.on_cpu:
            return array
        if array.dtype == bfloat16 and not (is_jax(array) and len(array.devices()) > 1):
            # A view of JAX's own memory, where it is JAX's; what lies on several devices has no such view.
            array = np.asarray(array).view(BFLOAT16_BITS)
        return array if is_jax(array) else self.scratch.aligned(name, array)


def task_for(batch: Batch, settings: Settings, dtype: str | None, programs: Programs | None) -> Task:
    """What `settings` ask for, with a batch of at least one row.

    Args:
      batch: whose type, reading and place decide where and how precisely is computed.
      settings: what the caller asks for.
      dtype: what the kernel computes in; None for "float64" where the device has it, else "float32".
      programs: compiled ones that are kept; None keeps none.

    Raises:
      InputError: the probabilities are on two devices, and none was asked for.
      EnvironmentFault: there is no such device, or there are not so many.
    """
    where = find_device(settings.device)
    if where is None and is_jax(batch.draft_probs) and is_jax(batch.target_probs):
        homes = batch.draft_probs.devices(), batch.target_probs.devices()
        if homes[0] != homes[1] and settings.devices is None:
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
    chosen = (where,) if settings.devices is None else devices_beside(where, settings.devices)
    moves = settings.device is not None or settings.devices is not None
    return Task(how, chosen, moves, settings, programs or Programs(None))


def _judged_as_given(batch: Batch, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Mark what was no probability before it was rounded on its way to the device: -1e-300 became -0.0 there."""
    marked = dict(sums)
    for name in sums:
        given = getattr(batch, name)
        if given.dtype == np.float64:
            fine = finite_and_not_negative(np.asarray(given)).all(axis=-1)
            marked[name] = np.where(fine, sums[name], np.nan)
    return marked
