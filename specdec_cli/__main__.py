"""`python -m specdec_cli`, and the console script: signals first, then everything that takes time to import."""

import os
import sys

from specdec_cli.terminal import prepare_process


def main() -> None:
    """Run the command line, and end the process."""
    prepare_process()
    from specdec_cli import cli

    try:
        cli.main()
    except SystemExit as ended:
        if isinstance(ended.code, int) and not _is_watched():
            leave(ended.code)
        raise


def _is_watched() -> bool:
    """Whether a profiler or debugger is there, which has something to do at the end."""
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    return any([sys.getprofile(), sys.gettrace(), *tools])


def leave(code: int) -> None:
    """End at once what has nothing left to do: to take JAX apart, Python needs a sixth of a second."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
