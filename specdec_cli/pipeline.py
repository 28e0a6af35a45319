"""An input → outcomes, in order. Knows no flags and prints nothing."""

from __future__ import annotations

from collections.abc import Iterator
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

    @property
    def line(self) -> int | None:
        """Its line, where the input is JSON Lines."""
        return self.document.line if self.document is not None and self.in_lines else None

    @property
    def in_lines(self) -> bool:
        """Whether the input is JSON Lines, so that a record stands for a failure and the rest go on."""
        return self.document is not None and self.document.in_lines()

    def words(self) -> list[str]:
        """What a person should be told: the error, or a warning for each row with an empty residual."""
        if self.error is not None:
            return [self.error.block()]
        if self.verification is None or self.document is None or not self.verification.empty_residual.any():
            return []
        line = f"line {self.document.line}: " if self.in_lines else ""
        texts = empty_residual_texts(self.verification)
        return [f"warning: {self.document.source}: {line}{text}" for text in texts]


def outcomes(
    name: str,
    *,
    validate: bool = True,
    sum_tolerance: Fraction | None = None,
    device: str | None = None,
) -> Iterator[Outcome]:
    """Verify every step of an input, one at a time.

    Args:
      name: a path, or `-` for standard input.
      validate: as in `verify_batch`.
      sum_tolerance: as in `verify_batch`.
      device: as in `verify_batch`.

    Yields:
      An outcome for each step, before the next is read.

    Raises:
      EnvironmentFault: this machine cannot do it.
    """
    try:
        for document in documents(name):
            try:
                batch = document.batch()
                verification = verify_batch(batch, validate=validate, sum_tolerance=sum_tolerance, device=device)
            except InputError as error:
                line = document.line if document.in_lines() else None
                yield Outcome(name, None, error.named(document.source, line), document)
            else:
                yield Outcome(name, verification, None, document, batch)
    except InputError as error:
        yield Outcome(name, None, error, None)
