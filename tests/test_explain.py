"""`specdec explain`: whole outputs of the worked examples, agreement with `run`, and every form."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from generate import batch as make_rows
from helpers import CASES, CONFORMANCE, ROOT, SAMPLES, arrays, changed, to_json, to_npz

from specdec_cli.batch import make_batch
from specdec_cli.explain.data import ACCEPTED, BONUS, NOT_TESTED, PADDING, REJECTED, explain
from specdec_cli.explain.forms import FORMATS, SUFFIXES, render
from specdec_cli.explain.names import no_names, read_names
from specdec_cli.settings import Settings
from specdec_cli.verification import verify_batch

GOLDEN = ROOT / "tests" / "golden"
EXAMPLES = ["one_row", "two_rows", "one_position"]


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("COLUMNS", raising=False)


def explained(fields, **options):
    batch = make_batch(arrays(fields))
    return explain(batch, verify_batch(batch, Settings(validate=False)), **options)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worked_example_is_explained_to_the_letter(specdec, name):
    ended = specdec("explain", f"samples/{name}.json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.decode() == (GOLDEN / f"{name}.txt").read_text()


def parted(value):
    """A JSON value as its leaves: the words, and the floats, whose last digits are a device's."""
    leaves = [value] if not isinstance(value, dict | list) else []
    for item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        leaves += [item[0], *parted(item[1])]
    return leaves


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worked_example_is_explained_in_json(specdec, name):
    ended = specdec("explain", f"samples/{name}.json", "--format", "json")
    assert (ended.code, ended.err, ended.out.count(b"\n")) == (0, "", 1)
    got, want = (parted(json.loads(text)) for text in (ended.out, (GOLDEN / f"{name}.json").read_text()))
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert ours == (pytest.approx(theirs, rel=1e-14) if isinstance(theirs, float) else theirs)


def test_the_first_example_shows_the_numbers_of_its_story(specdec):
    text = specdec("explain", "samples/one_row.json").out.decode()
    for number in ("0.577", "0.423", "1.647", "0.548"):
        assert number in text
    assert "u = 0.79 ≥ 0.23/0.42 = 0.548 → rejected" in text


@pytest.mark.parametrize("name", EXAMPLES)
def test_run_with_explain_keeps_its_json_and_says_the_same_on_stderr(specdec, name):
    alone, both = specdec("run", f"samples/{name}.json"), specdec("run", "--explain", f"samples/{name}.json")
    assert (both.code, both.out) == (0, alone.out)
    assert both.err.strip() == (GOLDEN / f"{name}.txt").read_text().strip()


@pytest.mark.parametrize("case", [c["id"] for c in CASES if "error" not in c["expected"]])
def test_explain_agrees_with_run_on_every_case(specdec, case):
    path = CONFORMANCE / f"{case}.json"
    answer = json.loads(specdec("run", path).out)
    shown = json.loads(specdec("explain", path, "--format", "json", "--rows", ":").out)
    assert [row["num_accepted"] for row in shown["rows"]] == answer["num_accepted"]
    for row, tokens in zip(shown["rows"], answer["tokens"], strict=True):
        assert row["tokens"] == [token for token in tokens if token != -1]
        assert row["draw"]["token"] == row["tokens"][-1]
        verdicts = [test["verdict"] for test in row["tests"]]
        assert verdicts.count(ACCEPTED) == row["num_accepted"]
        assert verdicts.count(REJECTED) == (row["draw"]["kind"] != BONUS)


@pytest.mark.parametrize("seed", range(4))
def test_explain_agrees_with_run_on_hard_rows_and_every_number_fits_its_verdict(seed):
    fields = make_rows(np.random.default_rng(seed), "mixed", 60, 3, 9)
    batch = make_batch(fields)
    verification = verify_batch(batch, Settings(validate=False))
    shown = explain(batch, verification, span=slice(None), top=2)
    assert [row.num_accepted for row in shown.rows] == verification.num_accepted.tolist()
    for row in shown.rows:
        assert row.tokens == [t for t in verification.tokens[row.row].tolist() if t != -1]
        for test in row.tests:
            if test.verdict in (ACCEPTED, REJECTED) and not test.near_tie and not test.exact:
                assert (test.margin > 0) is (test.verdict == ACCEPTED)
            assert -1e-9 <= test.overlap <= 1 + 1e-9
        (drawn,) = [c for c in row.draw.candidates if c.drawn]
        assert drawn.token == row.tokens[-1]
        slack = 1e-12
        assert drawn.start - slack <= row.draw.s <= drawn.end + slack
        assert sum(c.share for c in row.draw.candidates) == pytest.approx(1)


def test_every_token_is_told_apart_by_word(specdec):
    fields = {
        "draft_tokens": [[1, 0, 1, -1]],
        "draft_probs": [[[0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [0.0, 0.0]]],
        "target_probs": [[[0.5, 0.5], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]],
        "accept_uniforms": [[0.5, 0.5, 0.5, 0.5]],
        "sample_uniforms": [0.5],
    }
    (row,) = explained(fields).rows
    assert [test.verdict for test in row.tests] == [ACCEPTED, REJECTED, NOT_TESTED, PADDING]
    text = specdec("explain", "-", stdin=to_json(fields)).out.decode()
    assert "✓ 1 accepted   ✗ 0 rejected   ➜ 1 correction   · 1 not tested   - padding" in text


def test_an_infinite_ratio_is_the_string_infinity_in_strict_json(specdec):
    data = to_json(changed(draft_probs=[[[0.0, 1.0]]]))
    shown = json.loads(specdec("explain", "-", "--format", "json", stdin=data).out, parse_constant=pytest.fail)
    assert shown["rows"][0]["tests"][0]["ratio"] == "Infinity"
    assert "∞" in specdec("explain", "-", stdin=data).out.decode()


def test_near_ties_are_marked_and_counted(specdec):
    text = specdec("explain", CONFORMANCE / "SD-81.json").out.decode()
    assert "4 rows with a near-tie (closer than float32 rounding)" in text
    assert "* near-tie: closer than float32 rounding" in text
    assert explained(changed()).summary.near_ties == 0


def test_an_empty_residual_is_said_plainly(specdec):
    ended = specdec("explain", CONFORMANCE / "SD-12.json")
    said = " ".join(ended.out.decode().split())
    assert (
        "empty residual: p exceeds q nowhere at position 0, so the correction token is drawn from p itself" in said
    )
    assert ended.err.startswith("warning: ")


def test_rows_are_chosen_and_the_others_counted(specdec):
    rows = 9
    fields = {name: np.repeat(array, rows, axis=0) for name, array in arrays(changed()).items()}

    def shown(*options):
        text = specdec("explain", "-", *options, stdin=to_npz(fields)).out.decode()
        return [int(n) for n in re.findall(r"^row (\d+)$", text, re.MULTILINE)], text

    assert shown()[0] == [0, 1, 2, 3, 4]
    assert "4 more rows not shown" in shown()[1]
    assert shown("--row", "7", "--row", "2")[0] == [7, 2]
    assert shown("--rows", "3:5")[0] == [3, 4]
    assert shown("--rows", "7:")[0] == [7, 8]
    assert shown("--row", "1", "--row", "1")[0] == [1]
    assert "8 more rows not shown" in shown("--row", "1", "--row", "1")[1]
    nothing = specdec("explain", "-", "--rows", "9:", stdin=to_npz(fields))
    assert (nothing.code, nothing.out) == (2, b"")
    assert nothing.err == "error: standard input: has none of the rows 9:, it has 9, numbered from 0\n"
    missing = specdec("explain", "-", "--row", "9", stdin=to_npz(fields))
    assert (missing.code, missing.out) == (2, b"")
    assert missing.err == "error: standard input: has no row 9: it has 9, numbered from 0\n"
    assert specdec("explain", "-", "--rows", "3-5", stdin=to_npz(fields)).code == 2


@pytest.mark.parametrize("top", [0, 1, 3])
def test_the_drawn_token_and_its_neighbours_are_listed_whatever_the_top(top):
    p = np.full(1000, 1e-3)
    fields = {
        "draft_tokens": [[-1]],
        "draft_probs": [[p.tolist()]],
        "target_probs": [[p.tolist(), p.tolist()]],
        "accept_uniforms": [[0.0]],
        "sample_uniforms": [0.5005],
    }
    candidates = explained(fields, top=top).rows[0].draw.candidates
    listed = [c.token for c in candidates if c.token is not None]
    assert {499, 500, 501} <= set(listed)
    assert len(listed) <= 3 + top
    assert candidates[-1].token is None
    assert candidates[-1].count == 1000 - len(listed)


def test_a_vocabulary_is_never_printed(specdec):
    vocabulary = 128_256
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(vocabulary), 3)
    fields = {
        "draft_tokens": np.array([[7]]),
        "draft_probs": probs[None, :1],
        "target_probs": probs[None, 1:],
        "accept_uniforms": np.array([[0.9]]),
        "sample_uniforms": np.array([0.4]),
    }
    for form in FORMATS:
        assert len(specdec("explain", "-", "--format", form, stdin=to_npz(fields)).out) < 60_000


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_form_of_a_file_follows_its_suffix(specdec, tmp_path, suffix):
    path = tmp_path / f"why{suffix}"
    ended = specdec("explain", "samples/one_row.json", "-o", path)
    assert (ended.code, ended.out, ended.err) == (0, b"", "")
    text = path.read_text()
    assert "correction" in text.replace("\u00a0", " ").replace("&#160;", " ")
    if SUFFIXES[suffix] == "text":
        assert text == (GOLDEN / "one_row.txt").read_text()
    if SUFFIXES[suffix] == "json":
        assert json.loads(text)["rows"][0]["draw"]["token"] == 3


def test_html_and_svg_need_no_network(specdec):
    html = specdec("explain", "samples/one_row.json", "--format", "html").out.decode()
    svg = specdec("explain", "samples/one_row.json", "--format", "svg").out.decode()
    assert "@font-face" not in svg
    ET.fromstring(svg)
    for text in (html, svg):
        assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?https?:", text)


def test_markdown_has_tables_and_headings(specdec):
    text = specdec("explain", "samples/two_rows.json", "--format", "markdown").out.decode()
    assert "### row 1" in text
    assert "| i | token | p(x) |" in text


@pytest.mark.parametrize(
    "encoding", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "cp1252"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}]
)
@pytest.mark.parametrize("command", [["explain"], ["run", "--explain"]])
def test_a_legacy_encoding_gets_ascii_and_the_same_json(process, encoding, command):  # CL-10
    ended = process(*command, "samples/one_row.json", env={**os.environ, **encoding})
    assert ended.code == 0
    said = ended.err if command[0] == "run" else ended.out.decode()
    if "PYTHONIOENCODING" in encoding:
        assert said.isascii()
        assert "u = 0.79 >= 0.23/0.42 = 0.548 -> rejected" in said
    if command[0] == "run":
        assert ended.out == b'{"num_accepted":[1],"tokens":[[3,3,-1]]}\n'


@pytest.mark.parametrize("colours", [{"FORCE_COLOR": "1"}, {"CLICOLOR_FORCE": "1"}, {"COLORTERM": "truecolor"}])
def test_a_pipe_gets_no_colour(process, colours):
    ended = process("explain", "samples/one_row.json", env={**os.environ, **colours})
    assert b"\x1b" not in ended.out
    assert ended.out.decode() == (GOLDEN / "one_row.txt").read_text()


def test_json_lines_are_explained_line_by_line(specdec):
    line = (SAMPLES / "one_row.json").read_bytes()
    ended = specdec("explain", "-", "--format", "json", stdin=line + b"{}\n" + line)
    assert ended.code == 2
    assert [json.loads(text)["line"] for text in ended.out.splitlines()] == [1, 3]
    assert "standard input: line 2: is missing draft_tokens" in ended.err


def test_a_refused_input_writes_nothing(specdec, tmp_path):
    path = tmp_path / "why.html"
    ended = specdec("explain", "-", "-o", path, stdin=to_json(changed(sample_uniforms=[1])))
    assert (ended.code, ended.out, path.exists()) == (2, b"", False)


@pytest.mark.parametrize(
    ("vocabulary", "said"),
    [
        (["a", "b\n", "c", "d e"], ['"c"', '"d e"']),
        ({"a": 0, "Ġthe": 2, "Ċ": 3, "Ã©": 1}, ['" the"', '"\\n"']),
        ({"model": {"vocab": {"▁low": 2, "er": 3}}}, ['" low"', '"er"']),
        ({"model": {"vocab": [["x", 0.0], ["y", -1.0], ["z", -2.0], ["w", -3.0]]}}, ['"z"', '"w"']),
    ],
)
def test_tokens_are_shown_as_text(specdec, tmp_path, vocabulary, said):
    path = tmp_path / "vocabulary.json"
    path.write_text(json.dumps(vocabulary))
    text = specdec("explain", "samples/one_row.json", "--tokens", path).out.decode()
    rejected, accepted = said
    assert f"✓ 3 {accepted} accepted" in text
    assert f"✗ 2 {rejected} rejected" in text


def test_bytes_of_a_character_are_put_together(tmp_path):
    path = tmp_path / "vocabulary.json"
    path.write_text(json.dumps({"Ã©Ġ": 0}))
    names = read_names(str(path))
    assert (names(0), names(1), no_names(0)) == ('"é "', "", "")


@pytest.mark.parametrize("content", ["5", '{"a": "b"}', "{", "[1]"])
def test_a_file_that_is_no_vocabulary_is_refused(specdec, tmp_path, content):
    path = tmp_path / "vocabulary.json"
    path.write_text(content)
    ended = specdec("explain", "samples/one_row.json", "--tokens", path)
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith(f"error: {path}: is not ")


def test_texts_with_brackets_bars_and_quotes_are_shown_as_they_are(specdec, tmp_path):
    path = tmp_path / "vocabulary.json"
    path.write_text(json.dumps(["[/INST]", "[red]", "a|b", ':smile: "\\n']))
    text = specdec("explain", "samples/one_row.json", "--tokens", path).out.decode()
    assert '0 "[/INST]"' in text
    assert '2 "a|b"' in text
    assert '3 ":smile: \\"\\\\n"' in text
    table = specdec("explain", "samples/one_row.json", "--tokens", path, "--format", "markdown").out.decode()
    assert r'2 "a\|b"' in table


def test_added_tokens_and_missing_texts_are_read(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1, "content": "<|end|>"}]}))
    names = read_names(str(path))
    assert (names(0), names(1), names(2)) == ('"a"', '"<|end|>"', "")
    path.write_text(json.dumps(["a", None, "<0x0A>", "▁b"]))
    names = read_names(str(path))
    assert [names(i) for i in range(4)] == ['"a"', "", '"\\n"', '" b"']


@pytest.mark.parametrize(
    ("u", "p", "q", "said"),
    [
        (0.50006, 0.30004, 0.6, "u = 0.50006 < 0.3/0.6 = 0.50007 → accepted"),
        (0.54764, 0.23, 0.42, "u = 0.54764 ≥ 0.23/0.42 = 0.5476 → rejected"),
        (0.99999, 0.4999, 0.5, "u = 0.99999 ≥ 0.4999/0.5 = 0.9998 → rejected"),
        (0.7, 0.0, 0.5, "p(x) = 0, which never passes → rejected"),
        (0.7, 0.5, 0.0, "q(x) = 0 < p(x), which always passes → accepted"),
    ],
)
def test_the_formula_shows_the_digit_that_decided(specdec, u, p, q, said):
    fields = {
        "draft_tokens": [[0]],
        "draft_probs": [[[q, 1 - q]]],
        "target_probs": [[[p, 1 - p], [0.5, 0.5]]],
        "accept_uniforms": [[u]],
        "sample_uniforms": [0.99999],
    }
    text = specdec("explain", "-", stdin=to_json(fields)).out.decode()
    shown, wanted = (re.search(r"[<≥] [\d./]+ = ([\d.]+)", t) for t in (text, said))
    assert said.split(" = ")[0] in text
    assert said.split(" → ")[1] in text
    if wanted:
        assert float(shown.group(1)) == pytest.approx(float(wanted.group(1)), abs=1e-4)
        left = float(re.search(r"u = ([\d.]+) [<≥]", text).group(1))
        assert (left < float(shown.group(1))) is ("accepted" in said)
    assert "with s = 0.99999" in text


def test_the_others_are_the_tokens_that_could_be_drawn(specdec):
    shown = json.loads(specdec("explain", "samples/real_engine.npz", "--format", "json").out)
    for row in shown["rows"]:
        others = row["draw"]["candidates"][-1]
        assert others["p"] - (others["q"] or 0.0) == pytest.approx(others["residual"])


@pytest.mark.parametrize("columns", ["0", "20", "60", "79", "200"])
def test_no_number_is_cut_and_the_drawn_token_is_marked_at_any_width(process, columns):
    ended = process("explain", "samples/real_engine.npz", env={**os.environ, "COLUMNS": columns})
    text = ended.out.decode()
    assert ended.code == 0
    assert len(re.findall(r"^➜", text, re.MULTILINE)) >= 4
    assert not re.search(r"\d…", text)


@pytest.mark.parametrize("field", ["draft_probs", "target_probs"])
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F810000, 0x7F800000], ids=["NaN", "signalling NaN", "infinity"])
def test_what_is_not_validated_and_behind_the_first_failure_is_shown_as_it_is(process, tmp_path, field, bits):
    fields = {
        "draft_tokens": np.array([[0, 0]]),
        "draft_probs": np.full((1, 2, 2), 0.5, np.float32),
        "target_probs": np.array([[[0.25, 0.75], [0.5, 0.5], [0.5, 0.5]]], np.float32),
        "accept_uniforms": np.array([[0.9, 0.1]]),
        "sample_uniforms": np.array([0.5]),
    }
    fields[field][0, 1].view(np.uint32)[0] = bits
    np.savez(tmp_path / "step.npz", **fields)
    ended = process("explain", "--no-validate", "--format", "json", tmp_path / "step.npz")
    assert (ended.code, ended.err) == (0, "")
    tests = json.loads(ended.out)["rows"][0]["tests"]
    assert [test["verdict"] for test in tests] == ["rejected", "not tested"]
    assert tests[1]["ratio"] == "NaN"


def test_subnormal_numbers_have_right_ratios_and_margins():
    fields = {
        "draft_tokens": [[0]],
        "draft_probs": [[[1.5e-323, 1.0]]],
        "target_probs": [[[1e-323, 1.0], [0.5, 0.5]]],
        "accept_uniforms": [[0.6]],
        "sample_uniforms": [0.5],
    }
    (test,) = explained(fields).rows[0].tests
    assert (test.ratio, test.verdict, test.near_tie) == (pytest.approx(2 / 3), ACCEPTED, True)
    assert test.margin == pytest.approx(2 / 3 - 0.6)


def test_the_summary_counts_the_whole_batch():
    summary = explained(json.loads((SAMPLES / "two_rows.json").read_text())).summary
    assert (summary.rows, summary.drafted, summary.accepted) == (2, 6, 3)
    assert (summary.mean_acceptance_length, summary.draft_acceptance_rate) == (2.5, 0.5)
    assert summary.accepted_lengths == [1, 0, 0, 1]


def test_no_rows_and_no_drafts_are_explained_too():
    nothing = explained({name: [] for name in arrays(changed())})
    assert (nothing.rows, nothing.summary.rows) == ([], 0)
    assert "0 rows" in render([nothing], no_names, "text")
    bonus = explained(
        {
            "draft_tokens": [[]],
            "draft_probs": [[]],
            "target_probs": [[[0.25, 0.75]]],
            "accept_uniforms": [[]],
            "sample_uniforms": [0.5],
        }
    )
    assert "no draft tokens" in render([bonus], no_names, "text")


def test_explain_in_a_terminal_is_coloured_and_as_wide_as_it():
    script = f"stty cols 60; {sys.executable} -m specdec_cli explain samples/one_row.json"
    done = subprocess.run(
        [sys.executable, "-c", f"import pty; pty.spawn(['bash', '-c', {script!r}])"],
        capture_output=True,
        timeout=60,
        check=True,
        env={
            **{k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")},
            "TERM": "xterm-256color",
        },
        stdin=subprocess.DEVNULL,
    )
    assert b"\x1b[32m" in done.stdout
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout.decode())
    assert max(len(line.rstrip("\r")) for line in plain.split("\n")) <= 60
