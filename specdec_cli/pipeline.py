"""Inputs → outcomes, in order, and results in a folder. Knows no flags and prints nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from specdec_cli.errors import InputError, SpecdecError, fault_of
from specdec_cli.outcome import Outcome, Status
from specdec_cli.readers import STDIN, documents
from specdec_cli.results import ResultFolder, State, digest_of
from specdec_cli.verification import verify_batch
from specdec_cli.writers import encode


@dataclass(frozen=True)
class Input:
    """A file, standard input, or what is already known to be wrong."""

    name: str
    """As the user named it, or as it was found in a folder that the user named."""
    place: str
    """Where its result belongs in a folder of results: its path in the folder it was found in, or its own name."""
    error: InputError | None = None


PATTERNS = (".json", ".jsonl", ".npz")
"""What is taken from a folder."""


def find_inputs(
    names: Sequence[str], *, recursive: bool = False, leave_out: str | None = None
) -> tuple[list[Input], bool]:
    """Put the files of a folder in its place.

    Args:
      names: paths, and `-` for standard input.
      recursive: look in the folders below as well.
      leave_out: a folder that is not looked into, as the one that results go to.

    Returns:
      The inputs in the order given, those of a folder sorted by name, and an error in the place of a folder that
      has none; and whether they count as several, as more than one name and any folder do.
    """
    found: list[Input] = []
    several = len(names) > 1
    for name in names:
        if not os.path.isdir(name):
            found.append(Input(name, os.path.basename(name) or name))
            continue
        several = True
        files = sorted(_files(name, recursive, leave_out))
        found.extend(Input(file, os.path.relpath(file, name)) for file in files)
        if not files:
            hint = "" if recursive else "--recursive looks in the folders below it too"
            error = InputError("holds no .json, .jsonl or .npz file", hint, source=name)
            found.append(Input(name, "", error))
    return found, several


def _files(folder: str, recursive: bool, leave_out: str | None) -> Iterator[str]:
    left_out = None if leave_out is None else os.path.realpath(leave_out)
    for path, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if recursive and not name.startswith(".") and os.path.realpath(os.path.join(path, name)) != left_out
        ]
        for name in names:
            if name.endswith(PATTERNS) and not name.startswith("."):
                yield os.path.join(path, name)


@dataclass(frozen=True)
class Settings:
    """What the verification of every input is asked to do; see `verify_batch`."""

    validate: bool = True
    sum_tolerance: Fraction | None = None
    device: str | None = None

    def decisive(self) -> dict[str, Any]:
        """Those that an answer depends on, as JSON can hold them."""
        tolerance = None if self.sum_tolerance is None else str(self.sum_tolerance)
        return {"validate": self.validate, "sum_tolerance": tolerance}


DEFAULTS = Settings()


def outcomes(
    inputs: Sequence[Input], settings: Settings = DEFAULTS, *, several: bool = False
) -> Iterator[Outcome]:
    """Verify every step of every input, one at a time. A failure is an outcome, and the rest go on.

    Args:
      inputs: what `find_inputs` found.
      settings: for all of them.
      several: they are more than one, and their results stand together.

    Yields:
      An outcome for each step, before the next is read.

    Raises:
      EnvironmentFault: this machine can do none of it.
    """
    for number, input in enumerate(inputs):
        for outcome in _outcomes_of(input, settings):
            yield replace(outcome, number=number, several=several)


def _outcomes_of(input: Input, settings: Settings) -> Iterator[Outcome]:
    if input.error is not None:
        yield Outcome(input.name, error=input.error)
        return
    try:
        for document in documents(input.name):
            try:
                batch = document.batch()
                verification = verify_batch(
                    batch,
                    validate=settings.validate,
                    sum_tolerance=settings.sum_tolerance,
                    device=settings.device,
                )
            except Exception as error:
                line = document.line if document.in_lines() else None
                failure = _failure(error, document.source, line)
                yield Outcome(input.name, error=failure, document=document)
            else:
                yield Outcome(input.name, verification=verification, document=document, batch=batch)
    except Exception as error:
        yield Outcome(input.name, error=_failure(error, input.name))


def _failure(error: Exception, source: str, line: int | None = None) -> SpecdecError:
    """What is wrong with one input, where the next may be all right: too much for the memory counts as such.

    Raises:
      Exception: the error itself, where the next will fare no better.
    """
    if isinstance(error, InputError):
        return error.named(source, line)
    fault = fault_of(error)
    if fault is None:
        raise error
    fault.source = source
    return fault


def into_folder(
    inputs: Sequence[Input],
    folder: ResultFolder,
    settings: Settings = DEFAULTS,
    *,
    resume: bool = False,
    force: bool = False,
) -> Iterator[Outcome]:
    """Verify every input into a result of its own, which holds what `specdec run` prints for that input alone.

    A failure leaves its record as the result, and is tried again the next time.

    Args:
      inputs: what `find_inputs` found.
      folder: where results go.
      settings: for all of them.
      resume: skip an input whose result is there and would come out the same.
      force: replace any other result that is there; without it such an input fails, and the result is kept.

    Yields:
      An outcome for each step. The last of an input comes when its result is in place.

    Raises:
      InputError: two inputs would have one result, or a result would replace an input; nothing has been written.
      EnvironmentFault: results cannot be written, or this machine can do none of it.
    """
    _refuse_clashes(inputs, folder)
    for number, input in enumerate(inputs):
        for outcome in _outcomes_into_folder(input, folder, settings, resume, force):
            yield replace(outcome, number=number)


def _outcomes_into_folder(
    input: Input, folder: ResultFolder, settings: Settings, resume: bool, force: bool
) -> Iterator[Outcome]:
    try:
        if input.error is not None:
            raise input.error
        _refuse_nameless(input)
        status, digest = _status(input.name), _digest(input.name)
        if _is_there(input, folder, digest, resume, force):
            yield Outcome(input.name)
            return
        last = None
        with folder.writing(input.place, digest) as file:
            found = _outcomes_of(input, settings)
            for outcome in found if folder.suffix == ".json" else _only_one(found):
                if last is not None:
                    yield last
                last = outcome
                file.failed |= outcome.status is Status.FAILED
                file.write(encode(outcome, folder.suffix, record=True) or b"")
            if _status(input.name) != status:
                raise InputError("changed while it was read", "run it again when it is whole", source=input.name)
        if last is not None:
            yield last
    except InputError as error:
        yield Outcome(input.name, error=error)


def _only_one(found: Iterator[Outcome]) -> Iterator[Outcome]:
    """The one outcome that an NPZ file can hold, or a failure where there are more."""
    first = next(found)
    if next(found, None) is not None:
        error = InputError(
            "holds several steps, and an NPZ file holds one", "-o FOLDER/ without --output-format npz"
        )
        first = Outcome(first.name, error=error.named(first.name))
    yield first


def _is_there(input: Input, folder: ResultFolder, digest: str | None, resume: bool, force: bool) -> bool:
    """Whether the input can be skipped, because its result is there.

    Raises:
      InputError: one that must not be replaced is there.
    """
    state = folder.state(input.place, digest)
    if state is State.SAME and resume:
        return True
    if state is State.FREE or force:
        return False
    skip = "--resume skips what is done, " if state is State.SAME else ""
    raise InputError(
        f"{folder.result_of(input.place)} {state.value}: kept", f"{skip}--force replaces it", source=input.name
    )


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


def _refuse_clashes(inputs: Sequence[Input], folder: ResultFolder) -> None:
    files = [input for input in inputs if input.error is None and "\0" not in input.name]
    given = {os.path.realpath(input.name): input.name for input in files}
    taken: dict[str, str] = {}
    for input in files:
        result = folder.result_of(input.place)
        lost = given.get(os.path.realpath(result))
        if lost is not None:
            raise InputError(f"the result {result} would replace the input {lost}", "write to another folder")
        if result in taken:
            raise InputError(
                f"{taken[result]} and {input.name} would both have the result {result}",
                "give a folder that holds both, with --recursive, or run them apart into two folders",
            )
        taken[result] = input.name


def _status(path: str) -> tuple[int, ...] | None:
    """What changes when a file is written to; None when it is not there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _digest(path: str) -> str | None:
    """None of a file that cannot be read: reading it for its arrays will say why."""
    try:
        return digest_of(path)
    except (OSError, ValueError):
        return None
