"""Inputs → results in a folder, a file for each: what is there and may stay, and what is made anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from specdec_cli.errors import EnvironmentFault, InputError, SpecdecError
from specdec_cli.inputs import Input
from specdec_cli.outcome import Outcome, Status
from specdec_cli.pipeline import Join, ahead, failure_of, opened_of, outcomes_of, status_of
from specdec_cli.readers import STDIN, Document
from specdec_cli.readers.members import CHANGED
from specdec_cli.results import ResultFolder, State, digest_of
from specdec_cli.settings import DEFAULTS, Settings
from specdec_cli.writers import encode


def into_folder(
    inputs: Sequence[Input],
    folder: ResultFolder,
    settings: Settings = DEFAULTS,
    *,
    resume: bool = False,
    force: bool = False,
    fail_fast: bool = False,
    join: Join | None = None,
    announce: Callable[[Input, bool], None] | None = None,
) -> Iterator[Outcome]:
    """Verify every input into a result of its own, which holds what `specdec run` prints for that input alone.

    A failure leaves its record as the result, and is tried again the next time.

    Args:
      inputs: what `find_inputs` found, of which none clashes with another (`refuse_clashes`).
      folder: where results go.
      settings: for all of them.
      resume: skip an input whose result is there and would come out the same.
      force: replace any other result that is there; without it such an input fails, and the result is kept.
      fail_fast: stop after the first input that fails.
      join: what makes of the outcome for a share of the rows the one for all.
      announce: told of each input whether it will be verified.

    Yields:
      An outcome for each step. The last of an input comes when its result is in place.

    Raises:
      EnvironmentFault: results cannot be written, or this machine can do none of it.
    """
    plans = ahead(inputs, lambda input: _plan(input, folder, resume, force))
    for input, plan in zip(inputs, plans, strict=True):
        failed = False
        if announce:
            announce(input, plan.opened is not None)
        for outcome in _outcomes_into_folder(input, plan, folder, settings, join):
            failed |= outcome.status is Status.FAILED
            yield outcome
        if failed and fail_fast:
            return


@dataclass(frozen=True)
class _Plan:
    """What is to be done about an input: skip it unless something else is said."""

    refused: SpecdecError | None = None
    """Why its result is not to be written."""
    opened: Iterator[Document] | None = None
    """What is to be verified."""
    status: os.stat_result | None = None
    digest: str | None = None
    replace: bool = False
    """Put the result in the place of what is there: a failure, or anything where that is asked for."""


def _plan(input: Input, folder: ResultFolder, resume: bool, force: bool) -> _Plan:
    try:
        if input.error is not None:
            return _Plan(refused=input.error)
        _refuse_nameless(input)
        status, digest = status_of(input.name), _digest(input.name)
        state = folder.state(input.place, digest)
        if state is State.SAME and resume:
            return _Plan()
        opened = opened_of(input)
        free = state in (State.FREE, State.FAILURE)
        if not free and digest is None:
            next(opened)  # says why it cannot be read; what is there stays
        if not free and (state is State.NO_FILE or not force):
            raise _kept(input, folder, state)
        return _Plan(None, opened, status, digest, replace=state is not State.FREE)
    except Exception as error:
        return _Plan(refused=failure_of(error, input.name))


def _outcomes_into_folder(
    input: Input, plan: _Plan, folder: ResultFolder, settings: Settings, join: Join | None
) -> Iterator[Outcome]:
    blank = Outcome(input.name, input.number)
    if plan.opened is None:
        yield replace(blank, error=plan.refused)
        return
    last = None
    found = outcomes_of(blank, plan.opened, settings, join)
    try:
        with folder.writing(input.place, plan.digest, replace=plan.replace) as file:
            for outcome in found:
                if last is not None:
                    yield last
                outcome.settle()
                last = outcome = outcome if folder.suffix == ".json" else _only_one(outcome)
                file.failed |= outcome.status is Status.FAILED
                file.write(encode(outcome, folder.suffix, record=True) or b"")
                if not outcome.in_lines:
                    break  # the only one: its rows may be in the file, which stays open until it was used
            if _changed(plan.status, status_of(input.name)):
                raise InputError(*CHANGED, source=input.name)
    except FileExistsError:
        state = folder.state(input.place, plan.digest)
        if state is not State.SAME:  # another process was quicker, with something else
            last = replace(blank, error=_kept(input, folder, state))
    except (InputError, EnvironmentFault) as error:
        last = replace(blank, error=failure_of(error, input.name))
    if last is not None:
        yield last
    next(found, None)  # there is no more, and the file is closed


def _kept(input: Input, folder: ResultFolder, state: State) -> InputError:
    skip = "--resume skips what is done, " if state is State.SAME else ""
    hint = "" if state is State.NO_FILE else f"{skip}--force replaces it"
    return InputError(f"{folder.result_of(input.place)} {state.value}: kept", hint, source=input.name)


def _only_one(first: Outcome) -> Outcome:
    """The one outcome that an NPZ file can hold, or a failure where there are more."""
    if not first.in_lines:
        return first
    error = InputError("holds several steps, and an NPZ file holds one", "-o FOLDER/ without --output-format npz")
    return Outcome(first.name, first.number, error=error.named(first.name))


def _refuse_nameless(input: Input) -> None:
    if (
        input.name == STDIN
        or "\0" in input.name
        or (os.path.exists(input.name) and not os.path.isfile(input.name))
    ):
        raise InputError(
            "is not a file with a name that its result in a folder could bear",
            "-o FILE, or no -o at all, takes it",
            source=input.name,
        )


def refuse_clashes(inputs: Sequence[Input], folder: ResultFolder) -> None:
    """Refuse results that would take each other's place, or an input's.

    Raises:
      InputError: there are such.
    """
    files = [input for input in inputs if input.error is None and "\0" not in input.name]
    given = {os.path.realpath(input.name): input.name for input in files}
    taken: dict[str, str] = {}
    for input in files:
        result = folder.result_of(input.place)
        lost = given.get(os.path.realpath(result))
        if lost is not None:
            raise InputError(f"the result {result} would replace the input {lost}", "write to another folder")
        if os.path.realpath(result) in taken:
            raise InputError(
                f"{taken[os.path.realpath(result)]} and {input.name} would both have the result {result}",
                "run them apart, into two folders; below one folder that is given, with --recursive, "
                "files in different folders keep their places",
            )
        taken[os.path.realpath(result)] = input.name


def _changed(before: os.stat_result | None, after: os.stat_result | None) -> bool:
    """Whether a file was written to, or replaced."""
    return any(
        getattr(before, mark, None) != getattr(after, mark, None)
        for mark in ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    )


def _digest(path: str) -> str | None:
    """None of a file that cannot be read: reading it for its arrays will say why."""
    try:
        return digest_of(path)
    except (OSError, ValueError):
        return None
