"""One `Batch` → one `Verification`: the kernel (`compute.py`), and then `decide.py`.

(The module is not called `verify`, because importing it would then put it in the place of the function
`specdec_cli.verify`.)
"""

from __future__ import annotations

import warnings
from functools import partial
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_cli import exact
from specdec_cli.batch import Batch, Reading, is_jax, make_batch
from specdec_cli.compute import evidence_of, joined_rows, task_for
from specdec_cli.decide import Verification, decide, empty_residual_texts, joined, no_rows
from specdec_cli.errors import EmptyResidualWarning, InputError
from specdec_cli.programs import Programs
from specdec_cli.settings import DEFAULTS, Settings
from specdec_cli.shapes import first_row, parts, read_to_end
from specdec_cli.structure import ANSWER_AXES, AXES


def verify_batch(
    batch: Batch, settings: Settings = DEFAULTS, *, dtype: str | None = None, programs: Programs | None = None
) -> Verification:
    """Verify every row of a batch, exactly.

    Args:
      batch: the input.
      settings: whether it is validated, and where it is computed.
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
    task = task_for(batch, settings, dtype, programs)
    found: list[Verification] = []
    try:
        for part in parts(batch):
            found.append(decide(part, evidence_of(task.compute(part))))
    except InputError as error:
        read_to_end(batch)  # damage, if there is any, says more than what was made of the numbers
        raise error.moved(first_row(batch) + sum(len(part.num_accepted) for part in found)) from None
    return joined(Verification, found) if found else no_rows(batch)


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
        answer, texts = _answer(batch, Settings(validate, tolerance, devices=devices))
        hand_over = _handed_over if is_jax(batch.target_probs) else partial(jax.tree.map, jnp.asarray)
        arrays: dict[str, jax.Array] = hand_over(answer)
    for text in texts:
        warnings.warn(text, EmptyResidualWarning, stacklevel=3)
    return arrays


def _answer(batch: Batch, settings: Settings) -> tuple[dict[str, np.ndarray], list[str]]:
    """The answer, and what is to be said of it.

    Where floats sufficed for all rows it is the kernel's, and nothing else of the evidence leaves the device.
    """
    if batch.shape[0] == 0:
        decided = no_rows(batch)
    else:
        computed = task_for(batch, settings, None, None).compute(batch)
        if all(each.own("sure").all() for each in computed):
            return {name: joined_rows(each.own(name) for each in computed) for name in ANSWER_AXES}, []
        decided = decide(batch, evidence_of(computed))
    return {name: getattr(decided, name) for name in ANSWER_AXES}, empty_residual_texts(decided)


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
