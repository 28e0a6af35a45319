"""Several inputs and folders: order kept, one bad one does not stop the rest."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from helpers import BASE, BASE_ANSWER, SAMPLES, changed, to_json, to_npz

GOOD = json.loads(BASE_ANSWER)


def lines(ended):
    return [json.loads(line) for line in ended.out.splitlines()]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b.json").write_bytes(to_json(BASE))
    (tmp_path / "a.npz").write_bytes(to_npz(BASE))
    (tmp_path / "c.jsonl").write_bytes(to_json(BASE) + b"\n{}\n" + to_json(BASE))
    (tmp_path / "note.txt").write_text("not an input")
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "d.json").write_bytes(to_json(BASE))
    return tmp_path


def test_several_inputs_give_a_named_line_each_in_their_order(specdec, folder):
    names = [str(folder / name) for name in ("b.json", "a.npz")]
    ended = specdec("run", *names)
    assert (ended.code, ended.err) == (0, "")
    assert lines(ended) == [{"input": name, **GOOD} for name in names]


def test_one_bad_input_does_not_stop_the_rest(specdec, folder):  # CL-05
    (folder / "bad.json").write_text("{")
    names = [str(folder / name) for name in ("b.json", "bad.json", "a.npz", "missing.json", "b.json")]
    ended = specdec("run", *names)
    first, bad, second, missing, third = lines(ended)
    assert ended.code == 2
    assert first == third == {"input": names[0], **GOOD}
    assert second == {"input": names[2], **GOOD}
    assert bad["input"] == names[1]
    assert "ends in the middle" in bad["error"]["problem"]
    assert missing["error"]["problem"] == "cannot be read: No such file or directory"
    assert ended.err.splitlines()[-1] == "5 steps: 3 done, 2 failed"
    assert f"error: {names[1]}: " in ended.err
    assert f"error: {names[3]}: " in ended.err


def test_fail_fast_stops_at_the_first_that_fails(specdec, folder):
    ended = specdec("run", "--fail-fast", folder / "b.json", folder / "missing.json", folder / "a.npz")
    assert ended.code == 2
    assert [set(line) - {"input"} for line in lines(ended)] == [{"num_accepted", "tokens"}, {"error"}]
    assert ended.err.splitlines()[-1] == "2 steps: 1 done, 1 failed, stopped at the first failure"


def test_a_folder_gives_its_inputs_sorted_by_name(specdec, folder):
    ended = specdec("run", folder)
    assert [line["input"] for line in lines(ended)] == [
        f"{folder}/{n}" for n in ("a.npz", "b.json", *["c.jsonl"] * 3)
    ]
    assert [line.get("line") for line in lines(ended)] == [None, None, 1, None, 3]
    assert lines(ended)[3]["error"]["line"] == 2
    assert ended.code == 2
    deep = specdec("run", folder, "--recursive")
    assert lines(deep)[-1]["input"] == f"{folder}/deep/d.json"


def test_a_folder_of_one_is_named_too(specdec, folder):
    assert lines(specdec("run", folder / "deep")) == [{"input": f"{folder}/deep/d.json", **GOOD}]


def test_a_folder_without_inputs_is_an_error(specdec, tmp_path):
    ended = specdec("run", tmp_path)
    assert ended.code == 2
    assert lines(ended)[0]["error"]["problem"] == "holds no .json, .jsonl or .npz file"


def test_standard_input_can_be_one_of_several(specdec, folder):
    ended = specdec("run", folder / "b.json", "-", stdin=to_json(BASE))
    assert [line["input"] for line in lines(ended)] == [f"{folder}/b.json", "-"]


def test_several_go_to_one_jsonl_file_and_not_over_an_input(specdec, folder):
    out = folder / "out.jsonl"
    assert specdec("run", folder / "b.json", folder / "a.npz", "-o", out).code == 0
    assert [json.loads(line)["num_accepted"] for line in out.read_text().splitlines()] == [[0], [0]]
    before = out.read_bytes()
    ended = specdec("run", folder, "-o", out)  # which is now one of the folder's inputs
    assert (ended.code, ended.out, out.read_bytes()) == (2, b"", before)


def test_the_samples_are_all_answered(specdec, tmp_path):
    copy = tmp_path / "samples"
    shutil.copytree(SAMPLES, copy)
    assert specdec("run", copy).code == 0


def test_an_error_in_several_is_located_as_in_one(specdec, folder):
    bad = folder / "bad.json"
    bad.write_bytes(to_json(changed(sample_uniforms=[1.0])))
    record = lines(specdec("run", folder / "b.json", bad))[1]["error"]
    assert (record["field"], record["index"]) == ("sample_uniforms", [0])


def test_capitals_are_no_other_suffix_and_what_is_no_file_is_not_taken(specdec, tmp_path):
    (tmp_path / "A.NPZ").write_bytes(to_npz(BASE))
    os.mkfifo(tmp_path / "b.json")
    assert [line["input"] for line in lines(specdec("run", tmp_path))] == [f"{tmp_path}/A.NPZ"]
    (tmp_path / "c.json").symlink_to("nowhere")
    assert lines(specdec("run", tmp_path))[1]["error"]["problem"] == "cannot be read: No such file or directory"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_a_folder_that_cannot_be_read_is_reported(folder):
    folder.chmod(0o755)
    (folder / "deep").chmod(0o000)
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-m", "specdec_cli", "run"]
    done = subprocess.run([*command, "--recursive", folder], capture_output=True, timeout=120, check=False)
    assert done.returncode == 2
    assert f"error: {folder}/deep/: cannot be read: Permission denied".encode() in done.stderr
    assert done.stdout.count(b"num_accepted") == 4
