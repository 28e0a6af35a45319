"""What the values of options mean, and which of them go together."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fractions import Fraction

    from specdec_cli.guard import Joining


def span_of(text: str | None) -> slice | None:
    """`3:8` as Python reads it: rows 3 to 7."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})?:(\d{1,9})?", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not of the form A:B, as in 3:8", param_hint="--rows")
    start, stop = (int(part) if part else None for part in match.groups())
    return slice(start, stop)


def tolerance_of(text: str | None) -> Fraction | None:
    """Read the decimal as it is written: 0.001 is not the double nearest to it."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise typer.BadParameter(f"{text!r} is not a number of 0 or more", param_hint="--sum-tolerance")
    from fractions import Fraction  # which takes its time, also for --help

    return Fraction(repr(number))


def devices_of(text: str | None) -> int | str | None:
    """A number of 1 or more, or `all`."""
    if text is None or text == "all":
        return text
    if not re.fullmatch(r"0*[1-9]\d{0,5}", text):
        raise typer.BadParameter(f"{text!r} is neither a number of 1 or more nor 'all'", param_hint="--devices")
    return int(text)


def joining_of(
    distributed: bool,
    coordinator: str | None,
    number: int | None,
    process: int | None,
    timeout: int | None,
    **alone: bool,
) -> Joining | None:
    """How to find the other processes; None where there are none.

    Args:
      distributed: there are.
      coordinator: HOST:PORT of process 0, if the user says it.
      number: of processes, likewise.
      process: which this is, likewise.
      timeout: seconds, likewise.
      alone: options that only one process can have.
    """
    given = {
        "--coordinator": coordinator,
        "--num-processes": number,
        "--process-id": process,
        "--distributed-timeout": timeout,
    }
    if not distributed:
        for name, value in given.items():
            if value is not None:
                raise typer.BadParameter(f"{name} goes with --distributed", param_hint=name)
        return None
    for name, value in alone.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{option} is for one process, without --distributed", param_hint=option)
    place = re.fullmatch(r"(?:[^\s:\[\]]+|\[[^\s\[\]]+\]):([1-9]\d{0,4})", coordinator or "")
    if coordinator is not None and not (place and int(place[1]) < 2**16):
        raise typer.BadParameter(
            f"{coordinator!r} is not of the form HOST:PORT or [IPV6]:PORT", param_hint="--coordinator"
        )
    for name, value, least in (
        ("--num-processes", number, 1),
        ("--process-id", process, 0),
        ("--distributed-timeout", timeout, 1),
    ):
        if value is not None and not least <= value < 2**31:
            raise typer.BadParameter(f"{value} is not a number from {least} to {2**31 - 1}", param_hint=name)
    if number is not None and process is not None and process >= number:
        raise typer.BadParameter(
            f"{process} is none of {number} processes, which are numbered from 0", param_hint="--process-id"
        )
    from specdec_cli.guard import Joining

    return Joining(coordinator, number, process, 100 if timeout is None else timeout)


def suffix_of(output: str | None, known: set[str], default: str, *, or_folder: str = "") -> str:
    """The suffix of an output file, which says its format; `or_folder` tells of folders, where they may be."""
    if output is None:
        return default
    suffix = PurePath(output).suffix.lower()
    if is_folder(output):
        raise typer.BadParameter(f"{output!r} names a folder, expected a file", param_hint="--output")
    if suffix not in known:
        *others, last = sorted(known)
        raise typer.BadParameter(
            f"{output!r} ends in none of {', '.join(others)} and {last}, which say how to write it{or_folder}",
            param_hint="--output",
        )
    return suffix


def is_folder(output: str | None) -> bool:
    """Whether an output is a folder: by a slash at its end, or because it is one."""
    return output is not None and (output.endswith(os.sep) or os.path.isdir(output))


def refuse_without_folder(**given: object) -> None:
    """Refuse options that only mean something for results in a folder."""
    for name, value in given.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(
                f"{option} goes with -o FOLDER/ (a folder that is there, or a name that ends in /)",
                param_hint=option,
            )


def refuse_overwriting(inputs: list[str], output: str | None) -> None:
    """Refuse an output file that is one of the inputs."""
    for name in inputs:
        with suppress(OSError, ValueError):
            if output is not None and os.path.samefile(name, output):
                raise typer.BadParameter(f"{output!r} is the input, which would be lost", param_hint="--output")
