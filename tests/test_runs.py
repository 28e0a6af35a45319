"""Files larger than the memory: read in runs of rows, with the same answers, the same faults, and no more memory.

Here a run is one row, so that small files are read as large ones are.
"""

import io
import json
import os
import re
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from generate import batch
from helpers import FIELDS, to_npz

from specdec_cli import loading, pipeline, readers, rows, shapes
from specdec_cli.check import report
from specdec_cli.errors import InputError
from specdec_cli.readers.members import damage

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ">f4", ">f8"]


@pytest.fixture
def by_runs(monkeypatch):
    """Read in runs of one row, two ahead, from here on; before it, inputs are read whole."""

    def begin():
        monkeypatch.setattr(shapes, "LARGE", 1)
        monkeypatch.setattr(rows, "AHEAD", 1)

    return begin


def step(seed=0, number=9, positions=3, vocabulary=12, kind="dyadic"):
    fields = batch(np.random.default_rng(seed), kind, number, positions, vocabulary)
    return {**fields, "draft_tokens": fields["draft_tokens"].astype(np.int32)}


def save(path, fields, save=np.savez):
    with open(path, "wb") as file:
        save(file, **fields)
    return path


def batch_of(path):
    return next(readers.documents(str(path))).batch()


def test_rows_stay_in_the_file(tmp_path, by_runs):
    path = save(tmp_path / "step.npz", step())
    assert isinstance(batch_of(path).draft_probs, np.ndarray)
    by_runs()
    found = next(documents := readers.documents(str(path))).batch()
    assert isinstance(found.draft_probs, rows.RowsInFile)
    assert isinstance(found.target_probs, rows.RowsInFile)
    assert [len(part.draft_tokens) for part in shapes.parts(found)] == [1] * 9
    documents.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_type_order_and_compression_is_answered_as_when_read_whole(
    specdec, tmp_path, by_runs, dtype, how, order
):
    fields = step()
    for name in ("draft_probs", "target_probs"):
        fields[name] = np.asarray(fields[name].astype(dtype), order=order if name == "draft_probs" else "C")
    path = save(tmp_path / "step.npz", fields, how)
    whole = specdec("run", path)
    by_runs()
    assert specdec("run", path) == whole
    assert whole.code == 0


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "command",
    [
        ["run", "--explain"],
        ["explain", "--format", "json"],
        ["explain", "--row", "7", "--format", "markdown"],
        ["run", "--device", "cpu"],
    ],
)
def test_every_command_says_what_it_says_of_arrays_in_memory(specdec, tmp_path, by_runs, command, how):
    path = save(tmp_path / "step.npz", step(kind="mixed"), how)
    whole = specdec(*command, path)
    by_runs()
    assert specdec(*command, path) == whole
    assert whole.code == 0


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("form", ["json", "npz"])
def test_an_answer_in_a_folder_can_be_explained_too(specdec, tmp_path, by_runs, how, form):
    first, second = (save(tmp_path / f"{seed}.npz", step(seed), how) for seed in (1, 2))
    command = ["run", "--explain", first, second, "--output-format", form, "-o"]
    whole = specdec(*command, f"{tmp_path}/whole/")
    by_runs()
    ended = specdec(*command, f"{tmp_path}/runs/")
    assert (ended.code, ended.err) == (0, whole.err)
    assert whole.err.count("drawn from") == 10  # five rows of each are shown
    for name in (f"1.{form}", f"2.{form}"):
        assert (tmp_path / "runs" / name).exists()
        if form == "json":
            assert (tmp_path / "runs" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
def test_check_finds_the_same(specdec, tmp_path, by_runs, how):
    path, answer = save(tmp_path / "step.npz", step(), how), tmp_path / "answer.json"
    answer.write_bytes(specdec("run", path).out)
    wrong = json.loads(answer.read_bytes())
    wrong["tokens"][4][wrong["num_accepted"][4]] = (wrong["tokens"][4][wrong["num_accepted"][4]] + 1) % 12
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    whole = [specdec("check", path, answer), specdec("check", path, tmp_path / "wrong.json", "--format", "json")]
    by_runs()
    again = [specdec("check", path, answer), specdec("check", path, tmp_path / "wrong.json", "--format", "json")]
    assert again == whole
    assert [ended.code for ended in whole] == [0, 1]


def test_a_pipe_is_kept_in_a_file_when_it_is_large(specdec, tmp_path, by_runs, monkeypatch):
    data = to_npz(step())
    whole = specdec("run", "-", stdin=data)
    by_runs()
    ended = from_pipe(data)
    assert (ended.returncode, ended.stdout) == (0, whole.out)
    ended = from_pipe(data, TMPDIR=str(tmp_path / "nowhere"), NO_TEMPORARY_FOLDER="1")
    assert (ended.returncode, ended.stdout) == (3, b"")
    assert b"is kept in a temporary file, which cannot be written" in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_a_pipe_may_unpack_to_more_than_it_is(tmp_path):
    """Its deflated member makes a small archive a large input; its stored member has no file to be read from."""
    fields = step(vocabulary=1000)
    path = tmp_path / "mixed.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in fields.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            how = zipfile.ZIP_DEFLATED if name == "draft_probs" else zipfile.ZIP_STORED
            archive.writestr(f"{name}.npy", buffer.getvalue(), how)
    ended = from_pipe(path.read_bytes(), LARGE=str(len(path.read_bytes()) + 1))
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert len(json.loads(ended.stdout)["tokens"]) == 9


def from_pipe(data, **variables):
    return subprocess.run(
        [sys.executable, "-c", CODE, "run", "-"],
        input=data,
        capture_output=True,
        timeout=120,
        env={**os.environ, **variables},
        check=False,
    )


CODE = """
import os, sys, tempfile
from specdec_cli import rows, shapes
shapes.LARGE, rows.AHEAD = int(os.environ.get("LARGE", 1 << 10)), 1 << 12
if "NO_TEMPORARY_FOLDER" in os.environ:
    tempfile._get_default_tempdir = lambda *_: tempfile._os.stat(os.environ["TMPDIR"])
from specdec_cli.__main__ import main
main()
"""


# Faults


def test_a_fault_is_named_by_its_row_in_the_file(specdec, tmp_path, by_runs):
    fields = step()
    fields["target_probs"][6, 0, 5] = np.nan
    path = save(tmp_path / "step.npz", fields)
    whole = specdec("run", path)
    by_runs()
    assert specdec("run", path) == whole
    assert "target_probs[6][0][5] is NaN" in whole.err


def member_at(path, name):
    """Where the data of a stored member begin and end."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(f"{name}.npy")
    data = path.read_bytes()
    lengths = data[info.header_offset + 26 : info.header_offset + 30]
    start = info.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    return start, start + info.compress_size


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", FIELDS)
def test_a_damaged_member_is_found_though_every_number_may_look_right(specdec, tmp_path, by_runs, name, how):
    path = save(tmp_path / "step.npz", step(), how)
    start, end = member_at(path, name)
    data = bytearray(path.read_bytes())
    data[end - 3 if how is np.savez else (start + end) // 2] ^= 1  # a low bit of the last number
    path.write_bytes(data)
    by_runs()
    ended = specdec("run", path)
    assert (ended.code, ended.out) == (2, b"")
    assert f"{name} is damaged" in ended.err


def test_damage_is_named_before_what_it_did_to_the_numbers(specdec, tmp_path, by_runs):
    path = save(tmp_path / "step.npz", step())
    start, _ = member_at(path, "draft_probs")
    data = bytearray(path.read_bytes())
    data[start + 128 + 8 : start + 128 + 16] = np.float64(np.nan).tobytes()
    path.write_bytes(data)
    by_runs()
    assert "draft_probs is damaged: Bad CRC-32" in specdec("run", path).err


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
def test_no_flipped_bit_changes_an_answer_unseen(specdec, tmp_path, by_runs, how):
    path = save(tmp_path / "step.npz", step(number=3, positions=1, vocabulary=5), how)
    right, data = specdec("run", path), path.read_bytes()
    by_runs()
    rng = np.random.default_rng(1)
    for at in rng.integers(0, len(data), 150).tolist():
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        ended = specdec("run", path)
        assert ended.code == 2 or ended.out == right.out, at
        assert "Traceback" not in ended.err


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path, by_runs):
    path = save(tmp_path / "step.npz", step(number=60))
    by_runs()
    found = next(documents := readers.documents(str(path))).batch()
    parts = shapes.parts(found)
    next(parts)
    start, _ = member_at(path, "draft_probs")
    os.truncate(path, start + 200)
    with pytest.raises(InputError, match=r"ends before it does|Bad CRC"):
        list(parts)
    documents.close()


def test_a_file_that_shrank_is_an_error_of_what_is_read_later_too(tmp_path, by_runs):
    path = save(tmp_path / "step.npz", step())
    by_runs()
    found = next(documents := readers.documents(str(path))).batch()
    list(shapes.parts(found))
    assert found.draft_probs[8, 2].shape == (12,)
    os.truncate(path, 2000)
    with pytest.raises(InputError, match="ends before it does"):
        found.target_probs[8, 2]
    documents.close()


@pytest.mark.parametrize("command", ["explain", "check"])
def test_a_file_that_was_written_to_between_its_rows_and_a_closer_look_is_an_error(
    specdec, tmp_path, by_runs, command, monkeypatch
):
    fields = step()
    path = save(tmp_path / "step.npz", fields)
    (tmp_path / "engine.json").write_bytes(specdec("run", path).out.replace(b"-1", b"0"))
    by_runs()
    real = loading.load_verify_batch()

    def and_then(*args, **options):
        verification = real(*args, **options)
        start, _ = member_at(path, "target_probs")
        with open(path, "r+b") as file:
            file.seek(start)
            file.write(bytes(800))
        os.utime(path, ns=(1, 1))
        return verification

    monkeypatch.setattr(pipeline, "load_verify_batch", lambda: and_then)
    monkeypatch.setattr(report, "load_verify_batch", lambda: and_then)
    ended = specdec(command, path, *[tmp_path / "engine.json"] * (command == "check"))
    assert ended.code == 2
    assert "changed while it was read" in ended.err
    assert "step.npz" in ended.err


def test_a_fault_in_reading_is_not_replaced_by_what_comes_of_it(specdec, tmp_path, by_runs, monkeypatch):
    path = save(tmp_path / "step.npz", step(number=60))
    by_runs()
    real, calls = os.preadv, []

    def failing(*args):
        calls.append(args)
        if len(calls) == 40:
            raise OSError(5, "Input/output error")
        return real(*args)

    monkeypatch.setattr(os, "preadv", failing)
    ended = specdec("run", path)
    assert ended.code == 2
    assert "cannot be read: Input/output error" in ended.err
    assert "damaged" not in ended.err


@pytest.mark.parametrize("copies", [1, 2])
def test_a_machine_that_has_no_thread_left_is_no_damage_of_the_file(
    specdec, tmp_path, by_runs, monkeypatch, copies
):
    path = save(tmp_path / "step.npz", step())
    by_runs()

    def none_left(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(rows.ThreadPoolExecutor, "submit", none_left)
    ended = specdec("run", *[path] * copies)
    assert ended.code == 3
    assert "no more threads can be started" in ended.err


def test_reading_ends_when_the_input_is_left(specdec, tmp_path, by_runs):
    fields = step(number=200)
    fields["draft_tokens"][0, 0] = 99  # found before any probability is looked at
    path = save(tmp_path / "step.npz", fields)
    by_runs()
    ended = specdec("run", path)
    assert ended.code == 2
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("specdec-reader")]


# Memory


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the most memory a process had")
def test_memory_does_not_grow_with_the_file(tmp_path):
    code = (
        "import re, sys\n"
        "from specdec_cli import cli, rows, shapes\n"
        "shapes.LARGE, rows.AHEAD = 1 << 23, 1 << 24\n"
        "try:\n cli.main()\n"
        "except SystemExit as ended: assert not ended.code\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)\n"
    )

    def kilobytes(number):
        rows = np.full((number, 5, 32_768), 1 / 32_768, np.float32)
        fields = {**step(1, number, 4, 8), "draft_probs": rows[:, :4], "target_probs": rows}
        path = save(tmp_path / f"{number}.npz", fields, np.savez_compressed)
        done = subprocess.run(
            [sys.executable, "-c", code, "run", path], capture_output=True, text=True, timeout=120, check=True
        )
        assert len(json.loads(done.stdout)["tokens"]) == number
        return int(re.search(r"\d+", done.stderr)[0])

    few, many = kilobytes(30), kilobytes(160)  # 35 and 189 MB
    assert many < few + 40_000, (few, many)


def test_explaining_what_is_deflated_takes_no_more_memory_than_a_stretch_of_it(tmp_path, by_runs):
    path = save(tmp_path / "step.npz", step(number=400, vocabulary=2000), np.savez_compressed)
    by_runs()
    found = next(documents := readers.documents(str(path))).batch()
    list(shapes.parts(found))
    with np.load(path) as archive:
        whole = archive["target_probs"]
    tracemalloc.start()
    for row in (399, 0, 7):
        assert (found.target_probs[row, 2] == whole[row, 2]).all()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < whole.nbytes / 3
    documents.close()


def test_data_that_end_too_early_are_named_in_words():
    with (
        pytest.raises(InputError, match="target_probs is damaged: it ends too early"),
        damage("is damaged", "target_probs"),
    ):
        raise EOFError


def test_no_member_is_opened_once_others_are_read_ahead(tmp_path, by_runs, monkeypatch):
    path = save(tmp_path / "step.npz", step(), np.savez_compressed)
    by_runs()
    began, opened = [], zipfile.ZipFile.open

    def open_before_all(archive, *arguments):
        assert not began, "a member is opened at a place that a thread may have moved"
        return opened(archive, *arguments)

    monkeypatch.setattr(zipfile.ZipFile, "open", open_before_all)
    monkeypatch.setattr(
        rows.RowsInFile, "_read", lambda *_, read=rows.RowsInFile._read: began.append(1) or read(*_)
    )
    found = next(documents := readers.documents(str(path))).batch()
    assert len(list(shapes.parts(found))) == 9
    assert found.target_probs[0, 2].shape == (12,)
    assert began
    documents.close()


def test_an_archive_that_unpacks_to_much_is_not_read_ahead(tmp_path, monkeypatch):
    packed = save(tmp_path / "packed.npz", step(number=400), np.savez_compressed)
    stored = save(tmp_path / "stored.npz", step(number=400))
    monkeypatch.setattr(pipeline, "AHEAD", packed.stat().st_size + 10)
    assert not pipeline._is_worth_it(str(packed))
    monkeypatch.setattr(pipeline, "AHEAD", stored.stat().st_size + 10)
    assert pipeline._is_worth_it(str(packed))
    assert pipeline._is_worth_it(str(stored))
    assert not pipeline._is_worth_it(str(tmp_path / "none.npz"))
    (tmp_path / "text.npz").write_text("{}")
    assert pipeline._is_worth_it(str(tmp_path / "text.npz"))
