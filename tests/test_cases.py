"""The conformance set: every case from the public bug reports, by every way in."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, CONFORMANCE, FIELDS, answer, arrays, to_json, to_npz, verify

import specdec_cli
from specdec_cli.batch import Reading
from specdec_cli.errors import InputError

ANSWERED = [case for case in CASES if "error" not in case["expected"]]
REFUSED = [case for case in CASES if "error" in case["expected"]]


def ids(cases):
    return [case["id"] for case in cases]


def expected(case, reading):
    return case["expected"] if reading is Reading.DECIMAL else case.get("expected_npz", case["expected"])


def test_the_set_is_whole_and_its_page_names_every_case():
    page = (CONFORMANCE / "README.md").read_text()
    assert len(CASES) == 45
    for case in CASES:
        row = f"| [{case['id']}]({case['id']}.json) | {case['kind']} | {case.get('needs', '')} | {case['fault']} |"
        assert row in page
        assert all(word in page for word in case["source"].split() if word.startswith("https://"))


def textbook(case, dtype):
    """The step as it is usually written, in floats, for the `needs` of a case."""
    q, p, u, s = (np.array(case["input"][name], dtype) for name in FIELDS[1:])
    answer = {"num_accepted": [], "tokens": []}
    for row, x in enumerate(case["input"]["draft_tokens"]):
        length, n = sum(token >= 0 for token in x), 0
        while n < length and u[row, n] < p[row, n, x[n]] / q[row, n, x[n]]:
            n += 1
        r = p[row, n] if n == length else np.maximum(p[row, n] - q[row, n], dtype(0))
        r = r if r.sum() > 0 else p[row, n]
        y = int(np.argmax(np.cumsum(r / r.sum(), dtype=dtype) > s[row]))
        answer["num_accepted"].append(n)
        answer["tokens"].append([*x[:n], y, *[-1] * (len(x) - n)])
    return answer


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "step"], ids=lambda case: case["id"])
def test_a_case_needs_the_arithmetic_that_it_says(case):
    want = expected(case, Reading.BINARY)
    with np.errstate(divide="ignore", invalid="ignore"):
        right = [t.__name__ for t in (np.float32, np.float64) if textbook(case, t) == want]
    assert case["needs"] == (right[0] if right else "exact")


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
        noise = [*np.ravel(widened["sample_uniforms"]), *np.ravel(widened["accept_uniforms"])]
        if 1.0 in noise:  # SD-43 and others: the double below 1 is 1.0 in float32, and refused
            with pytest.raises(InputError, match="shorter float type"):
                specdec_cli.verify(**given)
            return
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
    with pytest.raises(InputError):
        specdec_cli.verify(**case["input"])
