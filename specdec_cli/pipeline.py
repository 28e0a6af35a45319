"""Inputs → outcomes, in order. Knows no flags and prints nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain, zip_longest
from stat import S_ISREG
from typing import TypeVar

from specdec_cli.errors import EnvironmentFault, InputError, SpecdecError, fault_of
from specdec_cli.inputs import Input
from specdec_cli.loading import load_verify_batch
from specdec_cli.outcome import Outcome
from specdec_cli.readers import Document, bytes_in_memory, documents
from specdec_cli.settings import DEFAULTS, Settings

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
    for input, opened in zip(inputs, ahead(inputs, opened_of), strict=True):
        blank = Outcome(input.name, input.number, several=several)
        yield from outcomes_of(blank, opened, settings, join)


AHEAD = 1 << 27
"""Bytes of arrays up to which an NPZ is read while the one before it is computed, which saves a tenth to a fifth.

Both are in memory then, hence the limit. JSON, whose parser holds the interpreter's lock, gains nothing from it.
"""

_T = TypeVar("_T")


def ahead(inputs: Sequence[Input], prepare: Callable[[Input], _T]) -> Iterator[_T]:
    """Prepare each input, and in a thread the next already, while the one is in use."""
    with ThreadPoolExecutor(1) as pool:
        coming: Future[_T] | None = None
        for input, following in zip_longest(inputs, inputs[1:]):
            prepared = prepare(input) if coming is None else coming.result()
            coming = pool.submit(prepare, following) if following and _is_worth_it(following.name) else None
            yield prepared
            del prepared


def _is_worth_it(name: str) -> bool:
    status = status_of(name)
    if not name.endswith(".npz") or status is None or not S_ISREG(status.st_mode):
        return False
    with suppress(OSError):
        return status.st_size <= AHEAD and bytes_in_memory(name) <= AHEAD
    return False


def opened_of(input: Input) -> Iterator[Document]:
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


def outcomes_of(
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
        yield replace(blank, error=failure_of(error, blank.name))


def _outcome_of(blank: Outcome, document: Document, settings: Settings) -> Outcome:
    try:
        batch = document.batch()
        # Large inputs are being read while JAX is loaded.
        verification = load_verify_batch()(batch, settings)
    except Exception as error:
        line = document.line if document.in_lines() else None
        return replace(blank, error=failure_of(error, document.source, line), document=document)
    return replace(blank, verification=verification, document=document, batch=batch)


def failure_of(error: Exception, source: str, line: int | None = None) -> SpecdecError:
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


def status_of(path: str) -> os.stat_result | None:
    """None of what is not there."""
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None
