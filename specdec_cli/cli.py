"""The command line: flags in, streams and exit codes out. No logic, and no heavy import outside a command."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import PurePath
from typing import Annotated

import typer

from specdec_cli import __version__
from specdec_cli.errors import ExitCode
from specdec_cli.terminal import (
    loading_jax,
    prepare_process,
    reporting,
    reporting_what_typer_writes,
    say,
    write_stdout,
)

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
    device, no memory, output not writable); 130 interrupted; 141 the reader of stdout went away.
    """


@app.command(epilog="Examples: `specdec run samples/one_row.json`, `jq .step dump.json | specdec run -`")
def run(
    input: Annotated[str, typer.Argument(metavar="INPUT", help="JSON, JSON Lines or NPZ; - is standard input.")],
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write to FILE (.json, .jsonl, .npz) instead of stdout."
        ),
    ] = None,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate/--no-validate",
            help="Check that the probabilities are finite, not negative, sum to 1.",
        ),
    ] = True,
    sum_tolerance: Annotated[
        str | None,
        typer.Option(
            metavar="X", help="Accept sums closer to 1 than X. (default: 0.001, or 0.01 for 16-bit floats)"
        ),
    ] = None,
    device: Annotated[
        Device | None, typer.Option(help="Where to compute. (default: JAX's default device)")
    ] = None,
) -> None:
    """Verify the drafts of one input: how many tokens are accepted, and which tokens the step emits.

    The input holds five arrays (B rows, G draft positions, V vocabulary entries): `draft_tokens` (B, G),
    `draft_probs` (B, G, V), `target_probs` (B, G+1, V), `accept_uniforms` (B, G), `sample_uniforms` (B,).

    Prints `{"num_accepted":[…],"tokens":[[…]]}`: for each row the accepted draft tokens, the correction or
    bonus token, then -1.
    """
    with reporting():
        tolerance = _tolerance(sum_tolerance)
        suffix = _suffix(output)
        _refuse_overwriting(input, output)

        with loading_jax():
            from specdec_cli import writers
            from specdec_cli.pipeline import outcomes

        results = outcomes(input, validate=validate, sum_tolerance=tolerance, device=device and device.value)
        failed = False

        def pieces() -> Iterator[bytes]:
            nonlocal failed
            for outcome in results:
                failed |= outcome.error is not None
                for words in outcome.words():
                    say(words)
                piece = writers.encode(outcome, suffix)
                if piece is not None:
                    yield piece

        if output is None:
            for piece in pieces():
                write_stdout(piece)
        else:
            several = suffix == ".jsonl"
            writers.write_file(output, pieces() if several else writers.only_one(pieces(), output))
        if failed:
            raise typer.Exit(ExitCode.INPUT)


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


def _refuse_overwriting(input: str, output: str | None) -> None:
    with suppress(OSError, ValueError):
        if output is not None and os.path.samefile(input, output):
            raise typer.BadParameter(f"{output!r} is the input, which would be lost", param_hint="--output")


def _suffix(output: str | None) -> str:
    if output is not None and output.endswith(os.sep):
        raise typer.BadParameter(f"{output!r} names a folder, expected a file", param_hint="--output")
    suffix = ".jsonl" if output is None else PurePath(output).suffix.lower()
    if suffix not in (".json", ".jsonl", ".npz"):
        raise typer.BadParameter(
            f"{output!r} ends in none of .json, .jsonl and .npz, which say how to write it", param_hint="--output"
        )
    return suffix


def main() -> None:
    """Run the console script."""
    prepare_process()
    with reporting_what_typer_writes():
        app()


if __name__ == "__main__":
    main()
