"""Names that a user gave → inputs: files, standard input, and the files of folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specdec_cli.errors import InputError


@dataclass(frozen=True)
class Input:
    """A file, standard input, or what is already known to be wrong."""

    name: str
    """As the user named it, or as it was found in a folder that the user named."""
    place: str
    """Where its result belongs in a folder of results: its path in the folder it was found in, or its own name."""
    error: InputError | None = None


PATTERNS = (".json", ".jsonl", ".npz")
"""What is taken from a folder."""


def find_inputs(
    names: Sequence[str], *, recursive: bool = False, leave_out: str | None = None
) -> tuple[list[Input], bool]:
    """Put the files of a folder in its place.

    Args:
      names: paths, and `-` for standard input.
      recursive: look in the folders below as well.
      leave_out: a folder that is not looked into, as the one that results go to.

    Returns:
      The inputs in the order given, those of a folder sorted by name, and an error in the place of a folder that
      has none; and whether they count as several, as more than one name and any folder do.
    """
    found: list[Input] = []
    several = len(names) > 1
    for name in names:
        if not os.path.isdir(name):
            found.append(Input(name, os.path.basename(name) or name))
            continue
        several = True
        files = sorted(_files(name, recursive, leave_out))
        found.extend(Input(file, os.path.relpath(file, name)) for file in files)
        if not files:
            hint = "" if recursive else "--recursive looks in the folders below it too"
            error = InputError("holds no .json, .jsonl or .npz file", hint, source=name)
            found.append(Input(name, "", error))
    return found, several


def _files(folder: str, recursive: bool, leave_out: str | None) -> Iterator[str]:
    left_out = None if leave_out is None else os.path.realpath(leave_out)
    for path, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if recursive and not name.startswith(".") and os.path.realpath(os.path.join(path, name)) != left_out
        ]
        for name in names:
            if name.endswith(PATTERNS) and not name.startswith("."):
                yield os.path.join(path, name)
