"""Strictness for every test, and the command line as a fixture."""

import io
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import hypothesis
import jax
import pytest

from specdec_cli import cli

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
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        with pytest.raises(SystemExit) as ended:
            cli.main()
        for number, handler in handlers.items():
            signal.signal(number, handler)
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
