"""Where compiled programs (`programs.py`) are kept from one process to the next.

Programs are code that will be run, so nobody but the user may write to their folder; it is kept small; and as a
home folder may be shared by machines that differ, every kind of processor has a folder of its own. A user who has
set up JAX's own cache is left with that.

Only the command line keeps programs; `specdec_cli.verify` leaves its caller's JAX alone.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LIMIT = 64_000_000
"""Bytes; checked as a process starts. A program takes about 200 kB."""
SUFFIX = ".program"
CHOOSE = "SPECDEC_CACHE_DIR"
TURN_OFF = "SPECDEC_NO_CACHE"
_NO = ("", "0", "false", "f", "no", "n", "off")
_JAX_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_JAX_SWITCH = "JAX_ENABLE_COMPILATION_CACHE"


@dataclass(frozen=True)
class Cache:
    """What was decided about the cache."""

    folder: Path | None
    """Where programs are kept; None when they are not."""
    ours: bool
    """It is the tool's own. Another, which the user set for JAX, is left to JAX."""
    reason: str
    """Why it is this one, or none."""

    def entries(self) -> list[os.stat_result]:
        """The programs in it, the finished ones."""
        found = _entries(self.folder) if self.folder else []
        return [status for path, status in found if path.name.endswith(SUFFIX)]


def prepare() -> Cache:
    """Decide on the folder, make it, and clear it up. Never raises."""
    try:
        cache = choose()
    except OSError as error:  # the folder that we are in is gone
        return Cache(None, True, f"it cannot be found: {error.strerror or error}")
    if not cache.ours or cache.folder is None:
        return cache
    try:
        _own(cache.folder)
    except OSError as error:
        return Cache(None, True, f"{cache.folder} cannot be used: {error.strerror or error}")
    _limit(cache.folder)
    return cache


def choose() -> Cache:
    """The folder that the environment asks for, without touching it."""
    if os.environ.get(TURN_OFF, "").lower() not in _NO:
        return Cache(None, True, f"{TURN_OFF} is set")
    if os.environ.get(_JAX_SWITCH, "1").lower() in _NO:
        return Cache(None, False, f"{_JAX_SWITCH} is {os.environ[_JAX_SWITCH]}")
    if os.environ.get(CHOOSE):
        try:
            chosen = Path(os.environ[CHOOSE]).expanduser().absolute()
        except RuntimeError as error:  # ~ of nobody
            return Cache(None, True, f"{CHOOSE} is {os.environ[CHOOSE]}: {error}")
        return Cache(chosen / _kind_of_machine(), True, f"{CHOOSE} is set")
    if _JAX_FOLDER in os.environ:
        folder = os.environ[_JAX_FOLDER]
        return Cache(Path(folder) if folder else None, False, f"{_JAX_FOLDER} is set")
    try:
        return Cache(_users_cache_folder() / "specdec" / _kind_of_machine(), True, "the user's cache folder")
    except RuntimeError as error:
        return Cache(None, True, str(error))


def _users_cache_folder() -> Path:
    """As the XDG base directory specification and macOS have it.

    Raises:
      RuntimeError: there is no home folder.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given)
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def _kind_of_machine() -> str:
    """A name for what compiled code depends on: the processor and its features."""
    features = [platform.machine(), platform.processor()]
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                break  # one processor is as the next
            if line.split(":")[0].strip() in ("model name", "flags", "Features", "CPU part"):
                features.append(line)
    return "jax-" + hashlib.sha256("\n".join(features).encode()).hexdigest()[:12]


def _own(folder: Path) -> None:
    """Make the folder, for its owner only; refuse one that others can change."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(0, "it is a link, or no folder")
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise PermissionError(0, "it belongs to another user, whose code would be run")
    for parent in folder.parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise PermissionError(0, f"everybody may write to {parent}")
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)
    if stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        _empty(folder)
    if not os.access(folder, os.W_OK):
        raise PermissionError(0, "it is not writable")


def _entries(folder: Path) -> list[tuple[Path, os.stat_result]]:
    found = []
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):  # another process may be clearing up too
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and SUFFIX in path.name:
                    found.append((path, status))
    return found


def _empty(folder: Path) -> None:
    """Of everything that others may have put there, links included."""
    for path in list(folder.iterdir()):
        with suppress(OSError):
            path.unlink()


def _limit(folder: Path) -> None:
    """Above the limit, drop what was used longest ago until half of it is left."""
    entries = _entries(folder)
    size = sum(status.st_size for _, status in entries)
    if size <= LIMIT:
        return
    for path, status in sorted(entries, key=lambda entry: max(entry[1].st_atime, entry[1].st_mtime)):
        with suppress(OSError):
            path.unlink()
        size -= status.st_size
        if size <= LIMIT // 2:
            return
