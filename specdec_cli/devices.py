"""Which device computes, and what to say when it is not there."""

from __future__ import annotations

import os
from contextlib import suppress

import jax

from specdec_cli.errors import EnvironmentFault

_SENSIBLE = 64
"""Devices into which a CPU may well be made."""
PLATFORMS = ("cpu", "gpu", "tpu")


def find_device(platform: str | None) -> jax.Device | None:
    """The first device of a platform, or None (JAX's default) for None.

    Raises:
      EnvironmentFault: there is none, or JAX cannot start; it says what is there.
    """
    try:
        if platform is not None:
            return jax.local_devices(backend=platform)[0]
        jax.local_devices()
    except Exception as error:  # JAX raises RuntimeError, AssertionError and others, by platform and version
        wanted = platform or os.environ.get("JAX_PLATFORMS") or "its default platform"
        raise EnvironmentFault(
            f"JAX could not start {wanted!r}{_chosen_by(platform)}; here there is: {_what_is_there()}",
            _advice(wanted, error),
        ) from None
    return None


def home_of(array: jax.Array) -> jax.Device:
    """The device, or the first of those, where an array lives."""
    return min(array.devices(), key=lambda device: device.id)


def default_device() -> jax.Device:
    """The device that a NumPy array goes to: the caller's choice for this thread, or JAX's."""
    chosen = jax.config.jax_default_device or jax.local_devices()[0]  # type: ignore[attr-defined]
    return jax.local_devices(backend=chosen)[0] if isinstance(chosen, str) else chosen


def devices_beside(device: jax.Device, number: int | str) -> tuple[jax.Device, ...]:
    """A device and others of its platform that this process has.

    Args:
      device: the first of them.
      number: how many, 1 or more, or "all".

    Raises:
      EnvironmentFault: there are not so many.
    """
    found = sorted(jax.local_devices(backend=device.platform), key=lambda each: each != device)
    if number == "all":
        return tuple(found)
    if int(number) > len(found):
        raise EnvironmentFault(
            f"{number} {device.platform} devices were asked for, and JAX has {len(found)} here",
            f"JAX_NUM_CPU_DEVICES={number} makes as many of one CPU"
            if device.platform == "cpu" and int(number) <= _SENSIBLE
            else "",
        )
    return tuple(found[: int(number)])


def computes_float64(platform: str) -> bool:
    """Whether the platform has IEEE float64; a TPU has not."""
    return platform in ("cpu", "gpu")


def _chosen_by(platform: str | None) -> str:
    if platform is not None:
        return " (--device)"
    return " (JAX_PLATFORMS)" if os.environ.get("JAX_PLATFORMS") else ""


def list_devices() -> dict[str, list[str]]:
    """What there is: platform → the kind of each of its devices. Never raises."""
    found = {}
    for platform in PLATFORMS:
        with suppress(Exception):
            found[platform] = [str(device.device_kind) for device in jax.devices(platform)]
    return found


def _what_is_there() -> str:
    found = [
        f"{platform} ({len(kinds)}, {', '.join(sorted(set(kinds)))})" for platform, kinds in list_devices().items()
    ]
    return "; ".join(found) or "no device that JAX can use with these settings"


def _advice(wanted: str, error: Exception) -> str:
    install = {
        "gpu": "pip install 'jax[cuda13]' (or cuda12) brings JAX's CUDA plugin",
        "cuda": "pip install 'jax[cuda13]' (or cuda12) brings JAX's CUDA plugin",
        "tpu": "pip install 'jax[tpu]' brings JAX's TPU runtime",
    }
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return install.get(wanted, f"JAX says: {first_line}; unset JAX_PLATFORMS to let JAX choose")
