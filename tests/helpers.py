"""Small things that several test modules share."""

import io
import json
from pathlib import Path

import numpy as np

from specdec_cli.batch import Reading, make_batch
from specdec_cli.settings import Settings
from specdec_cli.verification import verify_batch

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "samples"
CONFORMANCE = SAMPLES / "conformance"
DATA = Path(__file__).parent / "data"
FIELDS = ("draft_tokens", "draft_probs", "target_probs", "accept_uniforms", "sample_uniforms")


def _case(path):
    """A conformance file, its five arrays gathered under `input`."""
    case = json.loads(path.read_text())
    return {**case, "input": {name: case[name] for name in FIELDS}}


CASES = [_case(path) for path in sorted(CONFORMANCE.glob("*.json"))]

BASE = {
    "draft_tokens": [[0]],
    "draft_probs": [[[0.5, 0.5]]],
    "target_probs": [[[0.25, 0.75], [1.0, 0.0]]],
    "accept_uniforms": [[0.75]],
    "sample_uniforms": [0.5],
}
"""A small valid input, whose answer is n = 0, y = 1."""
BASE_ANSWER = b'{"num_accepted":[0],"tokens":[[1,-1]]}\n'


def arrays(fields):
    """Nested lists → NumPy arrays of the kinds that an NPZ would hold."""
    return {
        name: np.asarray(value, np.int64 if name == "draft_tokens" else np.float64)
        if isinstance(value, list)
        else value
        for name, value in fields.items()
    }


def answer(verification):
    """A Verification's answer as lists."""
    return {
        "num_accepted": verification.num_accepted.tolist(),
        "tokens": verification.tokens.tolist(),
    }


def verify(fields, reading=Reading.BINARY, *, dtype=None, programs=None, **settings):
    """Fields → Verification."""
    batch = make_batch(arrays(fields), reading=reading)
    return verify_batch(batch, Settings(**settings), dtype=dtype, programs=programs)


def changed(base=None, **fields):
    """A copy of an input with some fields replaced; None takes one out."""
    made = {**(base or BASE), **fields}
    return {name: value for name, value in made.items() if value is not None}


def to_json(fields):
    return json.dumps({k: v.tolist() if hasattr(v, "tolist") else v for k, v in fields.items()}).encode()


def to_npz(fields, **options):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays(fields), **options)
    return buffer.getvalue()
