"""`python -m specdec_cli`, and the console script: signals first, then everything that takes time to import."""

from specdec_cli.terminal import prepare_process


def main() -> None:
    """Run the command line."""
    prepare_process()
    from specdec_cli import cli

    cli.main()


if __name__ == "__main__":
    main()
