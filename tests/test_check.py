"""`specdec check` tells rounding from bugs, and bugs from each other."""

import json
import re

import ml_dtypes
import numpy as np
import pytest
from engines import MISTAKES, engine, ordinary
from helpers import BASE, BASE_ANSWER, DATA, changed, to_json, to_npz

from specdec_cli.check import mistakes
from specdec_cli.check.fit import FitTest

REAL = DATA / "real" / "assisted_generation.npz"
REAL_ANSWER = DATA / "real" / "assisted_generation.engine.json"


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


# Verdicts and causes


def one(specdec, tmp_path, answer, *options, **changes):
    """The single row of a check of BASE, changed."""
    _, report = check(specdec, tmp_path, changed(**changes), answer, *options)
    (row,) = report["rows"]
    return row["verdict"], row["cause"], row["margin"]


NOT_DRAWN = "engine's correction token {} cannot be drawn: the residual is 0 there"
STEP = {
    "draft_tokens": [[0, 1]],
    "draft_probs": [[[0.5, 0.5, 0.0], [0.25, 0.5, 0.25]]],
    "target_probs": [[[0.25, 0.25, 0.5], [0.5, 0.375, 0.125], [0.25, 0.5, 0.25]]],
    "accept_uniforms": [[0.25, 0.875]],
    "sample_uniforms": [0.5],
}
"""n = 1 (0.25 < 0.5, 0.875 ≥ 0.75), y = 0."""


@pytest.mark.parametrize(
    ("accepted", "tokens", "cause", "margin"),
    [
        (1, [0, 0, -1], "", None),
        (0, [2, -1, -1], "engine rejected position 0, exact accepts: u = 0.25, p/q = 0.5, margin 0.25", 0.25),
        (2, [0, 1, 1], "engine accepted position 1, exact rejects: u = 0.875, p/q = 0.75, margin 0.125", 0.125),
        (
            1,
            [0, 1, -1],
            "engine's correction token 1 cannot be drawn: the residual is 0 there, p = 0.375 ≤ q = 0.5",
            None,
        ),
        (1, [2, 0, -1], "engine's accepted token 0 is 2, the draft token is 0", None),
        (1, [0, -1, -1], "engine emits 1 tokens, expected 2: no last token", None),
        (1, [0, 7, -1], "engine's last token is 7, outside 0..2", None),
        (1, [0, 0, 5], "engine emits 5 at place 2, behind its last token: expected -1", None),
        (3, [0, 1, 2], "engine says num_accepted = 3, and there are 2 draft tokens", None),
        (-1, [0, 1, 2], "engine says num_accepted = -1, and there are 2 draft tokens", None),
    ],
)
def test_the_first_cause_is_given_in_words(specdec, tmp_path, accepted, tokens, cause, margin):
    found = one(specdec, tmp_path, {"num_accepted": [accepted], "tokens": [tokens]}, **STEP)
    assert found == ("differs" if cause else "agrees", cause, margin)


def test_another_token_of_the_same_prefix_shows_both_stretches(specdec, tmp_path):
    step = {**STEP, "draft_tokens": [[-1, -1]], "sample_uniforms": [0.3]}
    found = one(specdec, tmp_path, {"num_accepted": [0], "tokens": [[0, -1, -1]]}, **step)
    assert found[:2] == (
        "differs",
        "same prefix, other token: s = 0.3 owns token 1 (0.25 to 0.5), engine drew 0 (0 to 0.25)",
    )
    assert found[2] == pytest.approx(0.05)


def test_after_a_turned_near_tie_the_draw_is_judged_where_the_engine_stands(specdec, tmp_path):
    """u is just below p/q: an engine in bfloat16 may reject, and must then draw from the residual at 0."""
    step = {**STEP, "accept_uniforms": [[0.4999, 0.0]]}
    turned = {"num_accepted": [0], "tokens": [[2, -1, -1]]}
    assert one(specdec, tmp_path, turned, **step)[0] == "differs"
    assert one(specdec, tmp_path, turned, "--precision", "bfloat16", **step)[0] == "near-tie"
    wrong_as_well = {"num_accepted": [0], "tokens": [[0, -1, -1]]}
    verdict, cause, _ = one(specdec, tmp_path, wrong_as_well, "--precision", "bfloat16", **step)
    assert (verdict, cause) == (
        "differs",
        f"{NOT_DRAWN.format(0)}, p = 0.25 ≤ q = 0.5",
    )


@pytest.mark.parametrize(
    ("precision", "off", "verdict"),
    [
        ("float64", 1e-14, "differs"),
        ("float64", 1e-16, "near-tie"),
        ("float32", 1e-5, "differs"),
        ("float32", 1e-7, "near-tie"),
        ("bfloat16", 0.03, "differs"),
        ("bfloat16", 3e-3, "near-tie"),
        ("float16", 0.01, "differs"),
        ("float16", 3e-4, "near-tie"),
    ],
)
def test_how_close_a_near_tie_is_depends_on_the_precision(specdec, tmp_path, precision, off, verdict):
    accept = {**STEP, "accept_uniforms": [[0.5 - off, 0.0]]}
    rejected = {"num_accepted": [0], "tokens": [[2, -1, -1]]}
    assert one(specdec, tmp_path, rejected, "--precision", precision, **accept)[0] == verdict
    draw = {**STEP, "draft_tokens": [[-1, -1]], "sample_uniforms": [0.25 - off]}
    other = {"num_accepted": [0], "tokens": [[1, -1, -1]]}
    assert one(specdec, tmp_path, other, "--precision", precision, **draw)[0] == verdict


def test_strict_excuses_nothing(specdec, tmp_path):
    step = changed(**{**STEP, "accept_uniforms": [[0.49999999, 0.0]]})
    answer = {"num_accepted": [0], "tokens": [[2, -1, -1]]}
    ended, report = check(specdec, tmp_path, step, answer)
    assert (ended.code, report["summary"]["near_tie"], report["mistakes"]) == (0, 1, [])
    ended, report = check(specdec, tmp_path, step, answer, "--strict")
    assert (ended.code, report["summary"]["near_tie"]) == (1, 1)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_an_engine_that_only_rounds_has_no_row_that_differs(specdec, tmp_path, dtype):
    """Everything rounded to the type, sums in float32: what the error model is about."""
    fields = ordinary(np.random.default_rng(4), rows=400, vocabulary=300)
    rounded = {
        name: array if name == "draft_tokens" else array.astype(dtype).astype(np.float64)
        for name, array in fields.items()
    }
    for name in ("accept_uniforms", "sample_uniforms"):
        rounded[name] = np.minimum(rounded[name], 1 - 2.0**-9)
        fields[name] = np.minimum(fields[name], 1 - 2.0**-9)
    answer = engine(rounded, "float32 cumulative sums")
    _, report = check(specdec, tmp_path, fields, answer, "--precision", np.dtype(dtype).name)
    assert report["summary"]["differs"] == 0
    if dtype != np.float32:
        assert report["summary"]["near_tie"] > 0


# Engines with noise of their own


def test_a_real_engine_agrees_on_every_row_by_support(specdec):
    ended = specdec("check", REAL, REAL_ANSWER, "--draw", "support")
    assert ended.code == 0
    assert ended.out.decode().startswith(
        "12 rows: 12 agree, 0 near-tie (float32), 0 differ; last tokens judged by whether they can be drawn\n"
    )


def spoil_a_count(answer):
    answer["num_accepted"][9] = 2
    return 9, "engine rejected position 2, exact accepts"


def spoil_an_accepted_token(answer):
    answer["tokens"][1][1] = 4
    return 1, "engine's accepted token 1 is 4, the draft token is 3"


def spoil_a_last_token(answer):
    with np.load(REAL) as given:
        residual = given["target_probs"][0, 0] - given["draft_probs"][0, 0]
    answer["tokens"][0][0] = int(np.argmin(residual))
    return 0, "cannot be drawn: the residual is 0 there"


@pytest.mark.parametrize("spoil", [spoil_a_count, spoil_an_accepted_token, spoil_a_last_token])
def test_a_spoiled_answer_of_a_real_engine_is_caught(specdec, tmp_path, spoil):
    answer = json.loads(REAL_ANSWER.read_text())
    row, cause = spoil(answer)
    (tmp_path / "spoiled.json").write_text(json.dumps(answer))
    ended = specdec(
        "check",
        REAL,
        tmp_path / "spoiled.json",
        "--draw",
        "support",
        "--format",
        "json",
    )
    report = json.loads(ended.out)
    assert ended.code == 1
    assert [each["index"] for each in report["rows"] if each["verdict"] != "agrees"] == [row]
    assert cause in report["rows"][row]["cause"]


def without_s(fields):
    return {name: array for name, array in fields.items() if name != "sample_uniforms"}


def test_draws_with_other_noise_fit_the_residual(specdec, tmp_path):
    fields = ordinary(np.random.default_rng(5))
    answer = engine(fields, rng=np.random.default_rng(6))
    ended, report = check(specdec, tmp_path, without_s(fields), answer)
    assert ended.code == 0
    assert report["fit"]["rows"] == 200
    assert report["fit"]["fits"]
    assert report["summary"]["draw"] == "support"


@pytest.mark.parametrize("container", [to_json, to_npz])
def test_without_sample_uniforms_the_last_token_is_judged_by_support(specdec, tmp_path, container):
    (tmp_path / "input").write_bytes(container(without_s(changed(**STEP))))
    for token, code in ((0, 0), (2, 1)):
        (tmp_path / "answer").write_bytes(to_json({"num_accepted": [1], "tokens": [[0, token, -1]]}))
        assert specdec("check", tmp_path / "input", tmp_path / "answer").code == code


@pytest.mark.parametrize(
    "mistake", ["softmax of the residual", "argmax instead of sampling", "residual of the wrong position"]
)
def test_draws_from_something_else_do_not_fit(specdec, tmp_path, mistake):
    fields = ordinary(np.random.default_rng(7), rows=400)
    answer = engine(fields, mistake, rng=None if "argmax" in mistake else np.random.default_rng(8))
    ended, report = check(specdec, tmp_path, without_s(fields), answer)
    assert ended.code == 1
    if "argmax" in mistake:
        assert report["summary"]["differs"] == 0
        assert report["fit"]["p_value"] < 1e-9
        assert report["fit"]["order"] == "from the likeliest token"
    else:
        assert mistake in [each["name"] for each in report["mistakes"]]


def test_the_fit_raises_false_alarms_as_often_as_it_says():
    """1,000 right engines of 50 rows: at 0.05 on each of the two tests, between 0.05 and 0.1 of them are suspect.

    The count is binomial; with seeds fixed, the test is either right or wrong, once and for all.
    """
    rng = np.random.default_rng(9)
    alarms = 0
    for trial in range(1000):
        test = FitTest(seed=trial)
        for _ in range(50):
            weights = rng.random(6) ** 3
            test.add(weights, int(rng.choice(6, p=weights / weights.sum())))
        alarms += test.result().p_value < 0.05
    assert 20 < alarms < 70


# Pairs


def test_folders_are_matched_by_name(specdec, tmp_path):
    inputs, answers = tmp_path / "in", tmp_path / "out"
    for folder in (inputs / "deep", answers / "deep"):
        folder.mkdir(parents=True)
    (inputs / "a.npz").write_bytes(to_npz(BASE))
    (inputs / "b.json").write_bytes(to_json(BASE))
    (inputs / "c.json").write_bytes(to_json(BASE))
    (inputs / "deep" / "a.json").write_bytes(to_json(BASE))
    (answers / "a.json").write_bytes(BASE_ANSWER)
    (answers / "b.npz").write_bytes(to_npz({"num_accepted": np.array([1]), "tokens": np.array([[0, 0]])}))
    ended = specdec("check", inputs, answers, "--format", "json")
    report = json.loads(ended.out)
    assert ended.code == 2
    assert [(row["input"], row["verdict"]) for row in report["rows"]] == [
        (f"{inputs}/a.npz", "agrees"),
        (f"{inputs}/b.json", "differs"),
    ]
    assert report["failures"][0]["error"]["problem"] == f"has no result in {answers}"
    assert f"error: {inputs}/c.json: has no result in {answers}" in ended.err
    (answers / "c.json").write_bytes(BASE_ANSWER)
    (answers / "deep" / "a.json").write_bytes(BASE_ANSWER)
    ended = specdec("check", inputs, answers, "--recursive")
    assert ended.code == 1
    assert ended.out.decode().startswith("4 rows: 3 agree, 0 near-tie (float32), 1 differ\n")
    assert f"\n{inputs}/b.json: row 0  differs  engine accepted position 0" in ended.out.decode()


def test_what_run_writes_into_a_folder_agrees(specdec, tmp_path):
    inputs = tmp_path / "in"
    inputs.mkdir()
    for number in range(3):
        (inputs / f"{number}.npz").write_bytes(to_npz(ordinary(np.random.default_rng(number), rows=5)))
    specdec("run", inputs, "-o", f"{tmp_path}/out/")
    ended = specdec("check", inputs, tmp_path / "out")
    assert (ended.code, ended.out) == (0, b"15 rows: 15 agree, 0 near-tie (float32), 0 differ\n")


def test_json_lines_are_checked_line_by_line(specdec, tmp_path):
    (tmp_path / "in.jsonl").write_bytes((to_json(BASE) + b"\n") * 3)
    wrong = b'{"num_accepted":[1],"tokens":[[0,0]]}\n'
    (tmp_path / "out.jsonl").write_bytes(BASE_ANSWER + wrong + b"{}\n")
    ended = specdec("check", tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--format", "json")
    report = json.loads(ended.out)
    assert ended.code == 2
    assert [(row["line"], row["verdict"]) for row in report["rows"]] == [(1, "agrees"), (2, "differs")]
    assert f"error: {tmp_path}/out.jsonl: line 3: is missing num_accepted, tokens" in ended.err


@pytest.mark.parametrize("longer", ["input", "answer"])
def test_files_of_different_lengths_are_no_pair(specdec, tmp_path, longer):
    counts = {"input": 1, "answer": 1, longer: 2}
    (tmp_path / "input").write_bytes((to_json(BASE) + b"\n") * counts["input"])
    (tmp_path / "answer").write_bytes(BASE_ANSWER * counts["answer"])
    ended = specdec("check", tmp_path / "input", tmp_path / "answer")
    shorter = "answer" if longer == "input" else "input"
    assert ended.code == 2
    assert f"error: {tmp_path}/{shorter}: ends after 1 step, {tmp_path}/{longer} goes on" in ended.err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"tokens": [[1, -1]]}, "is missing num_accepted"),
        ({"num_accepted": [0], "tokens": [[1.0, -1]]}, "tokens[0][0] is 1.0, expected a token id, an integer"),
        (
            {"num_accepted": [0, 0], "tokens": [[1, -1]] * 2},
            "num_accepted has shape (2,), expected (B,)",
        ),
        ({"num_accepted": [0], "tokens": [1, -1]}, "tokens[0] is 1, expected a list"),
        ({"num_accepted": [0], "tokens": [[1, -1], [1]]}, "tokens[1] is ragged"),
    ],
)
def test_a_bad_result_is_refused_with_a_sentence(specdec, tmp_path, answer, said):
    (tmp_path / "input.json").write_bytes(to_json(BASE))
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    ended = specdec("check", tmp_path / "input.json", tmp_path / "answer.json")
    assert ended.code == 2
    assert f"error: {tmp_path}/answer.json: {said}" in ended.err


def test_a_bad_input_is_refused_as_run_refuses_it(specdec, tmp_path):
    (tmp_path / "input.json").write_bytes(to_json(changed(target_probs=[[[0.5, 0.6], [1.0, 0.0]]])))
    (tmp_path / "answer.json").write_bytes(BASE_ANSWER)
    ended = specdec("check", tmp_path / "input.json", tmp_path / "answer.json")
    assert ended.code == 2
    assert f"error: {tmp_path}/input.json: target_probs[0][0] sums to 1.1" in ended.err
    assert specdec("check", tmp_path / "input.json", tmp_path / "answer.json", "--no-validate").code == 1
    assert specdec("check", tmp_path, tmp_path / "answer.json").code == 2
    assert specdec("check", "-", "-").code == 2
    assert specdec("check", tmp_path / "no.json", tmp_path / "answer.json").code == 2


# Forms


def test_the_text_names_rows_worst_first(specdec, tmp_path):
    fields = ordinary(np.random.default_rng(10), rows=40)
    answer = engine(fields, "passes summed after the first failure")
    _, report = check(specdec, tmp_path, fields, answer)
    text = specdec("check", tmp_path / "input.npz", tmp_path / "answer.json").out.decode()
    differing = [each for each in report["rows"] if each["verdict"] == "differs"]
    shown = [int(number) for number in re.findall(r"^row (\d+) ", text, re.MULTILINE)]
    assert set(shown) <= {each["index"] for each in differing}
    margins = [report["rows"][number]["margin"] for number in shown]
    assert margins == sorted(margins, key=lambda margin: -np.inf if margin is None else -margin)
    assert "the differing rows are consistent with:" in text
    assert "passes summed after the first failure" in text


def test_markdown_is_a_table_for_an_issue(specdec, tmp_path):
    fields = ordinary(np.random.default_rng(11), rows=10)
    (tmp_path / "input.npz").write_bytes(to_npz(fields))
    (tmp_path / "answer.json").write_bytes(to_json(engine(fields, "p and q swapped")))
    text = specdec("check", tmp_path / "input.npz", tmp_path / "answer.json", "--format", "markdown").out.decode()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {4}
    assert "p and q swapped (in the accept test, or in both)" in text


def test_where_only_last_tokens_differ_the_report_says_what_to_try(specdec):
    text = specdec("check", REAL, REAL_ANSWER).out.decode()
    assert "only last tokens differ: if the engine draws them with noise of its own, --draw support" in text


def test_explain_shows_both_answers(specdec, tmp_path):
    (tmp_path / "input.json").write_bytes(to_json(changed(**STEP)))
    (tmp_path / "answer.json").write_bytes(to_json({"num_accepted": [2], "tokens": [[0, 1, 1]]}))
    explain = ["explain", tmp_path / "input.json", "--against", tmp_path / "answer.json"]
    text = specdec(*explain).out.decode()
    words = " ".join(text.split())
    assert re.search(r"^exact +1 0, 0$", text, re.MULTILINE)
    assert re.search(r"^engine +2 0, 1, 1$", text, re.MULTILINE)
    assert "differs: engine accepted position 1, exact rejects: u = 0.875, p/q = 0.75, margin 0.125" in words
    (row,) = json.loads(specdec(*explain, "--format", "json").out)["rows"]
    assert row["engine"]["tokens"] == [0, 1, 1]
    (tmp_path / "answer.json").write_text("{}")
    ended = specdec(*explain)
    assert (ended.code, ended.out) == (2, b"")
    assert f"error: {tmp_path}/answer.json: is missing num_accepted, tokens" in ended.err


# What was found by trying


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1])
def test_without_validation_what_the_engine_rests_on_may_be_no_probability(specdec, tmp_path, value):
    quarter = np.full((4, 2, 4), 0.25)
    fields = {
        "draft_tokens": np.zeros((4, 2), np.int32),
        "draft_probs": quarter,
        "target_probs": np.full((4, 3, 4), 0.25),
        "accept_uniforms": np.full((4, 2), 0.5),
        "sample_uniforms": np.full(4, 0.5),
    }
    fields["target_probs"][:, 0] = [0, 0.25, 0.25, 0.5]
    fields["target_probs"][:, 1] = value
    answer = {"num_accepted": [1, 1, 2, 0], "tokens": [[0, 1, -1], [0, 2, -1], [0, 0, 3], [1, -1, -1]]}
    ended, report = check(specdec, tmp_path, fields, answer, "--no-validate")
    assert ended.code == 2
    assert "expected a finite probability" in report["failures"][0]["error"]["problem"]
    explained = specdec("explain", tmp_path / "input.npz", "--against", tmp_path / "answer.json", "--no-validate")
    assert explained.code == 2


@pytest.mark.parametrize(
    "mistake", ["correction drawn from p instead of the residual", "bonus token drawn after a rejection"]
)
def test_by_support_an_impossible_mistake_is_not_named(specdec, tmp_path, mistake):
    """Under q − p none of the right corrections could have been drawn."""
    fields = ordinary(np.random.default_rng(20), rows=300, positions=3, vocabulary=16)
    answer = engine(fields, mistake, rng=np.random.default_rng(21))
    _, report = check(specdec, tmp_path, without_s(fields), answer)
    named = [each["name"] for each in report["mistakes"]]
    assert mistake in named
    assert "p and q swapped" not in named


def test_ties_decided_otherwise_are_near_ties_of_which_the_mistake_is_named(specdec, tmp_path):
    fields = ordinary(np.random.default_rng(22), rows=100, dyadic=True)
    fields["accept_uniforms"] = np.maximum(fields["accept_uniforms"], 1 / 16)
    ended, report = check(specdec, tmp_path, fields, engine(fields, "<= for < in the accept test"))
    assert (ended.code, report["summary"]["differs"]) == (0, 0)
    assert report["summary"]["near_tie"] > 0
    assert report["mistakes"][0]["name"] == "<= for < in the accept test"
    text = specdec("check", tmp_path / "input.npz", tmp_path / "answer.json").out.decode()
    assert "the ties decided otherwise are consistent with:" in text


@pytest.mark.parametrize(("precision", "off"), [("float32", 1e-8), ("bfloat16", 1e-4), ("float16", 1e-4)])
def test_a_residual_that_rounding_leaves_empty_is_a_near_tie(specdec, tmp_path, precision, off):
    p = np.array([0.3, 0.3, 0.4])
    q = p * (1 + np.array([off, -off, 0]))
    fields = {
        "draft_tokens": [[0]],
        "draft_probs": [[q.tolist()]],
        "target_probs": [[p.tolist(), p.tolist()]],
        "accept_uniforms": [[1 - off / 10]],
        "sample_uniforms": [0.9],
    }
    answer = {"num_accepted": [0], "tokens": [[2, -1]]}  # drawn from p, as if p = q
    _, report = check(specdec, tmp_path, fields, answer, "--precision", precision)
    assert report["rows"][0]["verdict"] == "near-tie"
    _, report = check(specdec, tmp_path, fields, answer, "--precision", "float64")
    assert report["rows"][0]["verdict"] == "differs"


def test_a_greedy_engine_is_asked_whether_it_is_one(specdec, tmp_path):
    fields = ordinary(np.random.default_rng(23))
    check(specdec, tmp_path, without_s(fields), engine(fields, "argmax instead of sampling"))
    text = specdec("check", tmp_path / "input.npz", tmp_path / "answer.json").out.decode()
    assert "do not fit" in text
    assert "each is the likeliest: argmax instead of sampling?" in text


def test_a_result_without_an_input_is_not_passed_over(specdec, tmp_path):
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "in" / "a.json").write_bytes(to_json(BASE))
    for name in ("a", "extra"):
        (tmp_path / "out" / f"{name}.json").write_bytes(BASE_ANSWER)
    ended = specdec("check", tmp_path / "in", tmp_path / "out")
    assert ended.code == 2
    assert f"error: {tmp_path}/out/extra.json: has no input in {tmp_path}/in" in ended.err
    (tmp_path / "three.jsonl").write_bytes(BASE_ANSWER * 3)
    ended = specdec("explain", tmp_path / "in" / "a.json", "--against", tmp_path / "three.jsonl")
    assert ended.code == 2
    assert "has more steps than the input" in ended.err


def test_names_do_not_break_lines_or_tables(specdec, tmp_path):
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
        for name in ("a|b", "c\nd"):
            data = to_json(BASE) if folder == "in" else b'{"num_accepted":[1],"tokens":[[0,0]]}\n'
            (tmp_path / folder / f"{name}.json").write_bytes(data)
    markdown = specdec("check", tmp_path / "in", tmp_path / "out", "--format", "markdown").out.decode()
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {4}
    text = specdec("check", tmp_path / "in", tmp_path / "out").out.decode()
    assert len(re.findall(r": row 0 +differs  ", text)) == 2


def test_an_error_in_the_place_of_an_answer_is_told_as_one(specdec, tmp_path):
    (tmp_path / "input.json").write_bytes(to_json(BASE))
    (tmp_path / "answer.json").write_text('{"input":"x","error":{"problem":"is empty"}}')
    ended = specdec("check", tmp_path / "input.json", tmp_path / "answer.json")
    assert ended.code == 2
    assert f"error: {tmp_path}/answer.json: holds an error, and no answer" in ended.err
