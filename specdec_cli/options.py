"""What the commands' arguments and options are, and how their values are read."""

from __future__ import annotations

import enum
import os
import re
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fractions import Fraction

    from specdec_cli.guard import Joining


class Device(enum.StrEnum):
    """Where to compute."""

    CPU = "cpu"
    GPU = "gpu"
    TPU = "tpu"


class ExplainFormat(enum.StrEnum):
    """What an explanation is written as."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    SVG = "svg"
    MARKDOWN = "markdown"


class CheckFormat(enum.StrEnum):
    """What the report of a check is written as."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class Precision(enum.StrEnum):
    """What an engine computes in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT64 = "float64"


class DrawBy(enum.StrEnum):
    """How the last token is judged."""

    EXACT = "exact"
    SUPPORT = "support"


class InfoFormat(enum.StrEnum):
    """What `info` is written as."""

    TEXT = "text"
    JSON = "json"


class ResultFormat(enum.StrEnum):
    """What the results in a folder are written as."""

    JSON = "json"
    NPZ = "npz"


INPUT = "JSON, JSON Lines or NPZ; - is standard input."

Input = Annotated[str, typer.Argument(metavar="INPUT", help=INPUT)]
Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help="JSON, JSON Lines or NPZ files, folders of them; - is standard input."),
]
RunOutput = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE|FOLDER/",
        help="Write to FILE (.json, .jsonl, .npz) instead of stdout, or a file for each input into FOLDER.",
    ),
]
ExplainOutput = Annotated[
    str | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="Write to FILE (.txt, .json, .html, .svg, .md), in that format."
    ),
]
OutputFormat = Annotated[
    ResultFormat | None,
    typer.Option("--output-format", help="What -o FOLDER/ is filled with. (default: json)"),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="With -o FOLDER/: skip inputs whose result would come out the same.")
]
Force = Annotated[bool, typer.Option("--force", help="With -o FOLDER/: replace results that are there.")]
Recursive = Annotated[bool, typer.Option("--recursive", help="Look in the folders below a folder too.")]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first input that fails.")]
Explain = Annotated[bool, typer.Option("--explain", help="Say why on stderr, as `specdec explain` does.")]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Say nothing on stderr but errors: no bar, warning or summary.")
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bar.")]
Validate = Annotated[
    bool,
    typer.Option(
        "--validate/--no-validate", help="Check that the probabilities are finite, not negative, sum to 1."
    ),
]
SumTolerance = Annotated[
    str | None,
    typer.Option(metavar="X", help="Accept sums closer to 1 than X. (default: 0.001, or 0.01 for 16-bit floats)"),
]
OnDevice = Annotated[
    Device | None, typer.Option("--device", help="Where to compute. (default: JAX's default device)")
]
Devices = Annotated[
    str | None,
    typer.Option(metavar="N|all", help="Share rows over N devices of that kind. (default: one alone)"),
]
_TOGETHER = "Several processes"
Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed",
        rich_help_panel=_TOGETHER,
        help="Share the inputs between processes, started by srun, mpirun or by hand.",
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option("--coordinator", metavar="HOST:PORT", rich_help_panel=_TOGETHER, help="Where process 0 is."),
]
NumProcesses = Annotated[
    int | None,
    typer.Option("--num-processes", metavar="N", rich_help_panel=_TOGETHER, help="How many processes there are."),
]
ProcessId = Annotated[
    int | None,
    typer.Option("--process-id", metavar="I", rich_help_panel=_TOGETHER, help="Which of them this is, from 0."),
]
DistributedTimeout = Annotated[
    int | None,
    typer.Option(
        "--distributed-timeout",
        metavar="SECONDS",
        rich_help_panel=_TOGETHER,
        help="Give up on a process that does not come, or shows no sign of life. (default: 100)",
    ),
]
FormOfExplanation = Annotated[
    ExplainFormat | None, typer.Option("--format", help="The form of the explanation. (default: text)")
]
Row = Annotated[list[int] | None, typer.Option(metavar="N", help="Explain row N; may be repeated.")]
Rows = Annotated[
    str | None, typer.Option(metavar="A:B", help="Explain rows A to B - 1. (default: the first five)")
]
Top = Annotated[
    int,
    typer.Option(
        metavar="K",
        min=0,
        help="List the K likeliest candidates of a draw, beside the drawn token and its neighbours.",
    ),
]
Texts = Annotated[
    str | None,
    typer.Option(metavar="FILE", help='Show texts of tokens: a JSON list, {"text": id}, or a tokenizer.json.'),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="RESULT",
        help="Show an engine's answer (num_accepted, tokens) beside the exact one.",
    ),
]
CheckInput = Annotated[
    str, typer.Argument(metavar="INPUT", help="What the engine was given: a file, or a folder of them.")
]
CheckResult = Annotated[
    str,
    typer.Argument(
        metavar="RESULT",
        help="What it answered (num_accepted, tokens) in JSON, JSON Lines or NPZ; or a folder, matched by name.",
    ),
]
EnginePrecision = Annotated[
    Precision, typer.Option("--precision", help="Excuse a decision closer than the rounding of this type.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Excuse nothing: near-ties count as differing.")]
Draw = Annotated[
    DrawBy,
    typer.Option(
        "--draw",
        help="Judge the last token by s, or only by whether it can be drawn: for engines with noise of their own. "
        "(support as well where the input has no sample_uniforms)",
    ),
]
FormOfReport = Annotated[CheckFormat, typer.Option("--format", help="The form of the report.")]
FormOfInfo = Annotated[InfoFormat, typer.Option("--format", help="The form of the report.")]


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
    if coordinator is not None and not re.fullmatch(r"\S+:[1-9]\d{0,4}", coordinator):
        raise typer.BadParameter(f"{coordinator!r} is not of the form HOST:PORT", param_hint="--coordinator")
    for name, value, least in (
        ("--num-processes", number, 1),
        ("--process-id", process, 0),
        ("--distributed-timeout", timeout, 1),
    ):
        if value is not None and not least <= value < 2**31:
            raise typer.BadParameter(f"{value} is not a number of {least} or more", param_hint=name)
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
