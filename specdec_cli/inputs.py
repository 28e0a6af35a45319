"""Names that a user gave → inputs: files, standard input, and the files of folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specdec_cli.errors import InputError
from specdec_cli.rows import Share


@dataclass(frozen=True)
class Input:
    """A file, standard input, or what is already known to be wrong."""

    name: str
    """As the user named it, or as it was found in a folder that the user named."""
    place: str
    """Where its result belongs in a folder of results: its path in the folder it was found in, or its own name."""
    error: InputError | None = None
    number: int = 0
    """Which of all inputs it is, from 0."""
    share: Share | None = None
    """The rows to do, where other processes do the others."""


PATTERNS = (".json", ".jsonl", ".npz")
"""How the names end of what is taken from a folder, in capitals or not; hidden files are not taken."""


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
            found.append(Input(name, os.path.basename(name.rstrip("/"))))
            continue
        several = True
        if leave_out is not None and os.path.realpath(name) == os.path.realpath(leave_out):
            found.append(_fault(name, "is where the results go", "write them into another folder"))
            continue
        files = list(_files(name, "", recursive, leave_out))
        found.extend(files)
        if not files:
            hint = "" if recursive else "--recursive looks in the folders below it too"
            found.append(_fault(name, "holds no .json, .jsonl or .npz file", hint))
    return [replace(input, number=number) for number, input in enumerate(found)], several


def _files(root: str, below: str, recursive: bool, leave_out: str | None) -> Iterator[Input]:
    """The files of a folder and, with `recursive`, of those below it, sorted by their whole names.

    Links to folders are not followed, as they may lead in a circle; pipes and devices are no files.
    """
    folder = os.path.join(root, below)
    left_out = None if leave_out is None else os.path.realpath(leave_out)
    entries = []
    try:
        with os.scandir(folder) as listed:
            for entry in listed:
                is_folder = entry.is_dir(follow_symlinks=False)
                is_file = entry.name.lower().endswith(PATTERNS) and (entry.is_file() or entry.is_symlink())
                if not entry.name.startswith(".") and (is_file or (is_folder and recursive)):
                    entries.append((entry.name + "/" * is_folder, is_folder))
    except OSError as error:
        yield _fault(folder, f"cannot be read: {error.strerror or error}")
        return
    for name, is_folder in sorted(entries):
        place = os.path.join(below, name)
        path = os.path.join(root, place)
        if not is_folder:
            yield Input(path, place)
        elif os.path.realpath(path) != left_out:
            yield from _files(root, place, recursive, leave_out)


def _fault(name: str, problem: str, hint: str = "") -> Input:
    return Input(name, "", InputError(problem, hint, source=name))
