"""What stands behind a process of several, and says in a sentence what ended it.

JAX's distributed runtime does not raise an exception when another process has died or its coordinator cannot be
reached: it ends the process from within, with a stack trace. So the work is done by a child, and its parent, which
imports no JAX and does nothing else, reads what the runtime wrote.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import BinaryIO, NoReturn

from specdec_cli import terminal
from specdec_cli.errors import EnvironmentFault, ExitCode

_DIE_WITH_PARENT = 1
"""prctl's PR_SET_PDEATHSIG, on Linux."""
_LAST_WORDS = 2000
"""Characters that are shown of what is not understood."""


@dataclass(frozen=True)
class Joining:
    """How a process finds the others; what is None is left to JAX's detection of clusters."""

    coordinator: str | None
    """HOST:PORT of process 0."""
    number: int | None
    """How many processes there are."""
    process: int | None
    """Which of them this is, from 0."""
    timeout: int
    """Seconds after which one that gives no sign of life counts as dead."""

    @property
    def name(self) -> str:
        """For messages: what others call this process."""
        return "this process" if self.process is None else f"process {self.process}"


def stand_behind(joining: Joining) -> None:
    """Go on in a child; the parent does not return, and ends as the child does."""
    if not hasattr(os, "fork"):
        raise EnvironmentFault("--distributed is for Linux and macOS: this system has no fork")
    log = TemporaryFile()  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    child = os.fork()
    if child:
        _wait(child, log, joining)
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if sys.stderr is not None:  # words for people go on to where they went; the runtime's do not
        ours = os.dup(2)
        sys.stderr = open(ours, "w", encoding=sys.stderr.encoding, errors="backslashreplace")  # noqa: SIM115
    os.dup2(log.fileno(), 2)


def _wait(child: int, log: BinaryIO, joining: Joining) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0 or code == ExitCode.DISAGREES:  # which is no command's own that is run by several
        log.seek(0)
        terminal.say(fault_of_end(code, log.read().decode(errors="replace"), joining).block())
        code = ExitCode.ENVIRONMENT
    os._exit(code)


def fault_of_end(code: int, log: str, joining: Joining) -> EnvironmentFault:
    """Why a process ended that had no word in it.

    Args:
      code: its exit code, or less than 0: the number of a signal.
      log: what it wrote on its standard error.
      joining: how it was to find the others.
    """
    *_, said = log.rpartition("detected fatal errors")
    if len(said) == len(log):
        return _unexplained(code, log)
    where, patience = joining.coordinator or "process 0", f"{joining.timeout} seconds"
    again = "--resume (with -o FOLDER/) does the rest"
    if twin := re.search(r"(?:task:)?(\d+) unexpectedly tried to connect|newer incarnation", said):
        who = f"process {twin[1]}" if twin[1] else joining.name
        return EnvironmentFault(f"another process came as {who} too", "each needs a --process-id of its own")
    if "Unexpected task registered" in said:
        return EnvironmentFault(
            f"{joining.name} is none that process 0 waits for",
            "--num-processes must be the same for all, and ids go from 0 to one less",
        )
    if "RegisterTask" in said:
        return EnvironmentFault(
            f"not all processes came together at {where} within {patience}",
            "is process 0 there, can the others reach it, and were all started, each with an id of its own? "
            "--distributed-timeout SECONDS waits longer",
        )
    if dead := re.search(r"stopped sending heartbeats\):\s*((?:\S*?\d+\n)+)", said):
        numbers = re.findall(r"(\d+)\n", dead[1])
        who = f"process{'es' * (len(numbers) > 1)} {', '.join(numbers)}"
        return EnvironmentFault(f"{who} gave no sign of life for {patience}", again)
    if "UNAVAILABLE" in said or "CANCELLED" in said:
        return EnvironmentFault(f"process 0 has ended, or cannot be reached any more at {where}", again)
    return EnvironmentFault(f"the processes lost each other: {_status_in(said)}", again)


def _status_in(said: str) -> str:
    found = re.search(r"absl::Status: ([^\n]+)", said)
    return found[1] if found else "JAX does not say why"


def _unexplained(code: int, log: str) -> EnvironmentFault:
    if code == -signal.SIGKILL:
        return EnvironmentFault("was killed", "by hand, by a limit on time, or by the system for want of memory")
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return EnvironmentFault(f"{how}{': ' * bool(log.strip())}{log.strip()[-_LAST_WORDS:]}")
