"""Several processes over loopback: the same bytes as from one, one summary, and an end to every fault."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from generate import batch
from helpers import CONFORMANCE, SAMPLES

from specdec_cli import shapes
from specdec_cli.cluster import Cluster
from specdec_cli.decide import Decided
from specdec_cli.errors import EnvironmentFault, InputError
from specdec_cli.guard import Joining, fault_of_end
from specdec_cli.inputs import Input
from specdec_cli.outcome import Outcome
from specdec_cli.packing import essence_of, pack, unpack
from specdec_cli.pipeline import outcomes
from specdec_cli.readers import documents, fingerprint_if_apart
from specdec_cli.readers.members import joined_crc
from specdec_cli.rows import Checksum, Share
from specdec_cli.sharing import agree
from specdec_cli.verification import verify_batch

PATIENCE = 40
"""Seconds after which a silent process counts as dead; starting two takes two, and more on a busy machine."""
# Runs of rows are small, so that small files are shared by rows as large ones are.
CODE = """
import sys
from specdec_cli import shapes
shapes.LARGE = int(sys.argv.pop(1))
exec(sys.argv.pop(1))
from specdec_cli.__main__ import main
main()
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(process, number, port, *arguments, large=shapes.LARGE, patience=PATIENCE, before="", folder=None):
    where = "--coordinator", f"127.0.0.1:{port}", "--num-processes", number, "--process-id", process
    command = "run", *arguments, "--distributed", *where, "--distributed-timeout", patience
    return subprocess.Popen(
        [sys.executable, "-c", CODE, str(large), before, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
    )


def ended(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err.decode()


def together(number, *arguments, **options):
    """Exit code, stdout and stderr of every process."""
    port = free_port()
    started = [start(process, number, port, *arguments, **options) for process in reversed(range(number))]
    return [ended(process) for process in reversed(started)]


@pytest.fixture
def folder(tmp_path):
    """Inputs of every kind, two of which fail."""
    place = tmp_path / "in"
    place.mkdir()
    for name in ("a", "b", "c"):
        shutil.copy(SAMPLES / "one_row.json", place / f"{name}.json")
    step = json.dumps(json.loads((SAMPLES / "one_row.json").read_text()))
    (place / "lines.jsonl").write_text(f"{step}\n" * 150 + f"{{}}\n{step}\n")
    (place / "broken.json").write_text("{")
    np.savez(place / "z.npz", **large_step(number=3))
    return place


def large_step(seed=0, number=9, kind="dyadic"):
    fields = batch(np.random.default_rng(seed), kind, number, 3, 12)
    return {**fields, "draft_tokens": fields["draft_tokens"].astype(np.int32)}


@pytest.mark.parametrize("number", [2, 3])
def test_every_conformance_case_gives_the_bytes_of_one_process(process, number):
    one = process("run", CONFORMANCE)
    first, *others = together(number, CONFORMANCE)
    assert first == (one.code, one.out, one.err)
    assert others == [(one.code, b"", "")] * (number - 1)


def test_results_stay_with_their_files_and_one_summary_counts_all(process, folder, tmp_path):
    process("run", folder, "-o", f"{tmp_path}/one/")
    first, second = together(2, folder, "-o", f"{tmp_path}/two/")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == names
    for name in names:
        if (tmp_path / "one" / name).is_file():
            assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert (first[0], second[0]) == (2, 2)
    assert first[2].endswith("6 inputs: 4 done, 2 failed\n")
    assert "inputs:" not in second[2]
    assert (first[2] + second[2]).count("error: ") == 2

    first, _ = together(2, folder, "-o", f"{tmp_path}/two/", "--resume")
    assert first[2].endswith("6 inputs: 2 failed, 4 skipped\n")


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("rows", [9, 2])
def test_rows_of_a_large_file_are_shared(process, tmp_path, number, rows):
    path = tmp_path / "step.npz"
    np.savez(path, **large_step(number=rows))
    one = process("run", path)
    assert one.code == 0
    first, *others = together(number, path, large=1)
    assert first == (0, one.out, "")
    assert others == [(0, b"", "")] * (number - 1)


def test_rows_of_a_large_file_come_together_in_a_folder_too(process, tmp_path):
    path = tmp_path / "step.npz"
    np.savez(path, **large_step())
    one = process("run", path)
    assert [code for code, _, _ in together(2, path, "-o", f"{tmp_path}/out/", large=1)] == [0, 0]
    assert (tmp_path / "out/step.json").read_bytes() == one.out


@pytest.mark.parametrize("fault", ["damage", "number"])
def test_a_fault_in_shared_rows_is_told_once_as_one_process_does(process, tmp_path, fault):
    path, fields = tmp_path / "step.npz", large_step()
    if fault == "number":
        fields["target_probs"][7, 1, 3] = np.nan  # a row of the second process
        fields["draft_probs"][8, 0, 0] = -1
    np.savez(path, **fields)
    if fault == "damage":
        data = bytearray(path.read_bytes())
        data[data.index(fields["target_probs"].tobytes()) + 40] ^= 1
        path.write_bytes(data)
    one = process("run", path)
    assert one.code == 2
    first, second = together(2, path, large=1)
    assert first == (2, b"", one.err)
    assert second == (2, b"", "")


STOPS_AT_3 = """
import time
from specdec_cli import filing
real = filing.digest_of
filing.digest_of = lambda path: time.sleep(600) if path.endswith("3.json") else real(path)
"""


@pytest.mark.parametrize("dies", [0, 1])
def test_others_end_when_a_process_dies_and_resume_finishes(process, tmp_path, dies):
    inputs, out = [tmp_path / f"{name}.json" for name in range(5)], tmp_path / "out"
    for path in inputs:
        shutil.copy(SAMPLES / "one_row.json", path)
    port = free_port()
    # Process 1 does 1.json and 3.json, at which it stops.
    begun = [start(i, 2, port, *inputs, "-o", f"{out}/", patience=8, before=STOPS_AT_3) for i in (0, 1)]
    begun_at = time.monotonic()
    while not all((out / f"{name}.json").exists() for name in (0, 1, 2, 4)):
        assert time.monotonic() - begun_at < 60
        time.sleep(0.05)
    begun[dies].kill()
    found = [ended(each) for each in begun]
    assert [code for code, _, _ in found] == [-signal.SIGKILL if i == dies else 3 for i in (0, 1)]
    said = "process 1 gave no sign of life for 8 seconds" if dies else "process 0 has ended, or cannot be reached"
    assert found[1 - dies][2].startswith(f"error: {said}")
    assert found[1 - dies][2].endswith("\n hint: --resume (with -o FOLDER/) does the rest\n")
    done = process("run", *inputs, "-o", f"{out}/", "--resume")
    assert (done.code, done.err) == (0, "5 inputs: 1 done, 4 skipped\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_one_who_works(tmp_path, number):
    inputs = [tmp_path / f"{name}.json" for name in (1, 3)]
    for path in inputs:
        shutil.copy(SAMPLES / "one_row.json", path)
    begun = start(0, 1, free_port(), *inputs, "-o", f"{tmp_path / 'out'}/", before=STOPS_AT_3)
    begun_at = time.monotonic()
    while not (tmp_path / "out" / "1.json").exists():
        assert time.monotonic() - begun_at < 60
        time.sleep(0.05)
    begun.send_signal(number)
    code, _, err = ended(begun)
    assert code == 128 + number
    assert "stopped: 1 input: 1 done; --resume does the rest" in err


@pytest.mark.parametrize(
    ("raised", "said", "others_said"),
    [
        ("MemoryError", "error: out of memory\n hint: ", "gave up: out of memory\n hint: --resume"),
        ("KeyError('boom')", "Traceback", "gave up: 'boom'"),  # an error of the program
    ],
)
def test_a_process_that_cannot_go_on_tells_the_others_at_once(folder, raised, said, others_said):
    fails = (
        f"from specdec_cli import pipeline\ndef fail(*_): raise {raised}\npipeline._outcome_of = fail\n"
        "pipeline.failure_of = lambda error, *_: (_ for _ in ()).throw(error)"
    )
    port = free_port()
    started = [start(i, 2, port, folder, patience=60, before=fails * i) for i in (0, 1)]
    begun = time.monotonic()
    (code, _, err), (other_code, _, other_err) = map(ended, started)
    assert (code, other_code) == (3, 3)
    assert other_err.startswith(said)
    assert f"error: process 1 {others_said}" in err
    assert time.monotonic() - begun < 40


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (1, r"error: process 0 is not to be reached at 127.0.0.1:\d+: Connection refused\n hint: "),
        (0, r"error: not all processes came together at 127.0.0.1:\d+ within 1 seconds\n hint: "),
    ],
)
def test_who_does_not_come_is_waited_for_no_longer_than_said(folder, process, said):
    begun = time.monotonic()
    code, out, err = ended(start(process, 2, free_port(), folder, patience=1))
    assert (code, out) == (3, b"")
    assert re.match(said, err)
    assert err.count("\n") == 2
    assert time.monotonic() - begun < 60


def test_who_was_refused_is_waited_for_no_longer_than_said(tmp_path, folder):
    (tmp_path / "x").mkdir()
    shutil.copy(folder / "a.json", tmp_path / "x/a.json")
    port = free_port()
    given = [folder / "a.json", tmp_path / "x/a.json"], [folder / "a.json", folder / "b.json"]
    started = [start(i, 2, port, *given[i], "-o", f"{tmp_path}/out/", patience=1) for i in (0, 1)]
    begun = time.monotonic()
    (code, _, err), (other_code, _, _) = map(ended, started)
    assert (code, other_code) == (2, 3)
    assert "would both have the result" in err
    assert time.monotonic() - begun < 60


def test_a_shared_file_that_is_replaced_after_the_agreement_is_an_error(tmp_path):
    path, packed = tmp_path / "step.npz", tmp_path / "packed.npz"
    np.savez(path, **large_step())
    np.savez_compressed(packed, **large_step())
    replaces = (
        "import os\nfrom specdec_cli.cluster import Cluster\nreal = Cluster.agree\n"
        f"Cluster.agree = lambda *given: (real(*given), os.replace({str(packed)!r}, {str(path)!r}))\n"
    )
    port = free_port()
    started = [start(i, 2, port, path, large=1, before=replaces * (i == 0)) for i in (0, 1)]
    (code, out, err), (other, _, _) = map(ended, started)
    assert (code, other, out) == (2, 2, b"")
    assert "step.npz: changed while it was read" in err


def test_shared_rows_are_not_read_where_their_result_stays(tmp_path):
    path, counts = tmp_path / "step.npz", tmp_path / "counts"
    np.savez(path, **large_step())
    counting = (
        "from specdec_cli.rows import RowsInFile\nreal = RowsInFile.next_rows\n"
        f"RowsInFile.next_rows = lambda self: (open({str(counts)!r}, 'a').write('.'), real(self))[1]"
    )
    for more in ([], ["--resume"]):
        arguments = [path, "-o", f"{tmp_path}/out/", *more]
        assert [code for code, _, _ in together(2, *arguments, large=1, before=counting)] == [0, 0]
        assert len(counts.read_text()) == 18  # 9 runs of two arrays, the first time only


def test_a_port_that_is_taken_is_not_shared(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, out, err = ended(start(0, 2, taken.getsockname()[1], folder, patience=1))
    assert (code, out) == (3, b"")
    assert re.match(
        r"error: process 0 cannot listen on port \d+: Address already in use\n hint: choose another", err
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_that_waits_for_the_others(folder, number):
    begun = start(0, 2, free_port(), folder, patience=60)
    time.sleep(2)
    begun.send_signal(number)
    at = time.monotonic()
    code, _, err = ended(begun)
    assert (code, err) == (128 + number, "")
    assert time.monotonic() - at < 30


def test_proxies_are_for_others(process, folder, monkeypatch):
    for name in ("http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    one = process("run", folder / "a.json", folder / "b.json")
    first, second = together(2, folder / "a.json", folder / "b.json")
    assert first == (0, one.out, "")
    assert second == (0, b"", "")


def test_files_of_one_name_that_differ_are_not_mixed(tmp_path):
    started, port = [], free_port()
    for process in (0, 1):
        place = tmp_path / str(process)
        place.mkdir()
        fields = large_step()
        np.savez(place / "x.npz", **{**fields, "sample_uniforms": fields["sample_uniforms"] / (1 + process)})
        started.append(start(process, 2, port, "x.npz", large=1, folder=place))
    for code, out, err in map(ended, started):
        assert (code, out) == (2, b"")
        assert err.startswith("error: process 1 was given other inputs than process 0\n")


def test_two_processes_with_one_id_are_told(folder):
    port = free_port()
    started = [start(i, 3, port, folder, patience=5) for i in (0, 1, 1)]
    found = [ended(process) for process in started]
    assert [code for code, _, _ in found] == [3, 3, 3]
    assert any("another process came as process 1 too" in err for _, _, err in found)
    assert all(err.count("\n") == 2 for _, _, err in found)


@pytest.mark.parametrize(("more", "what"), [(["b.json"], "inputs"), (["--no-validate"], "options")])
def test_processes_that_were_given_something_else_are_told(folder, more, what):
    port = free_port()
    more = [folder / each if each.endswith("json") else each for each in more]
    started = [start(0, 2, port, folder / "a.json"), start(1, 2, port, folder / "a.json", *more)]
    for code, out, err in map(ended, started):
        assert (code, out) == (2, b"")
        assert err.startswith(f"error: process 1 was given other {what} than process 0\n hint: ")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_mpirun_tells_the_processes_of_each_other(process, folder):
    variables = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        ["mpirun", "--oversubscribe", "-n", "2", sys.executable, "-m", "specdec_cli", "run", folder / "a.json",
         folder / "b.json", folder / "z.npz", "--distributed"],
        env=variables, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    one = process("run", folder / "a.json", folder / "b.json", folder / "z.npz")
    assert (done.returncode, done.stdout) == (one.code, one.out)


# Wrong usage, without starting anything


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--coordinator", "h:1"], "--coordinator goes with --distributed"),
        (["--process-id", "0"], "--process-id goes with --distributed"),
        (["--distributed-timeout", "5"], "--distributed-timeout goes with --distributed"),
        (["--distributed", "--coordinator", "host"], "'host' is not of the form HOST:PORT or [IPV6]:PORT"),
        (["--distributed", "--coordinator", "host:99999"], "'host:99999' is not of the form HOST:PORT"),
        (["--distributed", "--num-processes", "2", "--process-id", "2"], "2 is none of 2 processes"),
        (["--distributed", "--num-processes", "0"], "0 is not a number from 1 to"),
        (["--distributed", "--distributed-timeout", "3000000000"], "is not a number from 1 to"),
        (["--distributed", "--coordinator", "::1:80"], "is not of the form"),
        (["--distributed", "--explain"], "--explain is for one process"),
        (["--distributed", "--fail-fast"], "--fail-fast is for one process"),
    ],
)
def test_options_that_do_not_go_together_are_refused(specdec, arguments, said):
    found = specdec("run", SAMPLES / "one_row.json", *arguments)
    assert found.code == 2
    assert said in " ".join(found.err.replace("│", " ").split())


def test_what_is_missing_is_named(process):
    found = process("run", SAMPLES / "one_row.json", "--distributed", "--num-processes", "2", "--process-id", "0")
    assert found.code == 2
    assert found.err.startswith("error: --coordinator HOST:PORT must be given too, as no launcher tells it\n")


def test_where_there_is_no_cluster_it_says_how_to_be_one(process):
    found = process("run", SAMPLES / "one_row.json", "--distributed")
    assert found.code == 3
    assert "JAX finds no other processes to work with" in found.err
    assert "--coordinator HOST:PORT --num-processes N --process-id I" in found.err


# The parts


@pytest.mark.parametrize("rows", [0, 1, 7, 100])
@pytest.mark.parametrize("of", [1, 2, 3, 8])
def test_shares_are_all_rows_once(rows, of):
    shares = [range(rows)[Share(number, of).of_rows(rows)] for number in range(of)]
    assert [row for share in shares for row in share] == list(range(rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("length", [0, 1, 100, 65_537])
def test_the_crc_of_a_whole_is_found_from_those_of_its_parts(length):
    first, then = np.random.default_rng(length).bytes(77), np.random.default_rng(1).bytes(length)
    assert joined_crc(zlib.crc32(first), Checksum(zlib.crc32(then), length)) == zlib.crc32(first + then)


@pytest.mark.parametrize("of", [2, 3, 9, 12])
def test_each_share_reads_its_own_rows_and_all_add_up(tmp_path, monkeypatch, of):
    path = tmp_path / "step.npz"
    np.savez(path, **large_step())
    monkeypatch.setattr(shapes, "LARGE", 1)
    whole = documents(str(path))
    want = verify_batch(next(whole).batch())
    opened = [documents(str(path), share=Share(number, of)) for number in range(of)]
    found = [next(each) for each in opened]
    parts = [verify_batch(document.batch()) for document in found]
    assert np.concatenate([part.tokens for part in parts]).tolist() == want.tokens.tolist()
    for name in ("draft_probs", "target_probs"):
        first, *others = (document.fields[name] for document in found)
        assert first.checksum.length == (9 // of) * first.size // 9 * 8
        first.end_of_all([other.checksum for other in others])
        others[-1].checksum = Checksum(others[-1].checksum.crc ^ 1, others[-1].checksum.length)
        with pytest.raises(InputError, match="Bad CRC-32"):
            first.end_of_all([other.checksum for other in others])
    for each in (whole, *opened):
        each.close()


def test_what_cannot_be_read_apart_is_not_shared(tmp_path, monkeypatch):
    fields = large_step()
    np.savez(tmp_path / "stored.npz", **fields)
    np.savez_compressed(tmp_path / "packed.npz", **fields)
    np.savez(tmp_path / "columns.npz", **{**fields, "draft_probs": np.asfortranarray(fields["draft_probs"])})
    names = ["stored.npz", "packed.npz", "columns.npz", "none.npz"]
    assert [fingerprint_if_apart(str(tmp_path / name)) for name in names] == [None] * 4  # small
    monkeypatch.setattr(shapes, "LARGE", 1)
    first, *others = [fingerprint_if_apart(str(tmp_path / name)) for name in names]
    assert first is not None
    assert others == [None] * 3
    assert fingerprint_if_apart(str(SAMPLES / "one_row.json")) is None
    fields["sample_uniforms"] = fields["sample_uniforms"] / 2
    np.savez(tmp_path / "stored.npz", **fields)
    assert fingerprint_if_apart(str(tmp_path / "stored.npz")) not in (None, first)
    os.mkfifo(tmp_path / "pipe.npz")
    assert fingerprint_if_apart(str(tmp_path / "pipe.npz")) is None  # and nobody waited for it


def test_files_are_shared_whole_where_there_are_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(shapes, "LARGE", 1)
    monkeypatch.setattr(Cluster, "agree", lambda *_: None)
    np.savez(tmp_path / "a.npz", **large_step())
    inputs = [Input(str(tmp_path / "a.npz"), "a.npz", number=number) for number in range(3)]

    def own(process, number):
        found = agree(inputs, Cluster(process, number)).own(inputs)
        return [(input.number, input.share and input.share.number) for input in found]

    assert [own(process, 3) for process in range(3)] == [[(0, None)], [(1, None)], [(2, None)]]
    assert [own(process, 2) for process in range(2)] == [[(0, None), (2, None)], [(1, None)]]
    assert [own(process, 4) for process in range(4)] == [[(k, process) for k in range(3)] for process in range(4)]
    assert own(0, 1) == [(0, None), (1, None), (2, None)]


def test_an_outcome_arrives_as_it_was_sent(folder):
    for outcome in outcomes([Input(str(path), path.name) for path in sorted(folder.iterdir())]):
        outcome.settle()
        ((found, _),) = unpack(pack([essence_of(outcome)]), Outcome(outcome.name, outcome.number))
        assert found.status is outcome.status
        assert found.line == outcome.line
        assert found.warnings() == outcome.warnings()
        if outcome.error is not None:
            assert found.error.block() == outcome.error.block()
            assert found.error.exit_code == outcome.error.exit_code
        else:
            for field in Decided.__dataclass_fields__:
                one, other = getattr(found.verification, field), getattr(outcome.verification, field)
                assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())
    fault = Outcome("x", error=EnvironmentFault("out of memory", "more", source="x"))
    _, (found, _) = unpack(pack([essence_of(fault)] * 2), Outcome("x"))
    assert (type(found.error), found.error.block()) == (EnvironmentFault, fault.error.block())


FATAL = "Terminating process because the JAX distributed service detected fatal errors. Words. absl::Status: "
LOGS = {
    "DEADLINE_EXCEEDED: Deadline Exceeded\n\nRPC: /x/RegisterTask": "not all processes came together at h:1",
    "ALREADY_EXISTS: request from a newer incarnation.\n\nRPC: /x/RegisterTask": "came as process 5 too",
    "ABORTED: /job:jax_worker/replica:0/task:3 unexpectedly tried to connect with a different": "process 3 too",
    "INVALID_ARGUMENT: Unexpected task registered with task=5\n\nRPC: /x/RegisterTask": "process 5 is none that",
    "UNAVAILABLE: (stopped sending heartbeats):\n1\nThe tasks": "process 1 gave no sign of life for 7 seconds",
    "UNAVAILABLE: (stopped sending heartbeats):\n/job:a/task:1\n/job:a/task:2\nThe tasks": "processes 1, 2 gave",
    "UNAVAILABLE: Socket closed": "process 0 has ended, or cannot be reached any more at h:1",
    "UNAVAILABLE: (stopped sending heartbeats):\n5\nThe tasks": "process 5 was held up for longer than 7 seconds",
    "INTERNAL: something new\nmore": "the processes lost each other: INTERNAL: something new",
}


@pytest.mark.parametrize("status", LOGS)
def test_what_the_runtime_writes_is_said_in_a_sentence(status):
    fault = fault_of_end(-signal.SIGABRT, f"E0101 noise\n{FATAL}{status}", Joining("h:1", 6, 5, 7))
    assert LOGS[status] in fault.problem
    assert fault.hint or "lost each other" in fault.problem


def test_an_end_that_is_not_the_runtimes_is_told_as_it_is():
    joining = Joining(None, None, None, 7)
    assert fault_of_end(-signal.SIGKILL, "", joining).problem == "was killed"
    assert fault_of_end(-signal.SIGSEGV, "", joining).problem == "was ended by SIGSEGV"
    assert fault_of_end(1, "words\n", joining).problem == "ended with exit code 1: words"
