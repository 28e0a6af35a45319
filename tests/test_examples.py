"""The worked examples, digit by digit, and the sample from a real engine."""

import json

import jax
import numpy as np
import pytest
from helpers import SAMPLES

import specdec_cli

ANSWERS = {
    "one_row.json": b'{"num_accepted":[1],"tokens":[[3,3,-1]]}\n',
    "two_rows.json": b'{"num_accepted":[3,0],"tokens":[[1,0,2,1],[1,-1,-1,-1]]}\n',
    "one_position.json": b'{"num_accepted":[0],"tokens":[[0,-1]]}\n',
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_command_prints_exactly_the_worked_answer(specdec, name):
    ended = specdec("run", SAMPLES / name)
    assert (ended.code, ended.out, ended.err) == (0, ANSWERS[name], "")


@pytest.mark.parametrize("name", ANSWERS)
def test_the_python_call_gives_the_worked_answer_as_int32_jax_arrays(name):
    fields = json.loads((SAMPLES / name).read_text())
    answer = specdec_cli.verify(**{k: np.array(v) for k, v in fields.items()})
    assert {k: v.tolist() for k, v in answer.items()} == json.loads(ANSWERS[name])
    assert all(isinstance(v, jax.Array) and v.dtype == "int32" for v in answer.values())


def test_the_real_engine_accepted_the_same_tokens(specdec):
    ended = specdec("run", SAMPLES / "real_engine.npz")
    assert (ended.code, ended.err) == (0, "")
    ours, theirs = json.loads(ended.out), json.loads((SAMPLES / "answers/real_engine.json").read_text())
    assert ours["num_accepted"] == theirs["num_accepted"]
    for n, our_row, their_row in zip(ours["num_accepted"], ours["tokens"], theirs["tokens"], strict=True):
        assert our_row[:n] == their_row[:n]


def test_the_real_engine_drew_its_last_tokens_from_the_residual_or_bonus_row():
    with np.load(SAMPLES / "real_engine.npz") as step:
        theirs = json.loads((SAMPLES / "answers/real_engine.json").read_text())
        for row, (n, tokens) in enumerate(zip(theirs["num_accepted"], theirs["tokens"], strict=True)):
            drafted = int((step["draft_tokens"][row] >= 0).sum())
            q = step["draft_probs"][row, n] if n < drafted else 0
            assert (step["target_probs"][row, n] - q)[tokens[n]] > 0
