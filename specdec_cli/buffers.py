"""Memory that JAX takes on a CPU without a copy: aligned, and used again.

JAX copies an array that is not aligned at 2 GB/s, into memory that is new to the process each time.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Bytes; at this JAX uses an array's memory as it is."""
FEW = 1 << 14
"""Bytes that JAX copies sooner than it is found out whether it has to."""


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An aligned array whose entries are not set."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


class Scratch:
    """Aligned copies of arrays, one for each thread and name: the next takes the place of the last."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def aligned(self, name: str, array: np.ndarray) -> np.ndarray:
        """The array itself, if it is small or JAX can take its memory; else a copy till the next of that name."""
        if array.nbytes <= FEW or (array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0):
            return array
        memory = self._of_thread.__dict__.get(name)
        if memory is None or memory.size < array.size or memory.dtype != array.dtype:
            memory = self._of_thread.__dict__[name] = empty((array.size,), array.dtype)
        copy: np.ndarray = memory[: array.size].reshape(array.shape)
        np.copyto(copy, array)
        return copy
