"""The command line: flags in, streams and exit codes out. No logic, and no heavy import outside a command."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli import __version__, options, values
from specdec_cli.errors import InputError
from specdec_cli.terminal import (
    prepare_process,
    reporting,
    reporting_what_typer_writes,
    say,
    write_stdout,
)

if TYPE_CHECKING:
    from specdec_cli.outcome import Outcome
    from specdec_cli.progress import Told

app = typer.Typer(
    name="specdec",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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

    Exit codes: 0 done; 1 `check` found a difference; 2 wrong usage, or an input that is not valid; 3 this machine
    cannot do it (no such device, no memory, output not writable); 130 interrupted; 143 terminated; 141 the reader
    of stdout went away.
    """


@app.command(epilog="Examples: `specdec run samples/one_row.json`, `jq .step dump.json | specdec run -`")
def run(
    inputs: options.Inputs,
    output: options.RunOutput = None,
    output_format: options.OutputFormat = None,
    resume: options.Resume = False,
    force: options.Force = False,
    recursive: options.Recursive = False,
    fail_fast: options.FailFast = False,
    explain: options.Explain = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
    validate: options.Validate = True,
    sum_tolerance: options.SumTolerance = None,
    device: options.OnDevice = None,
    devices: options.Devices = None,
    distributed: options.Distributed = False,
    coordinator: options.Coordinator = None,
    num_processes: options.NumProcesses = None,
    process_id: options.ProcessId = None,
    distributed_timeout: options.DistributedTimeout = None,
) -> None:
    """Verify drafts: how many tokens are accepted, and which tokens the step emits.

    An input holds five arrays (B rows, G draft positions, V vocabulary entries): `draft_tokens` (B, G),
    `draft_probs` (B, G, V), `target_probs` (B, G+1, V), `accept_uniforms` (B, G), `sample_uniforms` (B,).

    Prints `{"num_accepted":[…],"tokens":[[…]]}`: for each row the accepted draft tokens, the correction or
    bonus token, then -1. Of several inputs, or a folder, a line each, with its name under `input`; one that
    fails leaves an `error` in its place, and the rest go on.
    """
    with reporting():
        folder = output if values.is_folder(output) else None
        if folder is None:
            values.refuse_without_folder(output_format=output_format, resume=resume, force=force)
        suffix = values.suffix_of(
            None if folder else output,
            {".json", ".jsonl", ".npz"},
            ".jsonl",
            or_folder="; a folder that is not there yet is written with / at its end",
        )
        tolerance, number = values.tolerance_of(sum_tolerance), values.devices_of(devices)
        joining = values.joining_of(
            distributed,
            coordinator,
            num_processes,
            process_id,
            distributed_timeout,
            explain=explain,
            fail_fast=fail_fast,
        )
        if joining is not None:
            from specdec_cli.guard import stand_behind

            stand_behind(joining)

        from specdec_cli import cluster, results, sharing, writers
        from specdec_cli.inputs import find_inputs
        from specdec_cli.progress import Told
        from specdec_cli.settings import Settings

        found, several = find_inputs(inputs, recursive=recursive, leave_out=folder)
        names = [input.name for input in found]
        settings = Settings(validate, tolerance, device and device.value, number)
        place = None
        if folder is None:
            values.refuse_overwriting(names, output)
        else:
            form = output_format or options.ResultFormat.JSON
            place = results.ResultFolder(folder, f".{form.value}", settings.decisive())
        sharing.refuse(found, place, joining)
        processes = cluster.ALONE if joining is None else cluster.join(joining)
        with processes.telling():
            asked = {"output": output, "folder": folder, "form": output_format, "resume": resume, "force": force}
            plan = sharing.agree(found, processes, **settings.decisive(), **asked)
            if place is None:
                outcomes = sharing.outcomes(found, settings, plan, several=several)
            else:
                outcomes = sharing.into_folder(
                    found, place, settings, plan, resume=resume, force=force, fail_fast=fail_fast
                )
            told = Told(
                outcomes,
                names,
                several=several,
                by_input=folder is not None,
                fail_fast=fail_fast,
                quiet=quiet,
                bar=not no_progress and processes.leads,
                to_stdout=output is None,
            )

            explained = map(partial(_say_why, told), told) if explain else iter(told)
            if folder is not None or not processes.leads:
                deque(explained, maxlen=0)
            else:
                pieces = filter(None, map(partial(writers.encode, suffix=suffix), explained))
                if output is None:
                    for piece in pieces:
                        write_stdout(piece)
                else:
                    writers.write_file(output, pieces if suffix == ".jsonl" else writers.only_one(pieces, output))
            exit_code = sharing.end(told, processes)
        raise typer.Exit(exit_code)


@app.command(
    epilog="Examples: `specdec explain samples/one_row.json`, `specdec explain dump.npz --row 3 -o why.html`"
)
def explain(
    input: options.Input,
    output: options.ExplainOutput = None,
    format: options.FormOfExplanation = None,
    row: options.Row = None,
    rows: options.Rows = None,
    top: options.Top = 6,
    tokens: options.Texts = None,
    against: options.Against = None,
    validate: options.Validate = True,
    sum_tolerance: options.SumTolerance = None,
    device: options.OnDevice = None,
) -> None:
    """Show why: every accept test, the draw of the last token, and the numbers that decided them.

    Takes what `specdec run` takes, and always agrees with it.
    """
    with reporting():
        suffix = values.suffix_of(output, {".txt", ".json", ".jsonl", ".html", ".svg", ".md"}, ".txt")
        span, tolerance = values.span_of(rows), values.tolerance_of(sum_tolerance)

        from specdec_cli import pipeline, writers
        from specdec_cli.check.against import Against
        from specdec_cli.decide import Verification
        from specdec_cli.explain import data, forms, names
        from specdec_cli.inputs import find_inputs
        from specdec_cli.progress import Told
        from specdec_cli.settings import Settings

        found, several = find_inputs([input])
        values.refuse_overwriting([each.name for each in found], output)
        settings = Settings(validate, tolerance, device and device.value)
        told = Told(pipeline.outcomes(found, settings, several=several), several=several)

        texts = names.no_names if tokens is None else names.read_names(tokens)
        engine = Against(against)
        form = format.value if format else forms.SUFFIXES[suffix]

        def explanations() -> Iterator[data.Explanation]:
            for outcome in told:
                if outcome.batch is None or not isinstance(outcome.verification, Verification):
                    engine.skip()
                else:
                    try:
                        yield data.explain(
                            outcome.batch,
                            outcome.verification,
                            rows=row or (),
                            span=span,
                            top=top,
                            line=outcome.line,
                            engine=engine.next(outcome.batch, outcome.verification),
                        )
                    except InputError as error:  # no such row; another step may have it
                        told.fail(error.named(outcome.batch.source, outcome.line))
            try:
                engine.end()
            except InputError as error:
                told.fail(error)

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
        raise typer.Exit(told.end())


@app.command(
    epilog="Examples: `specdec check dump.npz engine.json`, `specdec check dumps/ answers/ --format json`"
)
def check(
    input: options.CheckInput,
    result: options.CheckResult,
    precision: options.EnginePrecision = options.Precision.FLOAT32,
    strict: options.Strict = False,
    draw: options.Draw = options.DrawBy.EXACT,
    format: options.FormOfReport = options.CheckFormat.TEXT,
    recursive: options.Recursive = False,
    validate: options.Validate = True,
    sum_tolerance: options.SumTolerance = None,
    device: options.OnDevice = None,
    devices: options.Devices = None,
) -> None:
    """Is an engine's answer right? If not, is it rounding or a bug, and which bug?

    Every row agrees, or is a near-tie (it differs where rounding may), or differs. Exit code 0 when no row
    differs, 1 when one does, 2 when something could not be checked.
    """
    with reporting():
        tolerance, number = values.tolerance_of(sum_tolerance), values.devices_of(devices)
        from specdec_cli.check import forms, pairs, report
        from specdec_cli.near_ties import PRECISIONS
        from specdec_cli.settings import Settings

        standard = report.Standard(
            PRECISIONS[precision.value],
            strict,
            draw is options.DrawBy.SUPPORT,
            Settings(validate, tolerance, device and device.value, number),
        )
        found = report.check(pairs.find_pairs(input, result, recursive=recursive), standard)
        for failure in found.failures:
            say(failure.error.block())
        write_stdout(forms.write(found, format.value, sys.stdout).encode(errors="replace"))
        raise typer.Exit(found.exit_code)


@app.command(epilog="Example: `specdec info --format json | jq .cache`")
def info(format: options.FormOfInfo = options.InfoFormat.TEXT) -> None:
    """Show versions, devices, and where compiled programs are kept."""
    with reporting():
        from specdec_cli.info import gather, to_json, to_text

        write = to_text if format is options.InfoFormat.TEXT else to_json
        write_stdout(write(gather()).encode(errors="backslashreplace"))


def _say_why(told: Told, outcome: Outcome) -> Outcome:
    from specdec_cli.decide import Verification
    from specdec_cli.explain import data, forms, names

    if outcome.batch is not None and isinstance(outcome.verification, Verification):
        explanation = data.explain(outcome.batch, outcome.verification, line=outcome.line)
        told.explain(forms.for_stream(explanation, names.no_names, sys.stderr))
    return outcome


def main() -> None:
    """Run the console script."""
    prepare_process()
    with reporting_what_typer_writes():
        app()


if __name__ == "__main__":
    main()
