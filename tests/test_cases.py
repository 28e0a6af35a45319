"""The conformance set: every case from the public bug reports, by every way in."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, CONFORMANCE, answer, arrays, to_json, to_npz, verify

import specdec_cli
from specdec_cli.batch import Reading
from specdec_cli.errors import InputError

ANSWERED = [case for case in CASES if "error" not in case["expected"]]
REFUSED = [case for case in CASES if "error" in case["expected"]]
# Lists that no array of numbers can hold.
JSON_ONLY = ("IO-02", "IO-09")


def ids(cases):
    return [case["id"] for case in cases]


def expected(case, reading):
    return case["expected"] if reading is Reading.DECIMAL else case.get("expected_npz", case["expected"])


def test_the_set_is_whole_and_its_page_names_every_case():
    page = (CONFORMANCE / "README.md").read_text()
    assert len(CASES) == 45
    for case in CASES:
        assert f"[{case['id']}]({case['id']}.json) | {case['fault']}" in page
        assert all(word in page for word in case["source"].split() if word.startswith("https://"))


@pytest.mark.parametrize("case", ANSWERED, ids=ids(ANSWERED))
def test_the_command_answers_the_file_as_it_is(specdec, case):
    ended = specdec("run", CONFORMANCE / f"{case['id']}.json")
    assert (ended.code, json.loads(ended.out)) == (0, case["expected"])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("reading", Reading)
@pytest.mark.parametrize("case", ANSWERED, ids=ids(ANSWERED))
def test_the_answer_is_the_exact_one_in_either_reading_and_precision(case, reading, dtype):
    got = answer(verify(case["input"], reading, dtype=dtype))
    want = expected(case, reading)
    assert got["num_accepted"] == want["num_accepted"]
    assert got["tokens"] == want["tokens"]


@pytest.mark.parametrize("case", ANSWERED, ids=ids(ANSWERED))
def test_the_command_answers_json_and_npz(specdec, case):
    for data, reading in ((to_json(case["input"]), Reading.DECIMAL), (to_npz(case["input"]), Reading.BINARY)):
        ended = specdec("run", "-", stdin=data)
        assert ended.code == 0
        assert json.loads(ended.out) == expected(case, reading)


@pytest.mark.filterwarnings("ignore::specdec_cli.errors.EmptyResidualWarning")
@pytest.mark.parametrize("to_array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("case", ANSWERED, ids=ids(ANSWERED))
def test_the_python_call_answers_numpy_and_jax_arrays(case, to_array):
    given = {name: to_array(value) for name, value in arrays(case["input"]).items()}
    if to_array is jnp.asarray:
        # JAX has rounded the doubles to float32 and that is what the caller asks about.
        given = {k: jnp.asarray(v, jnp.float32) if k != "draft_tokens" else v for k, v in given.items()}
        widened = {k: np.asarray(v).tolist() for k, v in given.items()}
        if not all(0 <= s < 1 for s in np.ravel(widened["sample_uniforms"])):
            pytest.skip("the noise rounds to 1.0 in float32")
        want = answer(verify(widened))
    else:
        want = expected(case, Reading.BINARY)
    got = specdec_cli.verify(**given)
    assert {k: v.tolist() for k, v in got.items()} == want


@pytest.mark.parametrize("case", REFUSED, ids=ids(REFUSED))
def test_what_cannot_be_answered_is_refused_in_json(specdec, case):
    ended = specdec("run", "-", stdin=to_json(case["input"]))
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("error: standard input: ")
    field = case["expected"]["error"].split("[")[0]
    if field in case["input"]:
        assert field in ended.err


@pytest.mark.parametrize("case", REFUSED, ids=ids(REFUSED))
def test_what_cannot_be_answered_is_refused_as_arrays(case):
    if case["id"] in JSON_ONLY:
        pytest.skip("no array can hold it")
    with pytest.raises(InputError):
        specdec_cli.verify(**{k: np.asarray(v) for k, v in case["input"].items()})
