"""Inputs and results by name → pairs, and their steps side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from specdec_cli.batch import Batch, make_batch
from specdec_cli.check.answer import Answer, make_answer
from specdec_cli.errors import InputError
from specdec_cli.inputs import find_inputs
from specdec_cli.readers import STDIN, Document, documents
from specdec_cli.structure import ANSWER_AXES


@dataclass(frozen=True)
class Pair:
    """An input and the result that belongs to it, or why there is none."""

    input: str
    result: str
    error: InputError | None = None


def find_pairs(input: str, result: str, *, recursive: bool = False) -> list[Pair]:
    """Match a file with a file, or the files of a folder with those of another by their names without suffix.

    Raises:
      InputError: one is a folder and the other is not, or both are standard input.
    """
    if os.path.isdir(input) != os.path.isdir(result):
        folder, other = (input, result) if os.path.isdir(input) else (result, input)
        raise InputError(
            f"{folder} is a folder and {other} is not",
            "check takes two files, or two folders whose files have the same names",
        )
    if input == result == STDIN:
        raise InputError("both INPUT and RESULT are standard input", "give one of them as a file")
    if not os.path.isdir(input):
        return [Pair(input, result)]
    inputs, _ = find_inputs([input], recursive=recursive, leave_out=result)
    results, _ = find_inputs([result], recursive=recursive)
    by_stem: dict[str, list[str]] = {}
    for found in results:
        by_stem.setdefault(os.path.splitext(found.place)[0], []).append(found.name)
    pairs = []
    for found in inputs:
        candidates = by_stem.get(os.path.splitext(found.place)[0], [])
        error = found.error
        if error is None and len(candidates) != 1:
            several = f"has {len(candidates)} results: {' and '.join(candidates)}"
            error = InputError(
                several if candidates else f"has no result in {result}",
                "a result has its input's name, and ends in .json, .jsonl or .npz",
                source=found.name,
            )
        pairs.append(Pair(found.name, candidates[0] if candidates else "", error))
    stems = {os.path.splitext(found.place)[0] for found in inputs}
    for stem, names in by_stem.items():
        if stem not in stems:
            error = InputError(f"has no input in {input}", "is it a result of something else?", source=names[0])
            pairs.append(Pair(names[0], "", error))
    return pairs


@dataclass(frozen=True)
class Steps:
    """One step of a pair: the input and the engine's answer."""

    batch: Batch
    answer: Answer
    line: int | None
    """Its line, where the pair is JSON Lines."""
    has_s: bool
    """The input has `sample_uniforms`; where it has none, 0.5 stands for each."""


def steps(pair: Pair) -> Iterator[Steps | InputError]:
    """Read a pair step by step.

    Yields:
      Each step, or what is wrong with it.
    """
    if pair.error is not None:
        yield pair.error
        return
    try:
        both = zip_longest(documents(pair.input), documents(pair.result, ANSWER_AXES))
        for count, (given, said) in enumerate(both):
            if given is None or said is None:
                more, fewer = (pair.input, pair.result) if said is None else (pair.result, pair.input)
                raise InputError(f"ends after {count} step{'s' * (count != 1)}, {more} goes on", source=fewer)
            try:
                yield _step(given, said)
            except InputError as error:
                yield error.named(pair.input, given.line if given.in_lines() else None)
    except InputError as error:
        yield error


def _step(given: Document, said: Document) -> Steps:
    line = given.line if given.in_lines() else None
    if given.fields is None:
        raise given.error or InputError("could not be read")
    fields = given.fields
    has_s = "sample_uniforms" in fields
    if not has_s and "draft_tokens" in fields:
        fields = {**fields, "sample_uniforms": np.full(np.shape(fields["draft_tokens"])[:1], 0.5)}
    batch = make_batch(fields, reading=given.reading, source=given.source)
    try:
        if said.fields is None:
            raise said.error or InputError("could not be read")
        return Steps(batch, make_answer(said.fields, batch), line, has_s)
    except InputError as error:
        raise error.named(said.source, said.line if said.in_lines() else None) from None
