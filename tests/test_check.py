"""`specdec check` tells rounding from bugs, and bugs from each other."""

import json

import numpy as np
import pytest
from engines import MISTAKES, engine, ordinary
from helpers import to_json, to_npz

from specdec_cli.check import mistakes


def check(specdec, tmp_path, fields, answer, *options):
    (tmp_path / "input.npz").write_bytes(to_npz(fields))
    (tmp_path / "answer.json").write_bytes(to_json(answer))
    ended = specdec("check", tmp_path / "input.npz", tmp_path / "answer.json", "--format", "json", *options)
    return ended, json.loads(ended.out)


def input_for(mistake, rng):
    if mistake in ("<= for < in the accept test", ">= for > in the draw"):
        return ordinary(rng, dyadic=True)
    if mistake == "float32 cumulative sums":
        return ordinary(rng, rows=60, positions=1, vocabulary=40_000, sharpness=0.1)
    return ordinary(rng)


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_a_mistake_is_named(specdec, tmp_path, mistake):
    fields = input_for(mistake, np.random.default_rng(1))
    answer = engine(fields, mistake)
    precision = ["--precision", "float64"] if mistake == "float32 cumulative sums" else []
    ended, report = check(specdec, tmp_path, fields, answer, *precision)
    assert ended.code == 1
    named = [each["name"] for each in report["mistakes"]]
    best = report["mistakes"][0]
    assert mistake == named[0], report["mistakes"]
    assert best["reproduced"] >= 0.95 * best["differing"]
    assert best["matched"] >= 0.85 * best["telling"]  # an engine's own rounding breaks some ties


def test_every_mistake_of_the_table_has_an_engine_that_makes_it():
    assert {each.name for each in mistakes.MISTAKES} == MISTAKES


@pytest.mark.parametrize("dyadic", [False, True])
def test_a_right_engine_is_named_nothing(specdec, tmp_path, dyadic):
    fields = ordinary(np.random.default_rng(2), dyadic=dyadic)
    ended, report = check(specdec, tmp_path, fields, engine(fields))
    assert ended.code == 0
    assert report["mistakes"] == []
    assert report["summary"]["agrees"] == 200
