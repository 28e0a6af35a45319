"""`-o FOLDER/`: a result a file, none lost, and work that was broken off goes on."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from generate import batch
from helpers import BASE, BASE_ANSWER, changed, to_json, to_npz

from specdec_cli import filing, pipeline, results, writers
from specdec_cli.errors import EnvironmentFault
from specdec_cli.inputs import find_inputs
from specdec_cli.settings import Settings

RECORDS = ".specdec"
OTHER = changed(accept_uniforms=[[0.25]])
OTHER_ANSWER = b'{"num_accepted":[1],"tokens":[[0,0]]}\n'


def tree(folder):
    """Every file below a folder, by its path, the records left out."""
    return {name: data for name, data in whole_tree(folder).items() if not name.startswith(RECORDS)}


def whole_tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def dumps(tmp_path):
    folder = tmp_path / "dumps"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.json").write_bytes(to_json(BASE))
    (folder / "b.npz").write_bytes(to_npz(OTHER))
    (folder / "c.jsonl").write_bytes(to_json(BASE) + b"\n" + to_json(OTHER) + b"\n")
    (folder / "deep" / "a.json").write_bytes(to_json(OTHER))
    return folder


@pytest.fixture
def out(tmp_path):
    return tmp_path / "new" / "out"


def test_each_result_stands_under_the_name_and_place_of_its_input(specdec, dumps, out):
    ended = specdec("run", dumps, "-o", f"{out}/")
    assert (ended.code, ended.out, ended.err) == (0, b"", "3 inputs: 3 done\n")
    flat = {"a.json": BASE_ANSWER, "b.json": OTHER_ANSWER, "c.jsonl": BASE_ANSWER + OTHER_ANSWER}
    assert tree(out) == flat
    assert specdec("run", dumps, "--recursive", "--resume", "-o", out).err == "4 inputs: 1 done, 3 skipped\n"
    assert tree(out) == {**flat, "deep/a.json": OTHER_ANSWER}


def test_a_file_given_by_itself_stands_under_its_own_name(specdec, dumps, out):
    ended = specdec("run", dumps / "deep" / "a.json", "-o", f"{out}/")
    assert (ended.code, ended.out, ended.err) == (0, b"", "")
    assert tree(out) == {"a.json": OTHER_ANSWER}


def test_a_result_holds_what_run_prints_for_its_input_alone(specdec, dumps, out):
    (dumps / "c.jsonl").write_bytes(to_json(BASE) + b"\n{}\n" + to_json(OTHER) + b"\n")
    assert specdec("run", dumps, "-o", f"{out}/").code == 2
    for name, result in (("a.json", "a.json"), ("b.npz", "b.json"), ("c.jsonl", "c.jsonl")):
        assert (out / result).read_bytes() == specdec("run", dumps / name).out


def test_results_can_be_npz(specdec, dumps, out):
    ended = specdec("run", dumps / "a.json", dumps / "b.npz", "-o", f"{out}/", "--output-format", "npz")
    assert ended.code == 0
    with np.load(out / "b.npz") as result:
        assert (result["num_accepted"].dtype, result["tokens"].tolist()) == (np.int32, [[0, 0]])
    assert set(tree(out)) == {"a.npz", "b.npz"}


def test_an_npz_result_does_not_swallow_the_second_of_several_steps(specdec, dumps, out):
    ended = specdec("run", dumps / "c.jsonl", "-o", f"{out}/", "--output-format", "npz")
    assert ended.code == 2
    assert "holds several steps, and an NPZ file holds one" in ended.err
    with np.load(out / "c.npz") as result:
        assert result.files == ["error"]


def test_a_failure_leaves_its_record_and_the_rest_go_on(specdec, dumps, out):
    (dumps / "a.json").write_bytes(b"{")
    (dumps / "bad.npz").write_bytes(b"PK\3\4")
    ended = specdec("run", dumps, dumps / "missing.json", "-o", f"{out}/")
    assert ended.code == 2
    assert ended.err.splitlines()[-1] == "5 inputs: 2 done, 3 failed"
    assert tree(out)["b.json"] == OTHER_ANSWER
    for name in ("a", "bad", "missing"):
        record = json.loads((out / f"{name}.json").read_bytes())
        assert f"error: {record['input']}: {record['error']['problem']}" in ended.err


def test_fail_fast_stops_at_the_first_failure(specdec, dumps, out):
    (dumps / "b.npz").write_bytes(b"PK\3\4")
    ended = specdec("run", dumps, "-o", f"{out}/", "--fail-fast")
    assert ended.code == 2
    assert ended.err.splitlines()[-1] == "2 inputs: 1 done, 1 failed, stopped at the first failure"
    assert set(tree(out)) == {"a.json", "b.json"}


# What is there already


def test_an_existing_result_is_kept_and_reported(specdec, dumps, out):
    out.mkdir(parents=True)
    (out / "a.json").write_text("mine")
    ended = specdec("run", dumps, "-o", f"{out}/", "--resume")
    assert ended.code == 2
    assert f"error: {dumps}/a.json: {out}/a.json is already there, with no record" in ended.err
    assert ended.err.splitlines()[-1] == "3 inputs: 2 done, 1 failed"
    assert (out / "a.json").read_text() == "mine"
    assert specdec("run", dumps, "-o", f"{out}/", "--resume", "--force").err == "3 inputs: 1 done, 2 skipped\n"
    assert (out / "a.json").read_bytes() == BASE_ANSWER


def test_without_resume_a_finished_result_is_not_passed_over_in_silence(specdec, dumps, out):
    specdec("run", dumps / "a.json", "-o", f"{out}/")
    ended = specdec("run", dumps / "a.json", "-o", f"{out}/")
    assert ended.code == 2
    assert ended.err == (
        f"error: {dumps}/a.json: {out}/a.json is already there: kept\n"
        " hint: --resume skips what is done, --force replaces it\n"
    )


def change_the_input(dumps, out):
    (dumps / "a.json").write_bytes(to_json(BASE) + b"\n")


def change_the_result(dumps, out):
    (out / "a.json").write_text("{}")


def lose_the_record(dumps, out):
    for path in (out / RECORDS).iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (change_the_input, [], "made from other bytes"),
        (change_the_result, [], "and is not what specdec wrote"),
        (lose_the_record, [], "with no record of what it was made from"),
        (None, ["--no-validate"], "made with other options"),
        (None, ["--sum-tolerance", "0.01"], "made with other options"),
    ],
)
def test_resume_skips_only_what_would_come_out_the_same(specdec, dumps, out, change, options, said):
    run = ["run", dumps / "a.json", "-o", f"{out}/"]
    specdec(*run)
    assert specdec(*run, "--resume").err == ""
    if change:
        change(dumps, out)
    before = tree(out)
    ended = specdec(*run, "--resume", *options)
    assert (ended.code, tree(out)) == (2, before)
    assert f"is already there, {said}: kept\n hint: --force replaces it" in ended.err
    assert specdec(*run, *options, "--force").code == 0
    assert tree(out) == {"a.json": BASE_ANSWER}
    assert specdec(*run, *options, "--resume").code == 0


def test_another_version_of_specdec_is_not_taken_for_this_one(specdec, dumps, out, monkeypatch):
    run = ["run", dumps / "a.json", "-o", f"{out}/"]
    specdec(*run)
    monkeypatch.setattr(results, "__version__", "9.9")
    assert "made by another version of specdec" in specdec(*run, "--resume").err


def test_a_failure_is_tried_again_when_its_input_is_mended(specdec, dumps, out):
    good = (dumps / "a.json").read_bytes()
    (dumps / "a.json").write_bytes(b"{")
    run = ["run", dumps, "-o", f"{out}/"]
    assert specdec(*run).code == 2
    assert specdec(*run, "--resume").err.splitlines()[-1] == "3 inputs: 1 failed, 2 skipped"
    (dumps / "a.json").write_bytes(good)
    ended = specdec(*run, "--resume")
    assert (ended.code, ended.err) == (0, "3 inputs: 1 done, 2 skipped\n")
    assert tree(out)["a.json"] == BASE_ANSWER


def test_an_input_that_changes_while_it_is_read_has_no_result(specdec, dumps, out, monkeypatch):
    real = pipeline.load_verify_batch()

    def verify_batch(batch, settings):
        change_the_input(dumps, out)
        return real(batch, settings)

    monkeypatch.setattr(pipeline, "load_verify_batch", lambda: verify_batch)
    ended = specdec("run", dumps / "a.json", "-o", f"{out}/")
    assert ended.code == 2
    assert f"error: {dumps}/a.json: changed while it was read" in ended.err
    assert whole_tree(out) == {}


# What cannot be


def test_two_inputs_for_one_result_are_refused_before_anything_is_written(specdec, dumps, out):
    (dumps / "a.npz").write_bytes(to_npz(BASE))
    for names in ([dumps], [dumps / "a.json", dumps / "deep" / "a.json"], [dumps / "b.npz", dumps / "b.npz"]):
        ended = specdec("run", *names, "-o", f"{out}/")
        assert ended.code == 2
        assert " would both have the result " in ended.err
        assert not out.exists()


def test_a_result_never_replaces_an_input(specdec, dumps):
    before = whole_tree(dumps)
    for names, said in (
        ([dumps], "is where the results go"),
        ([dumps / "b.npz", dumps / "a.json"], "would replace the input"),
    ):
        ended = specdec("run", *names, "-o", dumps, "--force")
        assert (ended.code, whole_tree(dumps)) == (2, before)
        assert said in ended.err


def test_results_below_a_folder_of_inputs_do_not_become_inputs(specdec, dumps):
    run = ["run", dumps, "-o", f"{dumps}/answers", "--recursive", "--resume"]
    (dumps / "answers").mkdir()
    assert specdec(*run).err == "4 inputs: 4 done\n"
    assert specdec(*run).err == "4 inputs: 4 skipped\n"


def test_what_has_no_name_is_refused(specdec, dumps, out, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    ended = specdec("run", "-", tmp_path / "fifo", dumps / "a.json", "-o", f"{out}/", stdin=to_json(BASE))
    assert ended.code == 2
    assert ended.err.count("is not a file with a name that its result in a folder could bear") == 2
    assert set(tree(out)) == {"a.json"}


@pytest.mark.parametrize("option", [["--resume"], ["--force"], ["--output-format", "npz"]])
def test_options_for_folders_are_refused_without_one(specdec, dumps, option):
    for where in ([], ["-o", dumps / "out.jsonl"]):
        ended = specdec("run", dumps, *where, *option)
        assert (ended.code, ended.out) == (2, b"")
        assert f"{option[0]} goes with -o FOLDER/" in ended.err


@pytest.mark.parametrize(
    "name", [b"new\nline.json", b"\xff\xfe.json", "日本.npz".encode(), b" .jsonl", b"-x.json"]
)
def test_any_file_name_will_do(process, tmp_path, out, name):
    folder = os.fsencode(tmp_path / "in")
    os.mkdir(folder)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(to_npz(BASE) if name.endswith(b".npz") else to_json(BASE))
    assert process("run", tmp_path / "in", "-o", f"{out}/").code == 0
    assert process("run", tmp_path / "in", "-o", f"{out}/", "--resume").err == "1 input: 1 skipped\n"
    (result,) = [found for found in os.listdir(os.fsencode(out)) if found != RECORDS.encode()]
    assert result == name.replace(b".npz", b".json")


def test_a_folder_that_cannot_be_made_is_an_environment_fault(specdec, dumps, tmp_path):
    (tmp_path / "file").write_text("")
    ended = specdec("run", dumps, "-o", f"{tmp_path}/file/out/")
    assert (ended.code, ended.out) == (3, b"")
    assert f"error: {tmp_path}/file/out cannot be made: Not a directory\n" in ended.err


def test_a_full_disk_leaves_whole_results_only(dumps, out, monkeypatch):
    real, count = os.fchmod, []

    def fchmod(handle, mode):
        count.append(handle)
        if len(count) > 2:  # a record and a result each
            raise OSError(28, "No space left on device")
        real(handle, mode)

    monkeypatch.setattr(writers.os, "fchmod", fchmod)
    inputs, _ = find_inputs([str(dumps)])
    work = filing.into_folder(inputs, results.ResultFolder(str(out), ".json", {}))
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        list(work)
    assert tree(out) == {"a.json": BASE_ANSWER}
    monkeypatch.undo()
    work = filing.into_folder(inputs, results.ResultFolder(str(out), ".json", {}), resume=True)
    assert [outcome.status.value for outcome in work] == ["skipped", "done", "done", "done"]


def test_a_place_that_cannot_be_written_is_one_inputs_failure(specdec, dumps, out):
    """A name of 255 bytes whose result has one more; and a folder where a result should be."""
    (dumps / ("x" * 251 + ".npz")).write_bytes(to_npz(BASE))
    (out / "a.json").mkdir(parents=True)
    ended = specdec("run", dumps, "-o", f"{out}/", "--force")
    assert ended.code == 2
    assert "File name too long" in ended.err
    assert f"{out}/a.json is already there, and is not a file: kept" in ended.err
    assert ended.err.splitlines()[-1] == "4 inputs: 2 done, 2 failed"


def test_an_input_that_has_gone_does_not_touch_its_result(specdec, dumps, out):
    run = ["run", dumps / "a.json", "-o", f"{out}/"]
    specdec(*run)
    before = whole_tree(out)
    (dumps / "a.json").unlink()
    for options in ([], ["--resume"], ["--force"]):
        ended = specdec(*run, *options)
        assert ended.code == 2
        assert "cannot be read: No such file or directory" in ended.err
        assert whole_tree(out) == before


@pytest.mark.parametrize("name", ["typo/", "../typo/", "/typo/"])
def test_results_stay_below_their_folder(specdec, tmp_path, out, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert specdec("run", f"{tmp_path}{name}" if name[0] == "/" else name, "-o", f"{out}/").code == 2
    assert set(tree(out)) == {"typo.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_retry_that_is_killed_before_its_end_is_tried_again(specdec, dumps, out, monkeypatch):
    good = (dumps / "a.json").read_bytes()
    (dumps / "a.json").write_bytes(b"{")
    run = ["run", dumps / "a.json", "-o", f"{out}/"]
    specdec(*run)
    (dumps / "a.json").write_bytes(good)

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(writers.os, "replace", killed)
    inputs, _ = find_inputs([str(dumps / "a.json")])
    place = results.ResultFolder(str(out), ".json", Settings().decisive())
    with pytest.raises(KeyboardInterrupt):
        list(filing.into_folder(inputs, place, resume=True))
    monkeypatch.undo()
    assert specdec(*run, "--resume").code == 0
    assert tree(out) == {"a.json": BASE_ANSWER}


def test_another_process_with_something_else_is_not_overwritten(dumps, out, monkeypatch):
    """Between the look at the folder and the end of the work, another process puts its result there."""
    inputs, _ = find_inputs([str(dumps / "a.json")])
    place = results.ResultFolder(str(out), ".json", {})
    real = pipeline.load_verify_batch()

    def verify_batch(batch, settings):
        (out / "a.json").write_bytes(b"theirs")
        return real(batch, settings)

    monkeypatch.setattr(pipeline, "load_verify_batch", lambda: verify_batch)
    (outcome,) = filing.into_folder(inputs, place)
    assert "a.json is already there, and is not what specdec wrote: kept" in str(outcome.error)
    assert tree(out) == {"a.json": b"theirs"}
    (out / "a.json").unlink()

    def verify_batch_as_well(batch, settings):
        (out / "a.json").write_bytes(BASE_ANSWER)
        return real(batch, settings)

    monkeypatch.setattr(pipeline, "load_verify_batch", lambda: verify_batch_as_well)
    (outcome,) = filing.into_folder(inputs, place)
    assert outcome.error is None


def test_a_warning_in_a_folder_names_its_line(specdec, dumps, out):
    empty = changed(draft_probs=[[[0.5, 0.5]]], target_probs=[[[0.5, 0.5], [1.0, 0.0]]], accept_uniforms=[[0.999]])
    empty["target_probs"] = [[[0.25, 0.75], [1.0, 0.0]]]
    empty["draft_probs"] = [[[0.2504, 0.75]]]
    (dumps / "c.jsonl").write_bytes((to_json(empty) + b"\n") * 2)
    said = specdec("run", dumps / "c.jsonl", "-o", f"{out}/").err
    assert re.findall(r"line (\d): row 0: empty residual", said) == ["1", "2"]


@pytest.mark.parametrize("damage", [b"[" * 100_000, b"\xff", b"{}" * 10_000, b"[]"])
def test_a_damaged_record_is_no_record(specdec, dumps, out, damage):
    run = ["run", dumps / "a.json", "-o", f"{out}/"]
    specdec(*run)
    (record,) = (out / RECORDS).iterdir()
    record.write_bytes(damage)
    ended = specdec(*run, "--resume")
    assert ended.code == 2
    assert "is already there, and is not what specdec wrote: kept" in ended.err
    assert specdec(*run, "--force").code == 0


# A kill at any moment


@pytest.fixture
def many(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    rng = np.random.default_rng(5)
    for number in range(200):
        fields = batch(rng, "mixed", int(rng.integers(1, 5)), int(rng.integers(0, 6)), int(rng.integers(4, 61)))
        (folder / f"step_{number:04}.npz").write_bytes(to_npz(fields))
    return folder


def test_work_killed_at_random_moments_is_resumed_to_the_same_bytes(process, many, tmp_path):
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    assert process("run", many, "-o", f"{undisturbed}/").err.endswith("200 inputs: 200 done\n")
    chance = random.Random(3)
    command = [sys.executable, "-m", "specdec_cli", "run", many, "-o", f"{out}/", "--resume"]
    for round in range(int(os.environ.get("SPECDEC_KILLS", "3"))):
        running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        aim = min(len(tree(out)) + chance.randrange(60), 199) if out.exists() else chance.randrange(60)
        while running.poll() is None and (not out.exists() or len(os.listdir(out)) <= aim):
            pass
        time.sleep(chance.random() * 0.002)
        number = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT][round % 3]
        running.send_signal(number)
        assert running.wait() in (0, -signal.SIGKILL if number == signal.SIGKILL else 128 + number)
        for name, data in tree(out).items():
            assert data == (undisturbed / name).read_bytes()
        if number != signal.SIGKILL:
            assert not list(out.rglob(".specdec.*"))
    assert process("run", many, "-o", f"{out}/", "--resume").code == 0
    assert whole_tree(out) == whole_tree(undisturbed)


def test_processes_that_share_a_folder_lose_nothing(process, many, tmp_path):
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    process("run", many, "-o", f"{undisturbed}/")
    command = [sys.executable, "-m", "specdec_cli", "run", "-o", f"{out}/", "--resume", "-q"]
    names = sorted(many.iterdir())
    several = [subprocess.Popen([*command, *names]) for _ in range(3)]
    assert {running.wait() for running in several} == {0}
    assert process("run", many, "-o", f"{out}/", "--resume").code == 0
    assert whole_tree(out) == whole_tree(undisturbed)
