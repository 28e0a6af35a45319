"""Compiled programs, kept for the next process.

JAX's own cache is asked only after a function has been traced and lowered, which takes several times as long as to
load what it finds, and longer than to verify a small input. Here a program is found by what it would be made from.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax.experimental import serialize_executable

from specdec_cli import kernel, rounding, sums
from specdec_cli.cache import SUFFIX

_DIGEST = hashlib.sha256
_SETTINGS = ("JAX_", "XLA_", "LIBTPU_")


class Programs:
    """The programs in a folder, which must be the user's alone: they are code.

    Args:
      folder: where they are; None keeps none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._loaded: dict[Any, Callable[..., Any]] = {}

    def run(self, function: Any, arrays: Mapping[str, Any], **options: Any) -> Any:
        """Call a jitted function; a program for it is loaded, or else compiled and kept.

        Args:
          function: a function of `kernel.py`.
          arrays: its arrays by name, NumPy or JAX, on JAX's default device.
          options: its static arguments.
        """
        if self._folder is None or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return function(**arrays, **options)
        shapes = tuple((name, array.shape, array.dtype.name) for name, array in arrays.items())
        key = function.__name__, shapes, tuple(options.items())
        program = self._loaded.get(key)
        if program is None:
            path = self._folder / (_DIGEST(repr((key, self._made_from)).encode()).hexdigest() + SUFFIX)
            program = self._loaded[key] = _load(path) or _compile(path, function, arrays, options)
        return program(**arrays)

    @cached_property
    def _made_from(self) -> list[Any]:
        """What a program depends on, besides its function's arguments."""
        device = jax.devices()[0]
        sources = [Path(module.__file__).read_bytes() for module in (kernel, sums, rounding) if module.__file__]
        settings = sorted(item for item in os.environ.items() if item[0].startswith(_SETTINGS))
        platform = device.platform, device.device_kind, device.client.platform_version
        return [
            jax.__version__,
            jaxlib.version.__version__,
            platform,
            settings,
            _DIGEST(b"".join(sources)).digest(),
        ]


def _load(path: Path) -> Callable[..., Any] | None:
    """The program that is kept there, whole; None if there is none, or not for this JAX."""
    with suppress(Exception):  # it is only a cache
        data = path.read_bytes()
        digest, program = data[: _DIGEST().digest_size], data[_DIGEST().digest_size :]
        if _DIGEST(program).digest() == digest:
            os.utime(path)  # it was used
            loaded: Callable[..., Any] = serialize_executable.deserialize_and_load(*pickle.loads(program))
            return loaded
    return None


def _compile(path: Path, function: Any, arrays: Mapping[str, Any], options: Any) -> Callable[..., Any]:
    compiled: jax.stages.Compiled = function.lower(**arrays, **options).compile()
    with suppress(Exception):
        program = pickle.dumps(serialize_executable.serialize(compiled))
        unfinished = path.with_name(f"{path.name}-{os.getpid()}")
        unfinished.write_bytes(_DIGEST(program).digest() + program)
        unfinished.replace(path)
    return compiled
