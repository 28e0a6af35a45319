"""`Batch`: the five named arrays of a verification step. Having one means that its structure was checked.

Axes, here and everywhere: B rows, G draft positions, V vocabulary entries.

Checked: types and shapes (`structure.py`), token ids, noise. Not checked: the probabilities' values, which costs a
pass over all of them (`validate.py`). This module knows no files and imports no JAX; probabilities that live
on a device stay there.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec_cli.errors import InputError
from specdec_cli.rows import RowsInFile
from specdec_cli.structure import AXES, check_structure, is_prob

PAD = -1
"""Fills `tokens` after the last token, and `draft_tokens` after a shorter draft."""


class Reading(enum.Enum):
    """What a number in the input stands for."""

    BINARY = "binary"
    """Its exact binary value: NPZ files and arrays."""
    DECIMAL = "decimal"
    """The shortest decimal that reads back as the same double: JSON, where that is what was written."""


@dataclass(frozen=True, eq=False)
class Batch:
    """B verification steps of equal G and V."""

    draft_tokens: np.ndarray
    """int32 (B, G) in [0, V), `PAD` after a shorter draft."""
    draft_probs: Any
    """NumPy, JAX or `RowsInFile`, one of `PROB_DTYPES` in native byte order, (B, G, V): q."""
    target_probs: Any
    """The same, (B, G + 1, V): p."""
    accept_uniforms: np.ndarray
    """float64 (B, G) in [0, 1): u; 0 where a shorter draft has no position."""
    sample_uniforms: np.ndarray
    """float64 (B,) in [0, 1): s."""
    reading: Reading = Reading.BINARY
    source: str | None = None
    """The input's name for messages, None for arrays from Python."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, G, V)."""
        rows, positions = self.draft_tokens.shape
        return rows, positions, self.target_probs.shape[2]

    @property
    def draft_lengths(self) -> np.ndarray:
        """L for each row, intp (B,): the number of draft tokens before the padding."""
        return np.asarray(np.count_nonzero(self.draft_tokens != PAD, axis=1))

    def draft_length(self, row: int) -> int:
        """L for one row, without a look at the others."""
        return int(np.count_nonzero(self.draft_tokens[row] != PAD))


def make_batch(
    fields: Mapping[str, Any], *, reading: Reading = Reading.BINARY, source: str | None = None
) -> Batch:
    """Check the structure of five arrays and bind them together.

    Args:
      fields: the arrays by name, NumPy, JAX, or anything `numpy.asarray` takes; other names are ignored.
      reading: what the numbers stand for.
      source: the input's name, for messages.

    Returns:
      A batch whose shapes agree, whose ids are in [0, V) and whose noise is in [0, 1).

    Raises:
      InputError: with field and index.
      TypeError: an array is a JAX tracer.
    """
    try:
        missing = [name for name in AXES if name not in fields]
        if missing:
            found = f"found {', '.join(map(str, fields))}" if fields else "found none of them"
            raise InputError(
                f"is missing {', '.join(missing)}", f"an input has the arrays {', '.join(AXES)}; {found}"
            )
        arrays = check_structure({name: _array(name, fields[name]) for name in AXES})
        vocabulary = arrays["target_probs"].shape[2]
        draft_tokens = _token_ids(arrays["draft_tokens"], vocabulary)
        return Batch(
            draft_tokens=draft_tokens,
            draft_probs=_as_floats("draft_probs", arrays["draft_probs"]),
            target_probs=_as_floats("target_probs", arrays["target_probs"]),
            accept_uniforms=_noise("accept_uniforms", arrays["accept_uniforms"], draft_tokens != PAD),
            sample_uniforms=_noise("sample_uniforms", arrays["sample_uniforms"], None),
            reading=reading,
            source=source,
        )
    except InputError as error:
        raise error.named(source) from None


def is_jax(array: Any) -> bool:
    """Whether an array is JAX's, without importing JAX for those who have not."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.Array)


def _array(name: str, value: Any) -> Any:
    """Anything to an array: JAX's and those in a file as they are, the rest as NumPy in native byte order."""
    if isinstance(value, RowsInFile):
        return value
    if is_jax(value):
        jax = sys.modules["jax"]
        if isinstance(value, jax.core.Tracer):
            raise TypeError(
                f"{name} is a tracer: verify decides exactly on the host and needs values, "
                "so it cannot run inside jax.jit, jax.vmap or another transformation"
            )
        # int4 and the like are integers of a width that NumPy has no kind for.
        kind = getattr(value.dtype, "kind", "?")
        narrow = kind not in "iuf" and value.dtype.name.startswith(("int", "uint"))
        return np.asarray(value).astype(np.int32) if narrow else value
    if np.ma.is_masked(value):
        raise InputError("has masked entries, expected plain numbers", "fill or drop them first", field=name)
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError("is ragged: its rows differ in length", "pad shorter drafts", field=name) from None
    except TypeError as error:
        raise InputError(
            f"cannot be read as an array: {error}", "a torch tensor: .float().cpu().numpy()", field=name
        ) from None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _first(mask: np.ndarray) -> tuple[int, ...]:
    """Index of the first True."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _token_ids(array: Any, vocabulary: int) -> np.ndarray:
    """int32 ids, compared before they are narrowed: 2**32 + 1 must not become 1."""
    ids = np.asarray(array)
    if ids.size == 0:
        return np.zeros(ids.shape, np.int32)
    lowest = ids.min()
    if lowest < PAD or ids.max() >= vocabulary:
        index = _first((ids < PAD) | (ids >= vocabulary))
        raise InputError(
            f"is {ids[index]}, expected a token id in 0..{vocabulary - 1}",
            f"V is {vocabulary}, the last axis of target_probs; only {PAD} may stand for "
            "'no draft token', at the end of a row",
            field="draft_tokens",
            index=index,
        )
    if lowest == PAD:
        padded = ids == PAD
        gaps = padded[:, :-1] & ~padded[:, 1:]
        if gaps.any():
            raise InputError(
                f"is {PAD}, before a token: expected a token id in 0..{vocabulary - 1}",
                f"{PAD} marks a shorter draft and can only be followed by more of it",
                field="draft_tokens",
                index=_first(gaps),
            )
    return ids.astype(np.int32)


def _as_floats(name: str, array: Any) -> Any:
    """Probabilities keep their float type; integers (one-hot rows, say) become float64 unrounded."""
    if is_prob(array.dtype):
        return array
    if array.size == 0:
        return np.zeros(array.shape)
    integers = np.asarray(array)
    beyond = (integers < -(2**53)) | (integers > 2**53)
    if beyond.any():
        index = _first(beyond)
        raise InputError(
            f"is {integers[index]}, which float64 cannot hold; expected a probability", field=name, index=index
        )
    return integers.astype(np.float64)


def _noise(name: str, array: Any, used: np.ndarray | None) -> np.ndarray:
    """float64 noise; positions that a shorter draft leaves out are not read and become 0."""
    found = np.asarray(array)
    if found.size == 0:
        return np.zeros(found.shape)
    with np.errstate(all="ignore"):  # whatever the caller has set
        noise = found.astype(np.float64)
    if used is not None:
        noise = np.where(used, noise, 0.0)
    if not (noise.min() >= 0 and noise.max() < 1):  # written so that NaN fails
        index = _first(~((noise >= 0) & (noise < 1)))
        value = float(found[index])
        hint = "uniform noise lies in [0, 1)"
        if value == 1.0:
            hint += "; rounding a uniform to a shorter float type is the usual cause of a 1.0"
        raise InputError(f"is {value!r}, expected a number in [0, 1)", hint, field=name, index=index)
    return noise
