"""Outcomes ⇄ bytes, for the way from one process to another: NPZ and JSON, nothing that could run code."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from specdec_cli.batch import Reading
from specdec_cli.decide import Decided
from specdec_cli.errors import EnvironmentFault, InputError, SpecdecError
from specdec_cli.outcome import Outcome
from specdec_cli.readers import Document
from specdec_cli.rows import Checksum, RowsInFile


@dataclass(frozen=True)
class Essence:
    """What is needed to write an outcome and to tell of it: no evidence, and nothing that was read for it."""

    said: dict[str, Any]
    verification: Decided | None


def essence_of(outcome: Outcome) -> Essence:
    """What is to be packed of an outcome."""
    return Essence(_said_of(outcome), outcome.verification)


def pack(essences: Sequence[Essence]) -> bytes:
    """Outcomes as bytes."""
    arrays: dict[str, np.ndarray] = {}
    for number, each in enumerate(essences):
        if each.verification is not None:
            arrays |= {f"{number}.{name}": getattr(each.verification, name) for name in _FIELDS}
    said = json.dumps([each.said for each in essences]).encode()
    buffer = io.BytesIO()
    np.savez(buffer, said=np.frombuffer(said, np.uint8), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack(data: bytes, blank: Outcome) -> Iterator[tuple[Outcome, dict[str, Checksum]]]:
    """What `pack` packed, each filled into a blank outcome, with the checksums of what was read for it."""
    with np.load(io.BytesIO(data)) as arrays:
        for number, said in enumerate(json.loads(arrays["said"].tobytes())):
            verification = None
            if said["error"] is None:
                verification = Decided(**{name: arrays[f"{number}.{name}"] for name in _FIELDS})
            error, document = _error_of(said["error"]), _document_of(said)
            outcome = replace(blank, verification=verification, error=error, document=document, batch=None)
            yield outcome, {name: Checksum(**each) for name, each in said["checksums"].items()}


_FIELDS = [field.name for field in fields(Decided)]


def _said_of(outcome: Outcome) -> dict[str, Any]:
    document, error = outcome.document, outcome.error
    said: dict[str, Any] = {"line": outcome.line, "error": None, "source": None, "checksums": {}}
    if document is not None:
        said |= {"source": document.source, "reading": document.reading.value, "end": document.end}
        read = document.fields or {}
        kept = {name: rows.checksum for name, rows in read.items() if isinstance(rows, RowsInFile)}
        said["checksums"] = {name: asdict(checksum) for name, checksum in kept.items() if checksum}
    if error is not None:
        said["error"] = {"problem": error.problem, "hint": error.hint, "source": error.source}
        if isinstance(error, InputError):
            said["error"] |= {"line": error.line, "field": error.field, "index": error.index}
    return said


def _error_of(record: dict[str, Any] | None) -> SpecdecError | None:
    if record is None:
        return None
    if "field" in record:
        return InputError(**{**record, "index": tuple(record["index"])})
    return EnvironmentFault(**record)


def _document_of(said: dict[str, Any]) -> Document | None:
    if said["source"] is None:
        return None
    in_lines = said["line"] is not None
    return Document(
        said["source"], said["line"], Reading(said["reading"]), None, None, said["end"], lambda: in_lines
    )
