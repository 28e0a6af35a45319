"""`Outcome`: what became of one step of one input."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property

from specdec_cli.batch import Batch
from specdec_cli.decide import Decided, empty_residual_texts
from specdec_cli.errors import SpecdecError
from specdec_cli.readers import Document


class Status(enum.Enum):
    """How it ended; the values are the words of a summary."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Its result was there already."""


@dataclass(frozen=True)
class Outcome:
    """A verification, or the error that stands in its place, or neither where the result was there already."""

    name: str
    """The input as the user named it."""
    number: int = 0
    """Which of the inputs, from 0."""
    verification: Decided | None = None
    """The answer; with its evidence, where it was made by this process."""
    error: SpecdecError | None = None
    document: Document | None = None
    """Where it came from; None when the input could not be read at all, or was not."""
    batch: Batch | None = None
    """What was verified."""
    several: bool = False
    """One of several inputs, so that what stands for it bears its name."""

    @property
    def status(self) -> Status:
        """How it ended."""
        if self.error is not None:
            return Status.FAILED
        return Status.SKIPPED if self.verification is None else Status.DONE

    @property
    def line(self) -> int | None:
        """Its line, where the input is JSON Lines."""
        return self.document.line if self.document is not None and self.in_lines else None

    @cached_property
    def in_lines(self) -> bool:
        """Whether the input is JSON Lines."""
        return self.document is not None and self.document.in_lines()

    def settle(self) -> None:
        """Find out whether it is one of several lines, before the input is read on."""
        self.in_lines  # noqa: B018

    @property
    def recorded(self) -> bool:
        """Whether a failure leaves a record in its place, because others follow."""
        return self.several or self.in_lines

    def warnings(self) -> list[str]:
        """What a person should be told about an answer: a warning for each row with an empty residual."""
        if self.verification is None or self.document is None or not self.verification.empty_residual.any():
            return []
        line = f"line {self.document.line}: " if self.in_lines else ""
        texts = empty_residual_texts(self.verification)
        return [f"warning: {self.document.source}: {line}{text}" for text in texts]
