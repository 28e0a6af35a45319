"""The command line: flags in, streams and exit codes out. No logic, and no heavy import outside a command."""

from __future__ import annotations

import enum
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli import __version__
from specdec_cli.errors import ExitCode, InputError
from specdec_cli.terminal import (
    loading_jax,
    prepare_process,
    reporting,
    reporting_what_typer_writes,
    say,
    write_stdout,
)

if TYPE_CHECKING:
    from specdec_cli.pipeline import Outcome

app = typer.Typer(
    name="specdec",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Device(enum.StrEnum):
    """Where to compute."""

    CPU = "cpu"
    GPU = "gpu"
    TPU = "tpu"


class Format(enum.StrEnum):
    """What an explanation is written as."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    SVG = "svg"
    MARKDOWN = "markdown"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specdec {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: `specdec run samples/one_row.json`")
def specdec(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The verification step of speculative decoding: exact, explained, checked.

    Results go to stdout, words for people to stderr.

    Exit codes: 0 done; 2 wrong usage, or an input that is not valid; 3 this machine cannot do it (no such
    device, no memory, output not writable); 130 interrupted; 143 terminated; 141 the reader of
    stdout went away.
    """


Input = Annotated[str, typer.Argument(metavar="INPUT", help="JSON, JSON Lines or NPZ; - is standard input.")]
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


@app.command(epilog="Examples: `specdec run samples/one_row.json`, `jq .step dump.json | specdec run -`")
def run(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT", help="JSON, JSON Lines or NPZ files, folders of them; - is standard input."
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write to FILE (.json, .jsonl, .npz) instead of stdout."
        ),
    ] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", help="Look in the folders below a folder too.")
    ] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first input that fails.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why on stderr, as `specdec explain` does.")
    ] = False,
    validate: Validate = True,
    sum_tolerance: SumTolerance = None,
    device: OnDevice = None,
) -> None:
    """Verify drafts: how many tokens are accepted, and which tokens the step emits.

    An input holds five arrays (B rows, G draft positions, V vocabulary entries): `draft_tokens` (B, G),
    `draft_probs` (B, G, V), `target_probs` (B, G+1, V), `accept_uniforms` (B, G), `sample_uniforms` (B,).

    Prints `{"num_accepted":[…],"tokens":[[…]]}`: for each row the accepted draft tokens, the correction or
    bonus token, then -1. Of several inputs, or a folder, a line each, with its name under `input`; one that
    fails leaves an `error` in its place, and the rest go on.
    """
    with reporting():
        suffix = _suffix(output, {".json", ".jsonl", ".npz"}, ".jsonl")
        results = _verified(inputs, output, validate, sum_tolerance, device, recursive, fail_fast)

        from specdec_cli import writers

        def pieces() -> Iterator[bytes]:
            for outcome in results:
                if explain:
                    _say_why(outcome)
                piece = writers.encode(outcome, suffix)
                if piece is not None:
                    yield piece

        if output is None:
            for piece in pieces():
                write_stdout(piece)
        else:
            several = suffix == ".jsonl"
            writers.write_file(output, pieces() if several else writers.only_one(pieces(), output))
        results.end()


@app.command(
    epilog="Examples: `specdec explain samples/one_row.json`, `specdec explain dump.npz --row 3 -o why.html`"
)
def explain(
    input: Input,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write to FILE (.txt, .json, .html, .svg, .md), in that format."
        ),
    ] = None,
    format: Annotated[
        Format | None, typer.Option("--format", help="The form of the explanation. (default: text)")
    ] = None,
    row: Annotated[list[int] | None, typer.Option(metavar="N", help="Explain row N; may be repeated.")] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="A:B", help="Explain rows A to B - 1. (default: the first five)")
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            metavar="K",
            min=0,
            help="List the K likeliest candidates of a draw, beside the drawn token and its neighbours.",
        ),
    ] = 6,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="FILE", help='Show texts of tokens: a JSON list, {"text": id}, or a tokenizer.json.'),
    ] = None,
    validate: Validate = True,
    sum_tolerance: SumTolerance = None,
    device: OnDevice = None,
) -> None:
    """Show why: every accept test, the draw of the last token, and the numbers that decided them.

    Takes what `specdec run` takes, and always agrees with it.
    """
    with reporting():
        suffix = _suffix(output, {".txt", ".json", ".jsonl", ".html", ".svg", ".md"}, ".txt")
        span = _span(rows)
        results = _verified([input], output, validate, sum_tolerance, device)

        from specdec_cli import writers
        from specdec_cli.explain import data, forms, names

        texts = names.no_names if tokens is None else names.read_names(tokens)
        form = format.value if format else forms.SUFFIXES[suffix]

        def explanations() -> Iterator[data.Explanation]:
            for outcome in results:
                if outcome.batch is not None and outcome.verification is not None:
                    try:
                        yield data.explain(
                            outcome.batch,
                            outcome.verification,
                            rows=row or (),
                            span=span,
                            top=top,
                            line=outcome.line,
                        )
                    except InputError as error:  # no such row; another step may have it
                        results.fail(error)

        if output is not None:
            parts = forms.parts(explanations(), texts, form)
            pieces = (part.encode() for part in parts)
            writers.write_file(output, pieces if suffix != ".json" else writers.only_one(pieces, output))
        elif form == "text":
            for count, explanation in enumerate(explanations()):
                text = forms.for_stream(explanation, texts, sys.stdout)
                write_stdout(("\n" * bool(count) + text).encode(errors="replace"))
        else:
            for part in forms.parts(explanations(), texts, form):
                write_stdout(part.encode())
        results.end()


def _say_why(outcome: Outcome) -> None:
    from specdec_cli.explain import data, forms, names

    if outcome.batch is not None and outcome.verification is not None:
        explanation = data.explain(outcome.batch, outcome.verification, line=outcome.line)
        say(forms.for_stream(explanation, names.no_names, sys.stderr))


class _Verified:
    """Outcomes, their words for people said as they come, and the exit code at the end."""

    def __init__(self, outcomes: Iterator[Outcome], several: bool, fail_fast: bool) -> None:
        self._outcomes = outcomes
        self._several = several
        self._fail_fast = fail_fast
        self._done = self._failed = 0

    def __iter__(self) -> Iterator[Outcome]:
        for outcome in self._outcomes:
            for words in outcome.words():
                say(words)
            yield outcome
            if outcome.error is None:
                self._done += 1
                continue
            self._failed += 1
            if self._fail_fast:
                return

    def fail(self, error: InputError) -> None:
        say(error.block())
        self._failed += 1

    def end(self) -> None:
        if self._failed and self._several:
            stopped = ", stopped at the first failure" if self._fail_fast else ""
            say(f"{self._done} done, {self._failed} failed{stopped}")
        if self._failed:
            raise typer.Exit(ExitCode.INPUT)


def _verified(
    names: list[str],
    output: str | None,
    validate: bool,
    sum_tolerance: str | None,
    device: Device | None,
    recursive: bool = False,
    fail_fast: bool = False,
) -> _Verified:
    tolerance = _tolerance(sum_tolerance)
    with loading_jax():
        from specdec_cli.pipeline import find_inputs, outcomes
    inputs, several = find_inputs(names, recursive=recursive)
    for name in inputs:
        _refuse_overwriting(name, output)
    platform = device and device.value
    found = outcomes(inputs, several=several, validate=validate, sum_tolerance=tolerance, device=platform)
    return _Verified(found, several, fail_fast)


def _span(text: str | None) -> slice | None:
    """`3:8` as Python reads it: rows 3 to 7."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})?:(\d{1,9})?", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not of the form A:B, as in 3:8", param_hint="--rows")
    start, stop = (int(part) if part else None for part in match.groups())
    return slice(start, stop)


def _tolerance(text: str | None) -> Fraction | None:
    """Read the decimal as it is written: 0.001 is not the double nearest to it."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise typer.BadParameter(f"{text!r} is not a number of 0 or more", param_hint="--sum-tolerance")
    return Fraction(repr(number))


def _refuse_overwriting(input: str | InputError, output: str | None) -> None:
    with suppress(OSError, ValueError):
        if output is not None and isinstance(input, str) and os.path.samefile(input, output):
            raise typer.BadParameter(f"{output!r} is the input, which would be lost", param_hint="--output")


def _suffix(output: str | None, known: set[str], default: str) -> str:
    """The suffix of an output file, which says its format."""
    if output is None:
        return default
    suffix = PurePath(output).suffix.lower()
    if output.endswith(os.sep):
        raise typer.BadParameter(f"{output!r} names a folder, expected a file", param_hint="--output")
    if suffix not in known:
        *others, last = sorted(known)
        raise typer.BadParameter(
            f"{output!r} ends in none of {', '.join(others)} and {last}, which say how to write it",
            param_hint="--output",
        )
    return suffix


def main() -> None:
    """Run the console script."""
    prepare_process()
    with reporting_what_typer_writes():
        app()


if __name__ == "__main__":
    main()
