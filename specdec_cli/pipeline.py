"""Inputs → outcomes, in order. Knows no flags and prints nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from specdec_cli.batch import Batch
from specdec_cli.decide import Verification, empty_residual_texts
from specdec_cli.errors import InputError
from specdec_cli.readers import Document, documents
from specdec_cli.verification import verify_batch


@dataclass(frozen=True)
class Outcome:
    """What became of one step: its verification, or the error that stands in its place."""

    name: str
    """The input as the user named it."""
    verification: Verification | None
    error: InputError | None
    document: Document | None
    """Where it came from; None when the input could not be read at all."""
    batch: Batch | None = None
    """What was verified."""
    several: bool = False
    """One of several inputs, so that what stands for it bears its name."""

    @property
    def line(self) -> int | None:
        """Its line, where the input is JSON Lines."""
        return self.document.line if self.document is not None and self.in_lines else None

    @property
    def in_lines(self) -> bool:
        """Whether the input is JSON Lines."""
        return self.document is not None and self.document.in_lines()

    @property
    def recorded(self) -> bool:
        """Whether a failure leaves a record in its place, because others follow."""
        return self.several or self.in_lines

    def words(self) -> list[str]:
        """What a person should be told: the error, or a warning for each row with an empty residual."""
        if self.error is not None:
            return [self.error.block()]
        if self.verification is None or self.document is None or not self.verification.empty_residual.any():
            return []
        line = f"line {self.document.line}: " if self.in_lines else ""
        texts = empty_residual_texts(self.verification)
        return [f"warning: {self.document.source}: {line}{text}" for text in texts]


PATTERNS = (".json", ".jsonl", ".npz")
"""What is taken from a folder."""


def find_inputs(names: Sequence[str], *, recursive: bool = False) -> tuple[list[str | InputError], bool]:
    """Put the files of a folder in its place.

    Args:
      names: paths, and `-` for standard input.
      recursive: look in the folders below as well.

    Returns:
      The inputs in the order given, those of a folder sorted by name, and an error in the place of a folder that
      has none; and whether they count as several, as more than one name and any folder do.
    """
    found: list[str | InputError] = []
    several = len(names) > 1
    for name in names:
        if not os.path.isdir(name):
            found.append(name)
            continue
        several = True
        files = sorted(_files(name, recursive))
        found.extend(files)
        if not files:
            hint = "" if recursive else "--recursive looks in the folders below it too"
            found.append(InputError("holds no .json, .jsonl or .npz file", hint, source=name))
    return found, several


def _files(folder: str, recursive: bool) -> Iterator[str]:
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")] if recursive else []
        for name in names:
            if name.endswith(PATTERNS) and not name.startswith("."):
                yield os.path.join(path, name)


def outcomes(
    names: Iterable[str | InputError],
    *,
    several: bool = False,
    validate: bool = True,
    sum_tolerance: Fraction | None = None,
    device: str | None = None,
) -> Iterator[Outcome]:
    """Verify every step of every input, one at a time. A failure is an outcome, and the rest go on.

    Args:
      names: paths, `-` for standard input, or what is already known to be wrong with an input.
      several: they are more than one.
      validate: as in `verify_batch`.
      sum_tolerance: as in `verify_batch`.
      device: as in `verify_batch`.

    Yields:
      An outcome for each step, before the next is read.

    Raises:
      EnvironmentFault: this machine cannot do it.
    """
    for name in names:
        if isinstance(name, InputError):
            yield Outcome(name.source or "", None, name, None, several=several)
            continue
        try:
            for document in documents(name):
                try:
                    batch = document.batch()
                    verification = verify_batch(
                        batch, validate=validate, sum_tolerance=sum_tolerance, device=device
                    )
                except InputError as error:
                    line = document.line if document.in_lines() else None
                    error.named(document.source, line)
                    yield Outcome(name, None, error, document, several=several)
                else:
                    yield Outcome(name, verification, None, document, batch, several)
        except InputError as error:
            yield Outcome(name, None, error, None, several=several)
