"""The README tells the truth: its commands are run, and print what it says they print."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import BASE, ROOT, to_json, to_npz

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
RECIPES = [
    recipe
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for recipe in (re.split(r"\n\n", block) if not block.startswith("#!") else [block])
]
BIN = Path(sys.executable).parent


def shell(command, folder=ROOT, extra_path=BIN, **environment):
    path = os.pathsep.join([str(BIN), str(extra_path), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**{k: v for k, v in os.environ.items() if k != "COLUMNS"}, "PATH": path, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def steps(block):
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def test_there_are_commands_to_try():
    assert sum(len(steps(block)) for block in BLOCKS) >= 12
    assert steps(BLOCKS[0])[0][0] == "make run"


@pytest.mark.parametrize("block", BLOCKS, ids=[steps(block)[0][0] for block in BLOCKS])
def test_commands_print_what_the_readme_shows(block, tmp_path):
    for command, output in steps(block):
        if "jq" in command and shutil.which("jq") is None:
            pytest.skip("jq is not installed")
        if command.startswith("make"):
            # The environment that runs these tests stands for .venv, so that nothing is installed anew.
            stamp = BIN.parent / ".installed"
            if not stamp.exists():
                pytest.skip("these tests were not started by make test")
            command = f"make --no-print-directory -o '{stamp}' run VENV='{BIN.parent}'"
            assert shell(command, MAKEFLAGS="").stdout == output
            continue
        printed = shell(command.replace("/tmp/", f"{tmp_path}/")).stdout
        assert printed.replace(f"{tmp_path}/", "/tmp/") == output


@pytest.mark.parametrize("recipe", RECIPES, ids=[recipe.splitlines()[0] for recipe in RECIPES])
def test_a_recipe_for_the_shell_works(recipe, tmp_path):
    for tool in ("jq", "xargs", "parallel", "mpirun"):
        if tool in recipe and shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    for folder in ("0", "1"):
        (tmp_path / "dumps" / folder).mkdir(parents=True)
        (tmp_path / "dumps" / folder / f"a{folder}.npz").write_bytes(to_npz(BASE))
        (tmp_path / "dumps" / folder / f"b{folder}.json").write_bytes(to_json(BASE))
    (tmp_path / "steps.jsonl").write_bytes(b'{"step": %s}\n' % to_json(BASE) * 3)
    srun = tmp_path / "bin" / "srun"  # as Slurm starts a job of one task
    srun.parent.mkdir()
    task = "SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=localhost"
    srun.write_text(f'#!/bin/sh\nexec env SLURM_JOB_ID={os.getpid()} {task} "$@"\n')
    srun.chmod(0o755)
    done = shell(
        recipe.replace("tail -n +1 -f", "cat").replace("mpirun -n", "mpirun --oversubscribe -n"),
        tmp_path,
        SLURM_ARRAY_TASK_ID="1",
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        extra_path=srun.parent,
    )
    assert done.returncode == 0, done.stdout
    assert "error" not in done.stdout


def test_the_python_example_prints_its_comment():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    said = example.rstrip().rpartition("# ")[2]
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    )
    assert (done.stdout.strip(), done.stderr) == (said, "")


OTHERS_OPTIONS = {
    *("--unbuffered", "--array", "--cpus-per-task", "--mem", "--mem-per-cpu"),
    *("--nodes", "--ntasks-per-node", "--gpus-per-node", "--gigabytes", "--rounds"),
}
"""Options of other programs in the README."""


def test_every_command_and_option_is_in_the_readme_and_every_option_there_exists(specdec):
    commands = re.findall(r"^│ (\w+) ", specdec("--help").out.decode(), re.MULTILINE)
    assert {"run", "explain", "check", "info"} <= set(commands)
    options = set()
    for command in ("run", "explain", "check", "info"):
        assert f"specdec {command}" in README
        options |= set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", specdec(command, "--help").out.decode()))
    in_readme = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) - OTHERS_OPTIONS
    assert in_readme <= options
    assert options - in_readme - {"--help", "--output", "--quiet", "--validate"} == set()
