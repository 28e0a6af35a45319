"""What a person sees while work goes on: a bar on a terminal, on stderr, and nowhere else."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading

import pytest
from helpers import BASE, BASE_ANSWER, changed, to_json

AT_ONCE = "from specdec_cli import cli, progress; progress.PATIENCE = {}; cli.main()"
BAR = re.compile(rb"\d+/50 files.*rows, .*/s.*kB")


class Terminal:
    """A pseudo-terminal and what was written to it."""

    def __init__(self):
        self.ours, self.theirs = pty.openpty()
        self.seen = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                piece = os.read(self.ours, 65536)
            except OSError:  # the other end is closed
                return
            self.seen += piece

    def text(self):
        os.close(self.theirs)
        self._reader.join(20)
        os.close(self.ours)
        return self.seen


@pytest.fixture
def files(tmp_path):
    for number in range(50):
        (tmp_path / f"{number:02}.json").write_bytes(to_json(BASE))
    return [str(path) for path in sorted(tmp_path.iterdir())]


def run(*arguments, stdout=subprocess.PIPE, patience=0.0, **environment):
    terminal = Terminal()
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE.format(patience), "run", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=terminal.theirs if stdout == "terminal" else stdout,
        stderr=terminal.theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", **environment},
        timeout=120,
        check=False,
    )
    return done.stdout, terminal.text(), done.returncode


def test_a_bar_is_on_stderr_and_results_are_as_without_a_terminal(files, process):  # CL-09
    out, seen, code = run(*files)
    assert BAR.search(seen)
    assert b"50/50 files" in seen
    assert (out, code) == (process("run", *files).out, 0)
    assert seen.endswith(b"\x1b[2K")  # nothing of it stays


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--no-progress"], {}),
        (["-q"], {}),
        ([], {"TERM": "dumb"}),
    ],
)
def test_there_is_no_bar_where_none_is_wanted(files, arguments, environment):
    assert run(*files, *arguments, **environment)[1] == b""


def test_short_work_has_no_bar(files):
    assert run(*files[:1], patience=60)[1] == b""


def test_results_on_a_terminal_are_progress_enough(files):
    seen = run(*files, stdout="terminal")[1]
    assert seen.count(b'"num_accepted"') == 50
    assert b"files" not in seen
    assert b"\x1b" not in seen


def test_force_color_puts_no_bar_into_a_pipe(files):
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE.format(0), "run", *files],
        capture_output=True,
        env={**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "TERM": "xterm"},
        timeout=120,
        check=False,
    )
    assert (done.stderr, done.returncode) == (b"", 0)


def test_words_stand_whole_between_the_bar(files, tmp_path):
    (tmp_path / "20.json").write_bytes(b"{")
    out, seen, code = run(*files)
    assert code == 2
    assert BAR.search(seen)
    said = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen).replace(b"\r\n", b"\n")
    assert f"\n\rerror: {tmp_path}/20.json: ".encode() in said
    assert said.splitlines()[-1].endswith(b"50 steps: 49 done, 1 failed")
    assert out.count(b"\n") == 50


def test_a_stream_without_an_end_has_a_bar_without_a_goal(tmp_path):
    terminal = Terminal()
    running = subprocess.Popen(
        [sys.executable, "-c", AT_ONCE.format(0), "run", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=terminal.theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    for _ in range(3):
        running.stdin.write(to_json(BASE) + b"\n")
        running.stdin.flush()
        assert running.stdout.readline() == BASE_ANSWER
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    running.stdin.close()
    running.stdout.close()
    seen = terminal.text()
    assert b"0/1 files" in seen
    assert seen.endswith(b"\x1b[2K\x1b[?25h")  # the line is gone, the cursor is back


def test_quiet_leaves_errors_only(specdec, tmp_path):
    empty_residual = changed(
        draft_probs=[[[0.5, 0.5]]], target_probs=[[[0.5, 0.5], [1.0, 0.0]]], accept_uniforms=[[0.999]]
    )
    (tmp_path / "a.json").write_bytes(to_json(empty_residual))
    (tmp_path / "b.json").write_bytes(b"{")
    said = specdec("run", tmp_path, "-o", f"{tmp_path}/out/").err
    assert said.splitlines()[-1] == "2 inputs: 1 done, 1 failed"
    quiet = specdec("run", tmp_path, "-o", f"{tmp_path}/out2/", "-q")
    assert quiet.code == 2
    assert [line.split(":")[0] for line in quiet.err.splitlines()] == ["error", " hint"]
