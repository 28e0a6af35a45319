"""What surrounds a command: its streams, its signals and its exit code."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn, TextIO

from specdec_cli.errors import EnvironmentFault, ExitCode, SpecdecError, fault_of

mending = b""
"""What brings the terminal back into its usual state, while something on it is not."""
farewell: Callable[[], str] | None = None
"""What to say when the user stops the process."""


def prepare_process() -> None:
    """Set up what holds for the whole process."""
    for number in range(3):  # a descriptor that the caller closed must not become that of a result
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    signal.signal(signal.SIGINT, lambda *_: _stop(ExitCode.INTERRUPTED))
    signal.signal(signal.SIGTERM, lambda *_: _stop(ExitCode.TERMINATED))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace" if stream is sys.stderr else "replace")


@contextmanager
def reporting() -> Iterator[None]:
    """Turn every fault that a user can act on into a sentence on stderr and an exit code."""
    try:
        yield
    except SpecdecError as error:
        _fail(error)
    except Exception as error:
        known = fault_of(error)
        if known is None:
            raise
        _fail(known)


def _fail(error: SpecdecError) -> NoReturn:
    say(error.block())
    sys.exit(error.exit_code)


def say(text: str) -> None:
    """Write a line on stderr, file names in it byte for byte as they were given."""
    if sys.stderr is None:  # the caller closed it
        return
    if sys.stderr.isatty():  # a file name must not steer the terminal
        text = re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", lambda match: repr(match.group())[1:-1], text)
    show(text)


def show(text: str) -> None:
    """Write a line on stderr that may hold what steers a terminal."""
    if sys.stderr is None:
        return
    encoding = sys.stderr.encoding or "utf-8"
    try:
        data = text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:
        data = text.encode(encoding, "backslashreplace")
    with suppress(OSError):  # nobody listens; the exit code still tells
        sys.stderr.flush()
        sys.stderr.buffer.write(data + b"\n")
        sys.stderr.buffer.flush()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that can redraw a line; FORCE_COLOR, which rich asks, has no say in it."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def write_stdout(data: bytes) -> None:
    """Write a piece of the output, and not return before it is out.

    Raises:
      EnvironmentFault: it cannot be written.
      SystemExit: the reader has gone.
    """
    if sys.stdout is None:  # the caller closed it: specdec … >&-
        raise EnvironmentFault("standard output is closed", "-o FILE writes a file")
    try:
        stream, left = sys.stdout.buffer, memoryview(data)
        while left:  # without a buffer (PYTHONUNBUFFERED) a write may take a part only
            taken = stream.write(left)
            if taken is None:
                raise BlockingIOError(errno.EAGAIN, "it is set not to wait for its reader")
            left = left[taken:]
        stream.flush()
    except OSError as error:
        _discard_stdout()
        if isinstance(error, BrokenPipeError):  # the reader has gone, as `head` does: stop quietly
            sys.exit(ExitCode.CLOSED_PIPE)
        raise EnvironmentFault(f"standard output cannot be written: {error.strerror}") from None


def _discard_stdout() -> None:
    """Lead stdout nowhere, or the flush at exit would fail again."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _stop(code: ExitCode) -> NoReturn:
    """End at once: an exception raised in the middle of JAX's own code can end in a crash."""
    with suppress(OSError, ValueError):
        said = mending + (farewell().encode() + b"\n" if farewell else b"")
        os.write(2 if sys.stderr is None else sys.stderr.fileno(), said)
    writers = sys.modules.get("specdec_cli.writers")
    for name in list(writers.temporary_names) if writers else []:
        with suppress(OSError):
            os.unlink(name)
    os._exit(code)


@contextmanager
def reporting_what_typer_writes() -> Iterator[None]:
    """The same for what Typer itself writes: help, version and wrong usage, to a full disk or a closed pipe."""
    try:
        yield
    except SystemExit as ended:
        # Typer and rich say 1 when the reader has gone: of help, or of what was wrong with the usage.
        if isinstance(ended.__context__, BrokenPipeError):
            sys.exit(getattr(ended.__context__.__context__, "exit_code", ExitCode.CLOSED_PIPE))
        raise
    except OSError as error:
        say(f"error: the output cannot be written: {error.strerror}")
        _discard_stdout()
        sys.exit(ExitCode.ENVIRONMENT)
