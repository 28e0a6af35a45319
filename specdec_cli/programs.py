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
from threading import Lock
from typing import Any

import jax
import jaxlib.version
from jax.experimental import serialize_executable

from specdec_cli import kernel, mesh, rounding, sums
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
        self._lock = Lock()  # so that threads compile a program once

    def run(
        self, function: Any, arrays: Mapping[str, Any], devices: tuple[jax.Device, ...], **options: Any
    ) -> Any:
        """Call a jitted function; a program for it is loaded, or else compiled and kept.

        Args:
          function: a function of `kernel.py`.
          arrays: its arrays by name, NumPy or JAX.
          devices: where it computes: JAX's default device as of now, or all that the arrays are spread over.
          options: its static arguments.
        """
        if self._folder is None or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return function(**arrays, **options)
        shapes = tuple((name, array.shape, array.dtype.name) for name, array in arrays.items())
        key = function.__name__, shapes, tuple(options.items()), str(devices)
        with self._lock:
            program = self._loaded.get(key)
            if program is None:
                made_from = repr((key, _made_from(devices[0]), self._sources)).encode()
                path = self._folder / (_DIGEST(made_from).hexdigest() + SUFFIX)
                program = _load(path, devices) or _compile(path, function, arrays, options)
                self._loaded[key] = program
        return program(**arrays)

    @cached_property
    def _sources(self) -> list[bytes]:
        """What the functions are written as, wherever they were imported from."""
        specs = [module.__spec__ for module in (kernel, sums, rounding, mesh)]
        return [_DIGEST(spec.loader.get_data(spec.origin)).digest() for spec in specs]  # type: ignore[union-attr]


def _made_from(device: jax.Device) -> list[Any]:
    """What a program depends on, besides its function and arguments."""
    settings = sorted(item for item in os.environ.items() if item[0].startswith(_SETTINGS))
    platform = device.platform, device.device_kind, device.client.platform_version
    return [jax.__version__, jaxlib.version.__version__, platform, settings]


def _load(path: Path, devices: tuple[jax.Device, ...]) -> Callable[..., Any] | None:
    """The program that is kept there, whole; None if there is none, or not for this JAX."""
    with suppress(Exception):  # it is only a cache
        # O_NONBLOCK, so that a FIFO in its place is not waited for.
        flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(os.open(path, os.O_RDONLY | flags), "rb") as file:
            if hasattr(os, "geteuid") and os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            data = file.read()
        digest, program = data[: _DIGEST().digest_size], data[_DIGEST().digest_size :]
        if _digest(path, program) == digest:
            os.utime(path)  # it was used
            executable, in_tree, out_tree = pickle.loads(program)
            loaded: Callable[..., Any] = serialize_executable.deserialize_and_load(
                executable, in_tree, out_tree, backend=devices[0].client, execution_devices=devices
            )
            return loaded
    return None


def _digest(path: Path, program: bytes) -> bytes:
    """Of a program and its name, so that one in another's place is none."""
    return _DIGEST(os.fsencode(path.name) + program).digest()


def _compile(path: Path, function: Any, arrays: Mapping[str, Any], options: Any) -> Callable[..., Any]:
    compiled: jax.stages.Compiled = function.lower(**arrays, **options).compile()
    unfinished = path.with_name(f"{path.name}-{os.getpid()}")
    with suppress(Exception):
        program = pickle.dumps(serialize_executable.serialize(compiled))
        try:
            unfinished.write_bytes(_digest(path, program) + program)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return compiled
