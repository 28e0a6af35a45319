"""What can go wrong, as data: where, what was found and expected, and what to do about it.

One shape serves the terminal (`block`), a JSON Lines record (`record`) and a Python caller (`str`).
"""

from __future__ import annotations

import enum
import os
import re
from typing import Any


class ExitCode(enum.IntEnum):
    """How the process ends; 0 and 2 are Typer's own as well."""

    OK = 0
    DISAGREES = 1
    """`check` found a row on which an engine is wrong."""
    INPUT = 2
    """Wrong usage, or an input that could not be read or is not valid."""
    ENVIRONMENT = 3
    """This machine could not do it: no such device, no memory, no room for the output."""
    INTERRUPTED = 130
    CLOSED_PIPE = 141
    """The reader of stdout went away, as `head` does; what a shell reports for SIGPIPE."""
    TERMINATED = 143
    """By SIGTERM."""


def text_of(name: str) -> str:
    """A file name as JSON can hold it: bytes that are not UTF-8 are written in hexadecimal."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def place_of(field: str, index: tuple[int, ...]) -> str:
    """`target_probs[0][1]`: a position in an array as messages write it."""
    return field + "".join(f"[{i}]" for i in index)


class SpecdecError(Exception):
    """A fault that the user can act on: never shown with a traceback.

    Args:
      problem: what was found and what was expected: a sentence without a full stop, which goes on from the
        name of a field if there is one ("is 1.5, expected …").
      hint: the usual cause or the next action, or empty.
      source: the input's name exactly as the user gave it, None where no input or no file is at fault.
    """

    exit_code: ExitCode = ExitCode.INPUT

    def __init__(self, problem: str, hint: str = "", *, source: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        self.source = source

    @property
    def place(self) -> str:
        """What stands before the problem: the input's name."""
        return "" if self.source is None else f"{self.source}: "

    def record(self) -> dict[str, Any]:
        """The fault as JSON Lines carry it in the place of a result."""
        return {"problem": self.problem, "hint": self.hint}

    def block(self) -> str:
        """The lines that a person reads on stderr, without a final newline."""
        first = f"error: {self.sentence}"
        return f"{first}\n hint: {self.hint}" if self.hint else first

    @property
    def sentence(self) -> str:
        """Place and problem, as one sentence."""
        return f"{self.place}{self.problem}"

    def __str__(self) -> str:
        return f"{self.sentence} (hint: {self.hint})" if self.hint else self.sentence


class InputError(SpecdecError, ValueError):
    """An input that is not what the contract accepts.

    Args:
      problem: as in `SpecdecError`.
      hint: as in `SpecdecError`.
      source: as in `SpecdecError`; None for arrays from Python.
      line: its line, when the input is one of several in JSON Lines.
      field: the array at fault, None when the fault is the whole input's.
      index: position in that array, as far as it is known.
    """

    def __init__(
        self,
        problem: str,
        hint: str = "",
        *,
        source: str | None = None,
        line: int | None = None,
        field: str | None = None,
        index: tuple[int, ...] = (),
    ) -> None:
        super().__init__(problem, hint, source=source)
        self.line = line
        self.field = field
        self.index = index

    @property
    def place(self) -> str:
        """`file: target_probs[0][1] `, or as much of it as is known."""
        source = super().place
        if self.line is not None:
            source += f"line {self.line}: "
        return f"{source}{self.where} " if self.field else source

    @property
    def where(self) -> str:
        """`target_probs[0][1]`; empty when the fault is the whole input's."""
        return place_of(self.field or "", self.index)

    def named(self, source: str | None, line: int | None = None) -> InputError:
        """The same fault with the input's name and line filled in, for code that did not know them."""
        self.source = self.source or source
        self.line = self.line or line
        return self

    def moved(self, rows: int) -> InputError:
        """The same fault of a batch that is preceded by that many rows."""
        if self.index:
            self.index = (self.index[0] + rows, *self.index[1:])
        return self

    def record(self) -> dict[str, Any]:
        """The same with line, field and index."""
        line = {} if self.line is None else {"line": self.line}
        where = {"field": self.field, "index": list(self.index)}
        return {**line, **where, **super().record()}


class UnfinishedError(InputError):
    """A text that ends before it is complete."""


class EnvironmentFault(SpecdecError, RuntimeError):
    """The input may be fine, but this machine cannot do what was asked.

    Args:
      problem: as in `SpecdecError`.
      hint: as in `SpecdecError`.
      source: as in `SpecdecError`.
      of_one: it is this one input's, as a name that is too long is; the next may do better.
    """

    exit_code = ExitCode.ENVIRONMENT

    def __init__(self, problem: str, hint: str = "", *, source: str | None = None, of_one: bool = False) -> None:
        super().__init__(problem, hint, source=source)
        self.of_one = of_one


class EmptyResidualWarning(UserWarning):
    """A rejection left nothing to correct to (p ≤ q everywhere): the token came from p itself."""


def fault_of(error: Exception) -> EnvironmentFault | None:
    """The fault of this machine that an exception from elsewhere stands for, if it is one a user can act on."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return EnvironmentFault(
            "out of memory",
            "give the input in parts (fewer rows each), or use a machine or device with more",
            of_one=True,
        )
    if type(error) is RuntimeError and "can't start new thread" in str(error):
        return EnvironmentFault(
            "no more threads can be started", "ulimit -u, or the container, limits their number"
        )
    if type(error) is RuntimeError and (setting := re.search("no_(tracing|execution)", str(error))):
        return EnvironmentFault(f"JAX is kept from computing by JAX_{setting[0].upper()}", "unset that variable")
    if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
        return EnvironmentFault(f"JAX could not compute: {str(error).splitlines()[0]}", of_one=True)
    return None
