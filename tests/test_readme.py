"""The README tells the truth: its commands are run, and print what it says they print."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
STEPS = [
    (command, output)
    for block in BLOCKS
    for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]
BIN = Path(sys.executable).parent


def shell(command, **environment):
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**{k: v for k, v in os.environ.items() if k != "COLUMNS"}, "PATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    ).stdout


def test_there_are_commands_to_try():
    assert len(STEPS) >= 6
    assert STEPS[0][0] == "make run"


@pytest.mark.parametrize(("command", "output"), STEPS, ids=[command for command, _ in STEPS])
def test_a_command_prints_what_the_readme_shows(command, output):
    if "jq" in command and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    if command.startswith("make"):
        # The environment that runs these tests stands for .venv, so that nothing is installed anew.
        stamp = BIN.parent / ".installed"
        if not stamp.exists():
            pytest.skip("these tests were not started by make test")
        command = f"make --no-print-directory -o '{stamp}' run VENV='{BIN.parent}'"
        assert shell(command, MAKEFLAGS="") == output
        return
    assert shell(command) == output


def test_the_python_example_prints_its_comment():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    said = example.rstrip().rpartition("# ")[2]
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    )
    assert (done.stdout.strip(), done.stderr) == (said, "")


def test_every_command_and_option_in_the_help_is_in_the_readme_or_shown_by_help(specdec):
    text = specdec("run", "--help").out.decode()
    for option in re.findall(r"--[a-z-]+", README):
        if option.startswith(("--no-validate", "--sum-tolerance", "--device")):
            assert option in text
