"""The command line: whole stdout, whole stderr, exit code."""

import json
import os
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
from helpers import BASE, BASE_ANSWER, SAMPLES, changed, to_json, to_npz

import specdec_cli


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "base.json"
    path.write_bytes(to_json(BASE))
    return path


def test_json_and_npz_are_read_by_name_and_from_standard_input(specdec, tmp_path):
    for name, data in (("a.json", to_json(BASE)), ("a.npz", to_npz(BASE))):
        path = tmp_path / name
        path.write_bytes(data)
        by_name, piped = specdec("run", path), specdec("run", "-", stdin=data)
        assert (by_name.code, by_name.out, by_name.err) == (0, BASE_ANSWER, "")
        assert piped == by_name


def test_the_format_is_told_by_content_not_by_name(specdec, tmp_path):
    path = tmp_path / "in.npz"
    path.write_bytes(to_json(BASE))
    assert specdec("run", path).out == BASE_ANSWER
    path = tmp_path / "in.json"
    path.write_bytes(to_npz(BASE))
    assert specdec("run", path).out == BASE_ANSWER


@pytest.mark.parametrize("data", [to_json(BASE), to_npz(BASE)], ids=["json", "npz"])
def test_a_pipe_works_as_an_argument(tmp_path, data):
    path = tmp_path / "input"
    path.write_bytes(data)
    command = f"{sys.executable} -m specdec_cli run <(cat '{path}')"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, BASE_ANSWER, b"")


def test_python_m_specdec_cli_is_the_same_command(process):
    ended = process("run", SAMPLES / "one_row.json")
    assert (ended.code, ended.out, ended.err) == (0, b'{"num_accepted":[1],"tokens":[[3,3,-1]]}\n', "")


def test_the_version_is_the_packages(specdec):
    ended = specdec("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"specdec {specdec_cli.__version__}\n".encode(), "")


@pytest.mark.parametrize("command", [[], ["run"]], ids=["specdec", "run"])
def test_help_ends_with_an_example(specdec, command):
    ended = specdec(*command, "--help")
    assert ended.code == 0
    assert "Example" in ended.out.decode().strip().splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["run"]])
def test_help_version_and_usage_errors_import_neither_jax_nor_numpy(arguments):
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(sorted({'jax', 'numpy', 'orjson'} & set(sys.modules)), file=sys.stderr))\n"
        f"sys.argv = ['specdec', *{arguments!r}]\n"
        "from specdec_cli.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1] == "[]"


def test_output_goes_to_a_json_or_npz_file(specdec, base, tmp_path):
    for name in ("out.json", "out.npz"):
        ended = specdec("run", base, "-o", tmp_path / name)
        assert (ended.code, ended.out, ended.err) == (0, b"", "")
    assert (tmp_path / "out.json").read_bytes() == BASE_ANSWER
    with np.load(tmp_path / "out.npz") as result:
        assert {k: v.tolist() for k, v in result.items()} == json.loads(BASE_ANSWER)
        assert {v.dtype for v in result.values()} == {np.dtype(np.int32)}


def test_an_output_file_keeps_its_mode_and_a_link_stays_a_link(specdec, base, tmp_path):
    target = tmp_path / "target.json"
    target.write_text("old")
    target.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(target)
    assert specdec("run", base, "-o", link).code == 0
    assert link.is_symlink()
    assert target.read_bytes() == BASE_ANSWER
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_an_output_that_is_the_input_is_refused(specdec, base, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(base)
    before = base.read_bytes()
    for path in (base, link):
        ended = specdec("run", base, "-o", path)
        assert (ended.code, ended.out, base.read_bytes()) == (2, b"", before)


def test_a_new_output_file_has_the_mode_that_the_umask_gives(specdec, base, tmp_path):
    old = os.umask(0o027)
    try:
        specdec("run", base, "-o", tmp_path / "out.json")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o640


def test_a_refused_input_leaves_the_output_file_as_it_was(specdec, tmp_path):
    bad, out = tmp_path / "bad.json", tmp_path / "out.json"
    bad.write_bytes(to_json(changed(sample_uniforms=[1.0])))
    out.write_text("precious")
    assert specdec("run", bad, "-o", out).code == 2
    assert out.read_text() == "precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.json", "out.json"]


def test_an_output_that_cannot_be_written_is_one_sentence_and_exit_3(specdec, base, tmp_path):
    path = tmp_path / "nowhere" / "out.json"
    ended = specdec("run", base, "-o", path)
    assert (ended.code, ended.out) == (3, b"")
    assert ended.err == f"error: {path} cannot be written: No such file or directory\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_one_sentence_and_exit_3(specdec, base, process, tmp_path):
    link = tmp_path / "full.json"
    link.symlink_to("/dev/full")
    ended = specdec("run", base, "-o", link)
    assert (ended.code, ended.err) == (3, f"error: {link} cannot be written: No space left on device\n")
    command = f"{sys.executable} -m specdec_cli run '{base}' > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    said = "error: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (3, said)


def test_an_output_name_must_say_its_format(specdec, base):
    ended = specdec("run", base, "-o", "answer.txt")
    assert (ended.code, ended.out) == (2, b"")
    assert "none of .json, .jsonl and .npz" in " ".join(ended.err.replace("│", " ").split())


@pytest.mark.parametrize("redirection", [">&-", "2>&- >&-", "| true"])
def test_a_closed_stdout_ends_quietly_without_a_traceback(base, redirection):
    command = f"{sys.executable} -m specdec_cli run '{base}' {redirection}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (141 if "|" in redirection else 3)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "stdout_goes", "code"),
    [("--help", True, 141), ("run --help", True, 141), ("--version", True, 141), ("run --nosuch", False, 2)],
)
def test_the_code_is_the_same_when_nobody_reads_what_typer_writes(arguments, stdout_goes, code):
    read, write = os.pipe()
    os.close(read)
    streams = {"stdout": write if stdout_goes else None, "stderr": None if stdout_goes else write}
    done = subprocess.run(
        [sys.executable, "-m", "specdec_cli", *arguments.split()], **streams, timeout=120, check=False
    )
    os.close(write)
    assert done.returncode == code


def test_ctrl_c_exits_with_130_and_no_traceback(tmp_path):
    code = "import sys; sys.argv = ['specdec', 'run', '-']; from specdec_cli.cli import main; main()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=3)  # it waits for standard input
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.json", "missing.json: cannot be read: No such file or directory"),
        ("", "'': cannot be read: No such file or directory"),
        ("[/red]\x1b[1m.json", "[/red]\x1b[1m.json: cannot be read: No such file or directory"),
    ],
)
def test_an_input_that_cannot_be_read_is_named_as_it_was_given(specdec, tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    ended = specdec("run", name)
    assert (ended.code, ended.out, ended.err) == (2, b"", f"error: {said}\n")


def test_a_file_name_that_is_not_utf8_is_printed_byte_for_byte(tmp_path):
    name = bytes(tmp_path) + b"/\xff.json"
    command = [sys.executable.encode(), b"-m", b"specdec_cli", b"run", name]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.stderr == b"error: " + name + b": cannot be read: No such file or directory\n"


def test_no_validate_answers_what_validation_refuses(specdec):
    data = to_json(changed(target_probs=[[[0.5, 1.5], [2.0, 0.0]]]))
    refused = specdec("run", "-", stdin=data)
    assert (refused.code, refused.out) == (2, b"")
    assert refused.err.startswith(
        "error: standard input: target_probs[0][0] sums to 2, which is 1 away from 1: expected less than 0.001\n"
        " hint: logits"
    )
    answered = specdec("run", "-", "--no-validate", stdin=data)
    assert (answered.code, answered.out, answered.err) == (0, b'{"num_accepted":[1],"tokens":[[0,0]]}\n', "")


def test_the_sum_tolerance_is_exclusive_and_read_as_a_decimal(specdec):
    data = to_json(changed(target_probs=[[[0.25, 0.76], [1.0, 0.0]]]))
    assert specdec("run", "-", "--sum-tolerance", "0.01", stdin=data).code == 2
    assert specdec("run", "-", "--sum-tolerance", "0.0100001", stdin=data).code == 0
    assert specdec("run", "-", "--sum-tolerance", "0", stdin=to_json(BASE)).code == 0


@pytest.mark.parametrize("text", ["nan", "-1", "inf", "x", "1e999999999", ""])
def test_a_sum_tolerance_that_is_no_number_is_wrong_usage(specdec, base, text):
    ended = specdec("run", base, f"--sum-tolerance={text}")
    assert (ended.code, ended.out) == (2, b"")
    assert "--sum-tolerance" in ended.err


def test_a_device_that_is_not_there_is_named_with_what_is(process, base):
    ended = process("run", base, "--device", "tpu", env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert (ended.code, ended.out) == (3, b"")
    assert ended.err.startswith("error: JAX could not start 'tpu' (--device); here there is: cpu (1, cpu)\n")


@pytest.mark.parametrize("setting", ["JAX_ENABLE_X64=maybe", "JAX_LOGGING_LEVEL=bogus", "JAX_NUM_CPU_DEVICES=x"])
def test_a_setting_that_jax_refuses_is_named_without_a_traceback(process, base, setting):
    name, value = setting.split("=")
    ended = process("run", base, env={**os.environ, name: value})
    assert (ended.code, ended.out) == (3, b"")
    assert "Traceback" not in ended.err
    assert ended.err.startswith("error: JAX could not")
    assert name in ended.err


@pytest.mark.parametrize("setting", ["JAX_DEBUG_NANS", "JAX_DEBUG_INFS", "JAX_ENABLE_X64", "JAX_DISABLE_JIT"])
def test_settings_of_jax_do_not_change_the_answer(process, setting):
    padded = to_npz(
        changed(
            draft_tokens=[[0, -1]],
            draft_probs=[[[0.5, 0.5], [float("nan"), float("inf")]]],
            target_probs=[[[0.25, 0.75], [1.0, 0.0], [float("nan"), float("inf")]]],
            accept_uniforms=[[0.75, float("nan")]],
        )
    )
    ended = process("run", "-", stdin=padded, env={**os.environ, setting: "1"})
    assert (ended.code, ended.out, ended.err) == (0, b'{"num_accepted":[0],"tokens":[[1,-1,-1]]}\n', "")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_is_printed_in_any_encoding_and_a_full_disk_is_a_sentence(process, arguments):
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = process(*arguments, env=ascii_only)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.isascii()
    command = f"{sys.executable} -m specdec_cli {' '.join(arguments)} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (3, "error: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2> >(true)", "2>&-"])
def test_a_lost_stderr_does_not_change_the_exit_code(redirection):
    command = f"echo '{{}}' | {sys.executable} -m specdec_cli run - {redirection}"
    assert subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False).returncode == 2


def test_an_output_in_a_folder_to_come_or_a_loop_of_links_is_refused(specdec, base, tmp_path):
    assert specdec("explain", base, "-o", f"{tmp_path}/new.json/").code == 2
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    assert specdec("run", base, "-o", loop).code == 3
    assert loop.is_symlink()
    long = tmp_path / ("漢" * 82 + ".json")
    assert specdec("run", base, "-o", long).code == 0
    assert long.read_bytes() == BASE_ANSWER


@pytest.mark.parametrize("platform", ["cuda", "nonsense"])
def test_a_platform_that_cannot_start_is_two_lines_and_no_traceback(process, base, platform):
    ended = process("run", base, env={**os.environ, "JAX_PLATFORMS": platform})
    assert (ended.code, ended.out) == (3, b"")
    assert ended.err.startswith(f"error: JAX could not start '{platform}' (JAX_PLATFORMS)")
    assert len(ended.err.splitlines()) == 2


@pytest.mark.parametrize("setting", ["JAX_NO_TRACING", "JAX_NO_EXECUTION"])
def test_a_setting_that_keeps_jax_from_computing_is_named(process, base, setting):
    ended = process("run", base, env={**os.environ, "SPECDEC_NO_CACHE": "1", setting: "1"})
    assert ended.code == 3
    assert ended.err == f"error: JAX is kept from computing by {setting}\n hint: unset that variable\n"


def test_device_cpu_answers_where_it_is_asked_to(specdec, base):
    assert specdec("run", base, "--device", "cpu").out == BASE_ANSWER


def test_jax_talking_on_stderr_does_not_touch_stdout(process, base):
    loud = {**os.environ, "JAX_LOGGING_LEVEL": "DEBUG", "JAX_LOG_COMPILES": "1"}
    ended = process("run", base, env=loud)
    assert (ended.code, ended.out) == (0, BASE_ANSWER)


@pytest.mark.parametrize(
    "colours",
    [
        {"FORCE_COLOR": "1"},
        {"FORCE_COLOR": "0", "TERM": "xterm"},
        {"FORCE_COLOR": "1", "NO_COLOR": "1"},
        {"CLICOLOR_FORCE": "1"},
    ],
)
def test_results_are_never_coloured(process, base, colours):
    ended = process("run", base, env={**os.environ, **colours})
    assert (ended.code, ended.out, ended.err) == (0, BASE_ANSWER, "")


def test_an_empty_residual_is_a_warning_that_names_row_and_position(specdec):
    data = to_json(
        changed(
            draft_tokens=[[2]],
            draft_probs=[[[0.5, 0.5, 0.0]]],
            target_probs=[[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]],
            accept_uniforms=[[0.0]],
        )
    )
    ended = specdec("run", "-", stdin=data)
    assert (ended.code, ended.out) == (0, b'{"num_accepted":[0],"tokens":[[1,-1]]}\n')
    assert ended.err == (
        "warning: standard input: row 0: empty residual at position 0: the draft token was rejected, yet "
        "target_probs[0][0] exceeds draft_probs[0][0] nowhere; the token was drawn from target_probs[0][0]\n"
    )


def test_no_part_of_an_answer_is_passed_off_as_the_whole(tmp_path):
    """A file that may not grow further takes a part of what an unbuffered stream is given."""
    rows = {name: value * 2000 for name, value in BASE.items()}
    (tmp_path / "large.json").write_bytes(to_json(rows))
    for setting in ("", "1"):
        command = f"ulimit -f 4; exec '{sys.executable}' -m specdec_cli run large.json > out.json"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": setting, "SPECDEC_NO_CACHE": "1"},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 3
        assert done.stderr == b"error: standard output cannot be written: File too large\n"


def test_a_result_does_not_become_the_stream_that_the_caller_closed(tmp_path):
    (tmp_path / "a.json").write_bytes(to_json(BASE))
    code = "import os; os.write(2, b'words of a library'); from specdec_cli.__main__ import main; main()"
    code = code.replace("os.write", "from specdec_cli import terminal; terminal.prepare_process(); os.write", 1)
    command = f"exec '{sys.executable}' -c \"{code}\" run a.json -o a.npz 2>&- <&-"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0
    assert (tmp_path / "a.npz").read_bytes().startswith(b"PK")


@pytest.mark.parametrize("first", [b"garbage", b"{bad", b"[]", b"null", b"# log"])
def test_a_bad_first_line_does_not_hold_up_the_next(first):
    running = subprocess.Popen(
        [sys.executable, "-m", "specdec_cli", "run", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    running.stdin.write(first + b"\n")
    running.stdin.flush()
    assert json.loads(running.stdout.readline())["error"]["line"] == 1
    running.stdin.write(to_json(BASE) + b"\n")
    running.stdin.flush()
    assert running.stdout.readline() == BASE_ANSWER
    running.stdin.close()
    assert running.wait(60) == 2
    running.stdout.close()


def test_many_blank_lines_are_passed_over_quickly(specdec):
    data = to_json(BASE) + b"\n" * 2_000_000 + to_json(BASE)
    assert specdec("run", "-", stdin=data).out == BASE_ANSWER * 2


def test_running_out_of_memory_is_one_sentence_and_exit_3(specdec, base, monkeypatch):
    from specdec_cli import pipeline

    def exhausted(*_, **__):
        raise MemoryError

    monkeypatch.setattr(pipeline, "load_verify_batch", lambda: exhausted)
    ended = specdec("run", base)
    assert (ended.code, ended.out) == (3, b"")
    assert ended.err.startswith(f"error: {base}: out of memory\n hint: ")
    monkeypatch.undo()


def test_an_input_too_large_for_the_memory_does_not_stop_the_rest(specdec, base, monkeypatch, tmp_path):
    from specdec_cli import pipeline

    large = tmp_path / "large.json"
    large.write_bytes(base.read_bytes())
    real = pipeline.load_verify_batch()

    def verify_batch(batch, settings):
        if batch.source == str(large):
            raise MemoryError
        return real(batch, settings)

    monkeypatch.setattr(pipeline, "load_verify_batch", lambda: verify_batch)
    ended = specdec("run", large, base)
    assert ended.code == 3
    first, second = map(json.loads, ended.out.splitlines())
    assert first["error"]["problem"] == "out of memory"
    assert second["num_accepted"] == [0]
