"""File names of the parts of a trace: `trace.wst` is part 0, `trace.0001.wst` the next.

Each part names the one before it by its file id, so that a reader that is given `trace.wst` finds the parts that
belong together.
"""

from __future__ import annotations

import os
import re

from wstrace_exporters.msgpack.format.layout import SYNC


def part_path(path: str, number: int) -> str:
    """The path or URL of part `number`."""
    stem, suffix = os.path.splitext(path)  # as of a URL
    return path if number == 0 else f"{stem}.{number:04}{suffix}"


def name_and_number(path: str) -> tuple[str, int]:
    """(the path of part 0, the number of this part) by its name alone: ("x.wst", 3) for "x.0003.wst"."""
    folder, slash, name = path.rpartition("/")
    found = re.fullmatch(r"(.+)\.(\d{4,9})(\.[^.]*)", name)
    return (path, 0) if found is None else (folder + slash + found[1] + found[3], int(found[2]))


def parts_prefix(path: str) -> str:
    """What the names of all parts begin with, by the path of part 0."""
    return os.path.splitext(path)[0]


def parts_there(path: str) -> list[str]:
    """The paths of the parts of a trace that exist, in order, by that of part 0; only files that begin like a trace."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    pattern = re.compile(re.escape(stem) + r"\.(\d{4,9})" + re.escape(suffix))
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return []
    found = (match for name in names if (match := pattern.fullmatch(name)))
    numbered = sorted((int(match[1]), os.path.join(folder, match[0])) for match in found)
    return list(filter(_is_trace, [path, *(part for _, part in numbered)]))


def _is_trace(path: str) -> bool:
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(len(SYNC)) == SYNC
    except OSError:
        return False
