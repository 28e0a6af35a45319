"""Outcomes ⇄ bytes, for the way from one process to another: NPZ and JSON, nothing that could run code."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from specdec_cli.batch import Reading
from specdec_cli.decide import Verification
from specdec_cli.errors import EnvironmentFault, InputError, SpecdecError
from specdec_cli.outcome import Outcome
from specdec_cli.readers import Document
from specdec_cli.rows import Checksum, RowsInFile


def pack(outcome: Outcome) -> bytes:
    """An outcome as bytes: what is needed to write it and to tell of it."""
    document, error, verification = outcome.document, outcome.error, outcome.verification
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
    arrays = {} if verification is None else {f.name: getattr(verification, f.name) for f in fields(Verification)}
    buffer = io.BytesIO()
    np.savez(buffer, said=np.frombuffer(json.dumps(said).encode(), np.uint8), **arrays)
    return buffer.getvalue()


def unpack(data: bytes, blank: Outcome) -> tuple[Outcome, dict[str, Checksum]]:
    """What `pack` packed, filled into a blank outcome, and the checksums of what was read for it."""
    with np.load(io.BytesIO(data)) as arrays:
        said = json.loads(arrays["said"].tobytes())
        parts = {name: arrays[name] for name in arrays.files if name != "said"}
    document = None
    if said["source"] is not None:
        in_lines = said["line"] is not None
        reading, end = Reading(said["reading"]), said["end"]
        document = Document(said["source"], said["line"], reading, None, None, end, lambda: in_lines)
    error: SpecdecError | None = None
    if said["error"] is not None:
        record = said["error"]
        if "field" in record:
            error = InputError(**{**record, "index": tuple(record["index"])})
        else:
            error = EnvironmentFault(**record)
    outcome = replace(
        blank, verification=Verification(**parts) if parts else None, error=error, document=document, batch=None
    )
    return outcome, {name: Checksum(**each) for name, each in said["checksums"].items()}
