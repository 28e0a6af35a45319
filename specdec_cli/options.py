"""What the commands' arguments and options are."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    pass


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
        help="Share the inputs between processes, which srun, mpirun or you start with the same arguments.",
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
