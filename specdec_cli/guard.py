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
AGAIN = "--resume (with -o FOLDER/) does the rest"
"""What to do after a fault in the middle of the work."""
_TO_STOP = 2
"""Seconds in which a signal must have been noticed."""
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
    """Go on in a child; the parent does not return, and ends as the child does.

    Raises:
      EnvironmentFault: there can be no child.
    """
    import ctypes  # before the fork, after which time counts

    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        log = open(os.memfd_create("log"), "w+b") if hasattr(os, "memfd_create") else TemporaryFile()  # noqa: SIM115
        child = os.fork()
    except (OSError, AttributeError) as error:
        raise EnvironmentFault(f"the process that would do the work cannot be started: {error}") from None
    if child:
        _wait(child, log, joining)
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ExitCode.TERMINATED)
    if sys.stderr is not None:  # words for people go on to where they went; the runtime's do not
        ours = os.dup(2)
        encoding = sys.stderr.encoding
        sys.stderr = open(ours, "w", buffering=1, encoding=encoding, errors="backslashreplace")  # noqa: SIM115
    os.dup2(log.fileno(), 2)


def _wait(child: int, log: BinaryIO, joining: Joining) -> NoReturn:
    stopped_by = 0

    def stop(number: int, _: object) -> None:
        nonlocal stopped_by
        with suppress(ProcessLookupError):
            # In the middle of the runtime's own code no signal is noticed; at a second one patience ends.
            os.kill(child, signal.SIGKILL if stopped_by or number == signal.SIGALRM else number)
        if number != signal.SIGALRM:
            stopped_by = number
            signal.alarm(_TO_STOP)

    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    for number in watched:
        signal.signal(number, stop)
    _, status = os.waitpid(child, 0)
    for number in watched:
        signal.signal(number, signal.SIG_IGN)
    code = os.waitstatus_to_exitcode(status)
    if stopped_by and code < 0:
        code = 128 + stopped_by
    elif code < 0 or code == ExitCode.DISAGREES:  # which is no command's own that is run by several
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
        if str(joining.process) in numbers:
            return EnvironmentFault(f"{joining.name} was held up for longer than {patience}", AGAIN)
        who = f"process{'es' * (len(numbers) > 1)} {', '.join(numbers)}"
        return EnvironmentFault(f"{who} gave no sign of life for {patience}", AGAIN)
    if "UNAVAILABLE" in said or "CANCELLED" in said:
        return EnvironmentFault(f"process 0 has ended, or cannot be reached any more at {where}", AGAIN)
    return EnvironmentFault(f"the processes lost each other: {_status_in(said)}", AGAIN)


def _status_in(said: str) -> str:
    found = re.search(r"absl::Status: ([^\n]+)", said)
    return found[1] if found else "JAX does not say why"


def _unexplained(code: int, log: str) -> EnvironmentFault:
    if "Failed to add port" in log:
        return EnvironmentFault("process 0 cannot listen there", "choose another port for --coordinator")
    if code == -signal.SIGKILL:
        return EnvironmentFault("was killed", "by hand, by a limit on time, or by the system for want of memory")
    try:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    except ValueError:  # of the real-time signals few have a name
        how = f"was ended by signal {-code}"
    return EnvironmentFault(f"{how}{': ' * bool(log.strip())}{log.strip()[-_LAST_WORDS:]}")
