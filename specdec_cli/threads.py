"""Work that releases the interpreter's lock, shared between this machine's cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def number_of_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(function: Callable[[_T], _R], items: Sequence[_T], threads: int) -> list[_R]:
    """The function of each item, in order, several at a time; the first in this thread, which would only wait."""
    if len(items) == 1 or threads == 1:
        return [function(item) for item in items]
    others = [_pool(threads).submit(function, item) for item in items[1:]]
    return [function(items[0]), *(other.result() for other in others)]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "specdec")
