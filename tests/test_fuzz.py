"""Damaged files: every one is refused, or answered as the oracle answers what it holds.

An outcome is an answer or an `InputError`; any other exception, a hang over 5 s, or more than half a gigabyte of
memory is a fault.
A seeded few hundred run with the suite, 20,000 with `make fuzz`.
"""

import io
import json
import os
import resource
import time
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import oracle
import pytest
from helpers import FIELDS, answer
from hypothesis import given, settings
from mutate import MUTATORS

from specdec_cli.inputs import find_inputs
from specdec_cli.pipeline import outcomes

EXAMPLES = int(os.environ.get("SPECDEC_MUTANTS", "420"))


def documents_as_others_read_them(data):
    """The five arrays of each document, by Python's json and NumPy's load, with what tells the readings apart."""
    if data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            fields = {}
            for name in archive.namelist():
                with warnings.catch_warnings(action="ignore"):  # of headers as Python 2 wrote them
                    array = np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
                array = array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array
                fields[name.removesuffix(".npy")] = array.tolist()
        return [(fields, False)]
    data = data.removeprefix(b"\xef\xbb\xbf")
    whole = _loads_or_none(data)
    if whole is not None:
        return [(whole, True)]
    return [(_loads_or_none(line), True) for line in data.split(b"\n") if line.strip()]


def _loads_or_none(text):
    try:
        return json.loads(text)
    except ValueError:  # no JSON, no UTF-8
        return None


def expected(fields, decimal):
    """The oracle's answer; `[]` for whatever JSON leaves out of arrays without elements."""
    return oracle.verify({name: fields[name] for name in FIELDS}, decimal)[0]


def most_memory(anew=False):
    """The most that this process had, in KiB; on Linux since it was last asked anew."""
    if anew:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def check(data, path):
    path.write_bytes(data)
    start, before = time.monotonic(), most_memory(anew=True)
    results = list(outcomes(find_inputs([str(path)])[0]))
    assert time.monotonic() - start < 5
    assert most_memory() - before < 2**19
    assert results
    answered = [result for result in results if result.verification is not None]
    assert all(result.error is not None and result.error.problem for result in results if result not in answered)
    if not answered:
        return
    read = documents_as_others_read_them(data)
    assert len(read) == len(results)
    for result, (fields, decimal) in zip(results, read, strict=True):
        if result.verification is not None:
            assert answer(result.verification) == expected(fields, decimal)


@settings(max_examples=EXAMPLES // len(MUTATORS))
@given(seed=st.integers(0, 2**64 - 1))
@pytest.mark.parametrize("mutator", MUTATORS)
def test_a_damaged_file_is_refused_or_answered_as_the_oracle_answers_it(mutator, tmp_path_factory, seed):
    data = MUTATORS[mutator](np.random.default_rng(seed))
    check(data, tmp_path_factory.getbasetemp() / f"mutant-{mutator}")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the most memory anew")
def test_what_is_taken_and_given_back_is_noticed():
    np.ones(2**25)
    before = most_memory(anew=True)
    np.ones(2**24)  # 128 MiB, all written to, and less than before
    assert 2**16 <= most_memory() - before < 2**18
