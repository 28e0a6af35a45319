"""Rows over several devices of this process: one mesh axis, and each device with rows of its own.

Rows know nothing of each other, so nothing passes between the devices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from specdec_cli.batch import is_jax
from specdec_cli.shapes import FILLERS

ROWS = "rows"
"""The mesh axis."""
_BY_ROWS = PartitionSpec(ROWS)  # type: ignore[no-untyped-call]


@cache
def mesh_of(devices: tuple[jax.Device, ...]) -> Mesh:
    """The devices along one axis."""
    return jax.make_mesh((len(devices),), (ROWS,), axis_types=(AxisType.Auto,), devices=devices)


def spread(name: str, array: Any, mesh: Mesh) -> jax.Array:
    """Give each device an equal number of rows, and no other.

    Args:
      name: of the array; what fills it up goes by that.
      array: NumPy or JAX, with a leading axis B, at least 1.
      mesh: over the devices.

    Returns:
      The array, filled up to a multiple of the devices' number by rows of an empty draft and of no probability.
    """
    devices = list(mesh.devices.flat)
    share, sharding = -(-len(array) // len(devices)), NamedSharding(mesh, _BY_ROWS)
    if is_jax(array) and len(array) == share * len(devices):
        moved: jax.Array = jax.device_put(array, sharding)  # from device to device, if it is not there already
        return moved
    shards = []
    for number, device in enumerate(devices):
        own = array[number * share : (number + 1) * share]
        if missing := share - len(own):
            rows = np.full((missing, *array.shape[1:]), FILLERS.get(name, 0), array.dtype)
            own = (jnp if is_jax(array) else np).concatenate([own, rows])
        shards.append(jax.device_put(own, device))
    shape = (share * len(devices), *array.shape[1:])
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


@cache
def on_every_device(function: Callable[..., Any], mesh: Mesh) -> Any:
    """A jitted function of `kernel.py`, each device working on the rows that it has."""

    def of_own_rows(*, how: Any, one_by_one: bool, **arrays: Any) -> Any:
        own = partial(function, how=how, one_by_one=one_by_one)
        # What a loop carries from row to row varies from device to device, which the checker cannot see.
        return jax.shard_map(
            lambda arrays: own(**arrays), mesh=mesh, in_specs=_BY_ROWS, out_specs=_BY_ROWS, check_vma=False
        )(arrays)

    of_own_rows.__name__ = function.__name__
    return jax.jit(of_own_rows, static_argnames=("how", "one_by_one"))
