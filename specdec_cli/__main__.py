"""`python -m specdec_cli`, the same as `specdec`."""

from specdec_cli.cli import main

if __name__ == "__main__":
    main()
