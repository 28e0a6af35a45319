"""Strictness for every test, and the command line as a fixture."""

import io
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass

import hypothesis
import jax
import pytest

from specdec_cli import cli

# Compiled programs are shared by the processes that tests start, and by nobody else.
if "PYTEST_XDIST_WORKER" not in os.environ:
    programs = tempfile.TemporaryDirectory()
    os.environ["SPECDEC_CACHE_DIR"] = programs.name
for variable in [name for name in os.environ if name.startswith("JAX_COMPILATION")]:
    del os.environ[variable]

# A caller may have these on: the package must not lean on silent promotion.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# The suite tries the same examples every time; `make fuzz` tries new ones.
fuzzing = "SPECDEC_EXAMPLES" in os.environ
hypothesis.settings.register_profile("suite", deadline=None, derandomize=not fuzzing)
hypothesis.settings.load_profile("suite")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: bytes
    err: str


@pytest.fixture
def specdec(monkeypatch, capfdbinary):
    """Run `specdec ARGS…` in this process: whole stdout, whole stderr, exit code."""

    def run(*arguments: object, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setattr(sys, "argv", ["specdec", *map(str, arguments)])
        capfdbinary.readouterr()
        variables = dict(os.environ)
        shown = warnings.showwarning
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        with pytest.raises(SystemExit) as ended:
            cli.main()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        warnings.showwarning = shown
        os.environ.clear()
        os.environ.update(variables)
        out, err = capfdbinary.readouterr()
        return Ended(ended.value.code or 0, out, err.decode())

    return run


@pytest.fixture
def process():
    """Run `python -m specdec_cli ARGS…` as a process of its own, for what only a whole process shows."""

    def run(*arguments: object, stdin: bytes = b"", **options: object) -> Ended:
        done = subprocess.run(
            [sys.executable, "-m", "specdec_cli", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
            **options,
        )
        return Ended(done.returncode, done.stdout, done.stderr.decode())

    return run
