"""JAX, loaded when it is needed: it takes longer than all the rest."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

from specdec_cli.cache import prepare
from specdec_cli.errors import EnvironmentFault

if TYPE_CHECKING:
    from specdec_cli.decide import Verification


@cache
def load_verify_batch() -> Callable[..., Verification]:
    """`verification.verify_batch`, with the programs of earlier processes.

    Raises:
      EnvironmentFault: JAX cannot be loaded.
    """
    found = prepare()
    with loading_jax():
        from specdec_cli.programs import Programs
        from specdec_cli.verification import verify_batch
    return partial(verify_batch, programs=Programs(found.folder if found.ours else None))


@contextmanager
def loading_jax() -> Iterator[None]:
    """JAX reads its settings from the environment when it is imported, and raises what it finds wrong."""
    if "JAX_LOGGING_LEVEL" not in os.environ:
        # JAX warns about a GPU whose plugin is not installed, and falls back. Where an answer is computed does
        # not change it, so that is no news; --device gpu says what is missing.
        logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)
    variables = ", ".join(name for name in os.environ if name.startswith(("JAX_", "XLA_"))) or "none is set"
    try:
        yield
    except Exception as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EnvironmentFault(
            f"JAX could not be loaded: {said}", f"its settings come from variables: {variables}"
        ) from None
