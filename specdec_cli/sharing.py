"""Inputs → outcomes, by several processes: who does what, and how it comes together in process 0.

Whole inputs go round: input k is done by process k modulo their number. Where there are fewer inputs than
processes, the rows of a large stored NPZ are shared instead: every process reads its own bytes, and process 0
joins the answers and the CRCs. Nobody asks for work, so that nothing depends on who is quicker.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from specdec_cli import __version__, filing, pipeline
from specdec_cli.cluster import Cluster
from specdec_cli.decide import Decided, joined
from specdec_cli.errors import InputError
from specdec_cli.guard import Joining
from specdec_cli.inputs import Input
from specdec_cli.outcome import Outcome
from specdec_cli.packing import Essence, essence_of, pack, unpack
from specdec_cli.progress import Told
from specdec_cli.readers import STDIN, fingerprint_if_apart
from specdec_cli.results import ResultFolder
from specdec_cli.rows import Checksum, RowsInFile, Share
from specdec_cli.settings import Settings
from specdec_cli.structure import PROB_FIELDS

_AT_ONCE = 100
"""Outcomes of one input that are sent in one message."""
_MORE = b"+"
"""What a message begins with that is not the last of an input."""


@dataclass(frozen=True)
class _Division:
    """Who does what."""

    cluster: Cluster
    by_rows: list[bool]
    """Of each input: all processes do it, each some of the rows."""

    def owner(self, number: int) -> int:
        """The process that does the whole of an input."""
        return number % self.cluster.number

    def own(self, inputs: Sequence[Input]) -> list[Input]:
        """What this process has a part in: whole inputs, and its shares of others."""
        share = Share(self.cluster.process, self.cluster.number)
        return [
            replace(input, share=share) if self.by_rows[input.number] else input
            for input in inputs
            if self.by_rows[input.number] or self.owner(input.number) == self.cluster.process
        ]


def refuse(inputs: Sequence[Input], folder: ResultFolder | None, joining: Joining | None) -> None:
    """Refuse what cannot be done, before other processes wait for it.

    Raises:
      InputError: standard input is to be shared, or results would take each other's place.
    """
    if joining is not None and any(input.name == STDIN for input in inputs):
        raise InputError("standard input cannot be shared between processes", "give it as a file")
    if folder is not None:
        filing.refuse_clashes(inputs, folder)


def agree(inputs: Sequence[Input], cluster: Cluster, **options: Any) -> _Division:
    """Decide who does what, and see that all decide the same.

    Args:
      inputs: all of them, in every process.
      cluster: the processes.
      options: whatever else the results depend on.

    Raises:
      InputError: other processes were given something else.
    """
    few = 1 < cluster.number > len(inputs)
    apart = [fingerprint_if_apart(input.name) if few and input.error is None else None for input in inputs]
    files = [(input.name, input.place, _size(input), found) for input, found in zip(inputs, apart, strict=True)]
    given = [__version__, cluster.number, options]
    cluster.agree({"inputs": _digest(files), "options": _digest(given)})
    return _Division(cluster, [found is not None for found in apart])


def outcomes(
    inputs: Sequence[Input], settings: Settings, plan: _Division, *, several: bool = False
) -> Iterator[Outcome]:
    """`pipeline.outcomes` of all inputs, in order, in process 0; none in the others, which send it theirs."""
    cluster = plan.cluster
    if cluster.number == 1:
        yield from pipeline.outcomes(inputs, settings, several=several)
        return
    join = _joiner(plan)
    own = {input.number: input for input in plan.own(inputs)}
    if not cluster.leads:
        _send(own.values(), settings, plan)
        return
    for input in inputs:
        if input.number in own:
            yield from pipeline.outcomes([own[input.number]], settings, several=several, join=join)
        else:
            yield from _received(Outcome(input.name, input.number, several=several), cluster)


def into_folder(
    inputs: Sequence[Input], folder: ResultFolder, settings: Settings, plan: _Division, **options: bool
) -> Iterator[Outcome]:
    """`filing.into_folder` of this process's inputs; of one whose rows are shared, in process 0."""
    cluster, own = plan.cluster, plan.own(inputs)
    if not cluster.leads:
        _send((input for input in own if input.share and _is_wanted(input, folder, cluster)), settings, plan)
        own = [input for input in own if not input.share]

    def announce(input: Input, wanted: bool) -> None:
        if input.share:
            cluster.send(f"wanted/{input.number}", b"%d" % wanted)

    yield from filing.into_folder(own, folder, settings, join=_joiner(plan), announce=announce, **options)


def _is_wanted(input: Input, folder: ResultFolder, cluster: Cluster) -> bool:
    """Whether process 0, which knows what is there, will make a result: surely where there is none."""
    if not os.path.lexists(folder.result_of(input.place)):
        return True
    return cluster.receive(f"wanted/{input.number}", keep=True) == b"1"


def end(told: Told, cluster: Cluster) -> int:
    """Tell, in process 0, what became of all, and part with the exit code that it gives."""
    if cluster.number == 1:
        return told.end()
    if cluster.leads:
        for other in range(1, cluster.number):
            told.include(*json.loads(cluster.receive(f"account/{other}")))
        cluster.send("end", b"%d" % told.end())
    else:
        cluster.send(f"account/{cluster.process}", json.dumps(told.counted()).encode())
    exit_code = int(cluster.receive("end", keep=True))
    cluster.leave()
    return exit_code


def _send(inputs: Iterable[Input], settings: Settings, plan: _Division) -> None:
    for input in inputs:
        found = pipeline.outcomes([input], settings)
        if input.share:
            outcome = next(found)
            plan.cluster.send(f"rows/{input.number}/{plan.cluster.process}", pack([essence_of(outcome)]))
            continue
        waiting: list[Essence] = []
        messages = count()
        for outcome in found:
            if len(waiting) == _AT_ONCE:
                plan.cluster.send(f"whole/{input.number}/{next(messages)}", _MORE + pack(waiting))
                waiting.clear()
            outcome.settle()
            waiting.append(essence_of(outcome))
        plan.cluster.send(f"whole/{input.number}/{next(messages)}", pack(waiting))


def _received(blank: Outcome, cluster: Cluster) -> Iterator[Outcome]:
    for message in count():
        data = cluster.receive(f"whole/{blank.number}/{message}")
        for outcome, _ in unpack(data.removeprefix(_MORE), blank):
            yield outcome
        if not data.startswith(_MORE):
            return


def _joiner(plan: _Division) -> Callable[[Outcome], Outcome] | None:
    """What makes of an outcome for process 0's rows the one for all rows."""
    cluster = plan.cluster
    if not cluster.leads or not any(plan.by_rows):
        return None

    def join(outcome: Outcome) -> Outcome:
        number = outcome.number
        if not plan.by_rows[number] or outcome.document is None:
            return outcome
        messages = [cluster.receive(f"rows/{number}/{other}") for other in range(1, cluster.number)]
        return _joined(outcome, [each for data in messages for each in unpack(data, outcome)])

    return join


def _joined(outcome: Outcome, others: list[tuple[Outcome, dict[str, Checksum]]]) -> Outcome:
    """The outcome for all rows: damage is named before what it did to the numbers, and the first row's fault."""
    if outcome.error is not None and getattr(outcome.error, "field", None) not in PROB_FIELDS:
        return outcome  # nothing was read of the rows, in any process
    read = outcome.document.fields if outcome.document and outcome.document.fields else {}
    try:
        for name in PROB_FIELDS:
            rows = read.get(name)
            checksums = [theirs[name] for _, theirs in others if name in theirs]
            if isinstance(rows, RowsInFile) and rows.checksum and len(checksums) == len(others):
                rows.end_of_all(checksums)
    except InputError as error:
        return replace(outcome, verification=None, error=error.named(outcome.name))
    parts = [outcome, *(other for other, _ in others)]
    failed = next((part.error for part in parts if part.error is not None), None)
    if failed is not None:
        return replace(outcome, verification=None, error=failed)
    return replace(
        outcome, verification=joined(Decided, [part.verification for part in parts if part.verification])
    )


def _size(input: Input) -> int | None:
    with suppress(OSError, ValueError):
        return os.path.getsize(input.name)
    return None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
