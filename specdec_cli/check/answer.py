"""`Answer`: what an engine said about a batch. Having one means that its structure was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec_cli.batch import PAD, Batch
from specdec_cli.errors import InputError
from specdec_cli.structure import ANSWER_AXES


@dataclass(frozen=True, eq=False)
class Answer:
    """An engine's answer for every row of a batch. Whether it is right is not checked here, nor in range."""

    num_accepted: np.ndarray
    """int64 (B,)."""
    tokens: np.ndarray
    """int64 (B, T): what the engine emitted, `PAD` behind the last token of a row; T need not be G + 1."""


def make_answer(fields: Mapping[str, Any], batch: Batch, source: str | None = None) -> Answer:
    """Check that two arrays can be an answer for a batch.

    Args:
      fields: the arrays by name; other names are ignored.
      batch: what was answered.
      source: the result's name, for messages.

    Raises:
      InputError: an array is missing, is not of integers, or has another number of rows than the batch.
    """
    missing = [name for name in ANSWER_AXES if name not in fields]
    if missing and "error" in fields:
        raise InputError("holds an error, and no answer", "what failed there must be mended first", source=source)
    if missing:
        found = f"found {', '.join(map(str, fields))}" if fields else "found none of them"
        raise InputError(
            f"is missing {', '.join(missing)}",
            f"an engine's answer has num_accepted (B,) and tokens (B, G+1), each row padded with {PAD}; {found}",
            source=source,
        )
    rows = batch.shape[0]
    arrays = {}
    for name, axes in ANSWER_AXES.items():
        array = np.asarray(fields[name])
        if array.size == 0 and not rows:
            array = np.zeros((0,) * len(axes), np.int64)
        if array.ndim != len(axes) or array.shape[0] != rows:
            raise InputError(
                f"has shape {array.shape}, expected ({', '.join(axes)}{',' * (len(axes) == 1)}) with B = {rows}, "
                "the rows of the input",
                source=source,
                field=name,
            )
        if array.dtype.kind not in "iu":
            raise InputError(f"holds {array.dtype} values, expected integers", source=source, field=name)
        arrays[name] = array.astype(np.int64)
    return Answer(**arrays)
