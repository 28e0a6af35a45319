"""Inputs → outcomes, in order, and results in a folder. Knows no flags and prints nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, zip_longest
from stat import S_ISREG
from typing import Any, TypeVar

from specdec_cli.errors import EnvironmentFault, InputError, SpecdecError, fault_of
from specdec_cli.inputs import Input
from specdec_cli.loading import load_verify_batch
from specdec_cli.outcome import Outcome, Status
from specdec_cli.readers import STDIN, Document, bytes_in_memory, documents
from specdec_cli.results import ResultFolder, State, digest_of
from specdec_cli.writers import encode


@dataclass(frozen=True)
class Settings:
    """What the verification of every input is asked to do; see `verify_batch`."""

    validate: bool = True
    sum_tolerance: Fraction | None = None
    device: str | None = None
    devices: int | str | None = None

    def decisive(self) -> dict[str, Any]:
        """Those that an answer depends on, as JSON can hold them."""
        tolerance = None if self.sum_tolerance is None else str(self.sum_tolerance)
        return {"validate": self.validate, "sum_tolerance": tolerance}


DEFAULTS = Settings()
Join = Callable[[Outcome], Outcome]


def outcomes(
    inputs: Sequence[Input], settings: Settings = DEFAULTS, *, several: bool = False, join: Join | None = None
) -> Iterator[Outcome]:
    """Verify every step of every input, one at a time. A failure is an outcome, and the rest go on.

    Args:
      inputs: what `find_inputs` found.
      settings: for all of them.
      several: they are more than one, and their results stand together.
      join: what makes of the outcome for a share of the rows the one for all.

    Yields:
      An outcome for each step, before the next is read.

    Raises:
      EnvironmentFault: this machine can do none of it.
    """
    for number, opened in enumerate(_ahead(inputs, _opened)):
        blank = Outcome(inputs[number].name, number, several=several)
        yield from _outcomes_of(blank, opened, settings, join)


AHEAD = 1 << 27
"""Bytes of arrays up to which an NPZ is read while the one before it is computed, which saves a tenth to a fifth.

Both are in memory then, hence the limit. JSON, whose parser holds the interpreter's lock, gains nothing from it.
"""

_T = TypeVar("_T")


def _ahead(inputs: Sequence[Input], prepare: Callable[[Input], _T]) -> Iterator[_T]:
    """Prepare each input, and in a thread the next already, while the one is in use."""
    with ThreadPoolExecutor(1) as pool:
        coming: Future[_T] | None = None
        for input, following in zip_longest(inputs, inputs[1:]):
            prepared = prepare(input) if coming is None else coming.result()
            coming = pool.submit(prepare, following) if following and _is_worth_it(following.name) else None
            yield prepared
            del prepared


def _is_worth_it(name: str) -> bool:
    status = _status(name)
    if not name.endswith(".npz") or status is None or not S_ISREG(status.st_mode):
        return False
    with suppress(OSError):
        return status.st_size <= AHEAD and bytes_in_memory(name) <= AHEAD
    return False


def _opened(input: Input) -> Iterator[Document]:
    """The documents of an input, of which the first has been read; or the error, to be raised by them."""
    if input.error is not None:
        return _raising(input.error)
    found = documents(input.name, share=input.share)
    try:
        return chain([next(found)], found)
    except Exception as error:
        return _raising(error)


def _raising(error: Exception) -> Iterator[Document]:
    raise error
    yield


def _outcomes_of(
    blank: Outcome, opened: Iterator[Document], settings: Settings, join: Join | None
) -> Iterator[Outcome]:
    """The steps of an input, each filled into a blank outcome; none is kept while the next is read."""
    try:
        for document in opened:
            outcome = _outcome_of(blank, document, settings)
            yield join(outcome) if join else outcome
            del outcome
            del document
    except Exception as error:
        yield replace(blank, error=_failure(error, blank.name))


def _outcome_of(blank: Outcome, document: Document, settings: Settings) -> Outcome:
    try:
        batch = document.batch()
        # Large inputs are being read while JAX is loaded.
        verification = load_verify_batch()(
            batch,
            validate=settings.validate,
            sum_tolerance=settings.sum_tolerance,
            device=settings.device,
            devices=settings.devices,
        )
    except Exception as error:
        line = document.line if document.in_lines() else None
        return replace(blank, error=_failure(error, document.source, line), document=document)
    return replace(blank, verification=verification, document=document, batch=batch)


def _failure(error: Exception, source: str, line: int | None = None) -> SpecdecError:
    """What is wrong with one input, where the next may be all right: too much for the memory counts as such.

    Raises:
      Exception: the error itself, where the next will fare no better.
    """
    if isinstance(error, InputError):
        return error.named(source, line)
    fault = error if isinstance(error, EnvironmentFault) else fault_of(error)
    if fault is None or not fault.of_one:
        raise error
    fault.source = fault.source or source
    return fault


def into_folder(
    inputs: Sequence[Input],
    folder: ResultFolder,
    settings: Settings = DEFAULTS,
    *,
    resume: bool = False,
    force: bool = False,
    fail_fast: bool = False,
    join: Join | None = None,
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

    Yields:
      An outcome for each step. The last of an input comes when its result is in place.

    Raises:
      EnvironmentFault: results cannot be written, or this machine can do none of it.
    """
    for number, plan in enumerate(_ahead(inputs, lambda input: _plan(input, folder, resume, force))):
        failed = False
        for outcome in _outcomes_into_folder(inputs[number], number, plan, folder, settings, join):
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
        status, digest = _status(input.name), _digest(input.name)
        state = folder.state(input.place, digest)
        if state is State.SAME and resume:
            return _Plan()
        opened = _opened(input)
        free = state in (State.FREE, State.FAILURE)
        if not free and digest is None:
            next(opened)  # says why it cannot be read; what is there stays
        if not free and (state is State.NO_FILE or not force):
            raise _kept(input, folder, state)
        return _Plan(None, opened, status, digest, replace=state is not State.FREE)
    except Exception as error:
        return _Plan(refused=_failure(error, input.name))


def _outcomes_into_folder(
    input: Input, number: int, plan: _Plan, folder: ResultFolder, settings: Settings, join: Join | None
) -> Iterator[Outcome]:
    blank = Outcome(input.name, number)
    if plan.opened is None:
        yield replace(blank, error=plan.refused)
        return
    last = None
    found = _outcomes_of(blank, plan.opened, settings, join)
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
            if _changed(plan.status, _status(input.name)):
                raise InputError("changed while it was read", "run it again when it is whole", source=input.name)
    except FileExistsError:
        state = folder.state(input.place, plan.digest)
        if state is not State.SAME:  # another process was quicker, with something else
            last = replace(blank, error=_kept(input, folder, state))
    except (InputError, EnvironmentFault) as error:
        last = replace(blank, error=_failure(error, input.name))
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


def _status(path: str) -> os.stat_result | None:
    """None of what is not there."""
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


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
