"""Several processes, on one machine or many: who they are, and what they tell each other.

JAX's distributed runtime brings them together, sees when one dies (`guard.py`), and keeps the messages: a store of
keys and values at process 0. No array is spread over processes; what crosses the network is answers and counts.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from specdec_cli.errors import EnvironmentFault, ExitCode, InputError, SpecdecError, fault_of
from specdec_cli.guard import AGAIN, Joining
from specdec_cli.loading import loading_jax

_PIECE = 1 << 24
"""Bytes of a message that are sent at a time."""
_PATIENCE = 500
"""Milliseconds of one wait for a message, in which no signal is noticed; another follows.

So it goes on as long as the runtime finds all processes alive.
"""


_FAILED = "specdec/failed"
"""Where the first process leaves word that it cannot go on."""


@dataclass(frozen=True)
class Cluster:
    """The processes that work together; alone, there is nobody to talk to."""

    process: int = 0
    number: int = 1
    _client: Any = None

    @property
    def leads(self) -> bool:
        """Whether this is process 0, which gathers results and speaks for all."""
        return self.process == 0

    def send(self, key: str, data: bytes) -> None:
        """Leave a message for whoever asks for it; a key is used once."""
        pieces = [data[start : start + _PIECE] for start in range(0, max(len(data), 1), _PIECE)]
        for count, piece in enumerate(pieces):
            with _in_touch():
                self._client.key_value_set_bytes(f"specdec/{key}/{count}", b"%d " % len(pieces) + piece)

    def receive(self, key: str, *, keep: bool = False) -> bytes:
        """Wait for a message, and take it.

        Args:
          key: what it was sent under.
          keep: others are to receive it too.
        """
        pieces: list[bytes] = []
        number = 1
        while len(pieces) < number:
            place = f"specdec/{key}/{len(pieces)}"
            total, _, piece = self._wait_for(place).partition(b" ")
            if not keep:
                with _in_touch():
                    self._client.key_value_delete(place)
            pieces.append(piece)
            number = int(total)
        return b"".join(pieces)

    def _wait_for(self, place: str) -> bytes:
        while True:
            found = self._found(place, _PATIENCE)
            if found is not None:
                return found
            if failed := self._found(_FAILED, 1):
                raise EnvironmentFault(failed.decode(), AGAIN)

    def _found(self, place: str, milliseconds: int) -> bytes | None:
        with _in_touch():
            try:
                found: bytes = self._client.blocking_key_value_get_bytes(place, milliseconds)
                return found
            except Exception as error:  # JAX's own type, by version
                if "DEADLINE_EXCEEDED" in str(error):
                    return None
                raise

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell the others, who may be waiting for this process, why it cannot go on."""
        try:
            yield
        except Exception as error:
            fault = error if isinstance(error, SpecdecError) else fault_of(error)
            said = str(error) if fault is None else fault.sentence
            if self._client is not None:
                with suppress(Exception):  # another was quicker, or nobody is left
                    self._client.key_value_set_bytes(_FAILED, f"process {self.process} gave up: {said}".encode())
                if fault is None:  # an end in the usual way would wait for the others
                    traceback.print_exc()
                    os._exit(ExitCode.DISAGREES)
            raise

    def agree(self, digests: dict[str, str]) -> None:
        """See that all processes were given the same.

        Args:
          digests: what must be the same, by what it is called in a message.

        Raises:
          InputError: it is not; in every process.
        """
        if self.number == 1:
            return
        fault = b""
        if self.leads:
            for other in range(1, self.number):
                theirs = json.loads(self.receive(f"given/{other}"))
                differ = [name for name, digest in digests.items() if theirs.get(name) != digest]
                if differ and not fault:
                    fault = f"process {other} was given other {' and '.join(differ)} than process 0".encode()
            self.send("agreed", fault)
        else:
            self.send(f"given/{self.process}", json.dumps(digests).encode())
            fault = self.receive("agreed", keep=True)
        if fault:
            self.leave()
            raise InputError(fault.decode(), "all need the same files, in the same order, and the same options")

    def leave(self) -> None:
        """Part from the others, when all of them do."""
        if self._client is None:
            return
        import jax

        with suppress(Exception):  # everything was said
            jax.distributed.shutdown()  # type: ignore[no-untyped-call]


@contextmanager
def _in_touch() -> Iterator[None]:
    """Say what it means that process 0, which keeps the messages, does not answer."""
    try:
        yield
    except Exception as error:
        raise EnvironmentFault(
            f"process 0 has ended, or cannot be reached any more: {str(error).splitlines()[0]}", AGAIN
        ) from None


ALONE = Cluster()


def _loopback(coordinator: str | None) -> str | None:
    """Where process 0 listens, if nobody from elsewhere need reach it."""
    near = re.match(r"localhost:|127\.|\[::1\]:", coordinator or "")
    return coordinator if near else None


def _refuse_a_taken_port(coordinator: str) -> None:
    """Refuse a port that another listens on, of this tool's too: gRPC would share it, and mix them up."""
    port = int(coordinator.rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise EnvironmentFault(
                f"process 0 cannot listen on port {port}: {error.strerror or error}",
                "choose another for --coordinator",
            ) from None


def _wait_until_there(coordinator: str, seconds: int) -> None:
    """Wait for process 0. JAX, coming too early, looks again only a second later, and does not say what is wrong.

    Raises:
      EnvironmentFault: it does not come.
    """
    host, _, port = coordinator.rpartition(":")
    until = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds):
                return
        except (OSError, OverflowError, UnicodeError) as error:
            if time.monotonic() > until:
                raise EnvironmentFault(
                    f"process 0 is not to be reached at {coordinator}: {getattr(error, 'strerror', '') or error}",
                    f"is it there, and is that its place? {seconds} seconds were given to it; "
                    "--distributed-timeout SECONDS gives it more",
                ) from None
        time.sleep(0.05)


def join(joining: Joining) -> Cluster:
    """Find the other processes, and wait until all are there.

    Raises:
      EnvironmentFault: there is nothing to join. (Where others do not come, the runtime ends this process.)
    """
    given = {
        "--coordinator HOST:PORT": joining.coordinator,
        "--num-processes N": joining.number,
        "--process-id I": joining.process,
    }
    if joining.coordinator is not None and joining.process is not None:
        if joining.process:
            _wait_until_there(joining.coordinator, joining.timeout)
        else:
            _refuse_a_taken_port(joining.coordinator)
    for name in [name for name in os.environ if "_proxy" in name.lower()]:
        del os.environ[name]  # gRPC would look for the other processes behind it
    with loading_jax():
        import jax
        from jax._src import distributed  # its store of messages has no public name yet

        from specdec_cli.devices import find_device
    # Arrays stay in their process, and what would carry them between CPUs needs a host name that resolves.
    jax.config.update("jax_cpu_collectives_implementation", None)  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings(action="ignore"):  # of launchers that are not quite there
            jax.distributed.initialize(
                coordinator_address=joining.coordinator,
                num_processes=joining.number,
                process_id=joining.process,
                initialization_timeout=joining.timeout,
                heartbeat_timeout_seconds=joining.timeout,
                coordinator_bind_address=_loopback(joining.coordinator),
            )
    except Exception as error:
        missing = [option for option, value in given.items() if value is None]
        said = str(error).strip().splitlines()[0]
        if len(missing) in (1, 2):
            names = " and ".join(missing)
            raise SpecdecError(f"{names} must be given too, as no launcher tells it", said) from None
        raise EnvironmentFault(
            f"JAX finds no other processes to work with: {said}",
            f"srun and mpirun tell it of them; else {' '.join(given)} do",
        ) from None
    # The runtime has taken SIGTERM for notices of preemption, of which nobody asks it here.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    state = distributed.global_state
    cluster = Cluster(state.process_id, state.num_processes, state.client)
    with cluster.telling():
        find_device(None)  # every process takes part in this, whether it will have something to compute or not
    return cluster
