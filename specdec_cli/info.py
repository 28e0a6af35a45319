"""What `specdec info` tells: versions, devices, cache.

People run it when something is wrong, so a part that cannot be found out becomes words in its place.
"""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from importlib import metadata
from typing import Any

from specdec_cli import __version__, cache
from specdec_cli.errors import SpecdecError, text_of
from specdec_cli.loading import loading_jax

PACKAGES = ("jax", "jaxlib", "numpy", "ml_dtypes", "typer", "rich", "orjson")


def gather() -> dict[str, Any]:
    """All of it, as JSON can hold it."""
    settings = {k: v for k, v in sorted(os.environ.items()) if k.startswith(("JAX_", "XLA_", "SPECDEC_"))}
    kept = cache.prepare()
    entries = kept.entries()
    return {
        "specdec": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": _devices(),
        "settings": settings,
        "cache": {
            "folder": None if kept.folder is None else text_of(str(kept.folder)),
            "why": kept.reason,
            "entries": len(entries),
            "bytes": sum(entry.st_size for entry in entries),
            "limit": cache.LIMIT if kept.ours else None,
        },
    }


def _version(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _devices() -> dict[str, Any]:
    try:
        with loading_jax():
            from specdec_cli import devices
        devices.find_device(None)  # which says what is wrong
        default = devices.default_device().platform
    except SpecdecError as error:
        return {"error": error.sentence}
    float64 = devices.computes_float64(default)
    return {
        "default": default,
        "computes_in": "float64" if float64 else "float32",
        "found": devices.list_devices(),
    }


def to_json(found: dict[str, Any]) -> str:
    """For programs."""
    return json.dumps(found, ensure_ascii=False) + "\n"


def to_text(found: dict[str, Any]) -> str:
    """For people: a name and a value on each line."""
    devices, kept = found["devices"], found["cache"]
    lines = {name: found[name] for name in ("specdec", "python", "system")}
    lines |= {name: version or "not installed" for name, version in found["packages"].items()}
    if "error" in devices:
        lines["devices"] = devices["error"]
    else:
        lines["devices"] = "; ".join(
            f"{name}: {len(each)} × {', '.join(sorted(set(each)))}" for name, each in devices["found"].items()
        )
        lines["computes on"] = f"{devices['default']}, in {devices['computes_in']}"
    lines["settings"] = (
        " ".join(f"{name}={value}" for name, value in found["settings"].items()) or "none in the environment"
    )
    if kept["folder"] is None:
        lines["cache"] = f"off: {kept['why']}"
    else:
        limit = "" if kept["limit"] is None else f" of at most {kept['limit'] / 1e6:.0f}"
        lines["cache"] = f"{kept['folder']} ({kept['why']})"
        plural = "s" * (kept["entries"] != 1)
        lines["cached"] = f"{kept['entries']:,} program{plural}, {kept['bytes'] / 1e6:.1f}{limit} MB"
    width = max(map(len, lines))
    return "".join(f"{name:<{width}}  {value}\n" for name, value in lines.items())
