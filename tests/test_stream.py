"""JSON Lines as a stream: an answer for each line as soon as it is there, of any shape, for ever."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from engines import ordinary
from helpers import BASE, BASE_ANSWER, to_json
from oracle import verify


@pytest.fixture
def running():
    process = subprocess.Popen(
        [sys.executable, "-m", "specdec_cli", "run", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    yield process
    process.kill()
    process.stdin.close()
    process.stdout.close()
    process.wait()


def lines(count):
    rng = np.random.default_rng(12)
    for _ in range(count):
        rows, positions, vocabulary = rng.integers(1, 5), rng.integers(1, 6), rng.integers(4, 90)
        yield ordinary(rng, int(rows), int(positions), int(vocabulary))


def test_a_program_that_waits_for_each_answer_gets_each(running):
    for fields in lines(30):
        running.stdin.write(to_json(fields) + b"\n")
        running.stdin.flush()
        answer, _ = verify({name: array.tolist() for name, array in fields.items()}, decimal=True)
        assert json.loads(running.stdout.readline()) == answer


def test_a_writer_may_be_slow_and_break_lines_anywhere(running):
    data = (to_json(BASE) + b"\n") * 2
    for start in range(0, len(data), 37):
        running.stdin.write(data[start : start + 37])
        running.stdin.flush()
        time.sleep(0.002)
    assert [running.stdout.readline() for _ in range(2)] == [BASE_ANSWER] * 2


def test_the_last_line_needs_no_newline(running):
    out, _ = running.communicate(to_json(BASE) + b"\n" + to_json(BASE), timeout=60)
    assert out == BASE_ANSWER * 2


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the most memory a process had")
def test_memory_does_not_grow_with_the_stream():
    code = (
        "import re, sys\n"
        "from specdec_cli.cli import main\n"
        "try:\n main()\n"
        "except SystemExit: pass\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)\n"
    )
    line = to_json(ordinary(np.random.default_rng(13), rows=4, positions=4, vocabulary=60)) + b"\n"

    def kilobytes(count):
        done = subprocess.run(
            [sys.executable, "-c", code, "run", "-"],
            input=line * count,
            capture_output=True,
            timeout=120,
            check=True,
        )
        assert done.stdout.count(b"\n") == count
        return int(done.stderr)

    few, many = kilobytes(100), kilobytes(1500)  # 5 and 70 MB
    assert many < few + 30_000, (few, many)
