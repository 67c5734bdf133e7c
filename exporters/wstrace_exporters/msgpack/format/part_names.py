"""File names of the parts of a trace: `trace.wst` is part 0, `trace.0001.wst` the next.

Each part names the one before it by its file id, so that a reader that is given `trace.wst` finds the parts that
belong together.
"""

from __future__ import annotations

import re
from pathlib import Path

from wstrace_exporters.msgpack.format.layout import SYNC


def part_path(path: str, number: int) -> str:
    """The path of part `number`."""
    return path if number == 0 else str(Path(path).with_suffix(f".{number:04}{Path(path).suffix}"))


def part_url(url: str, number: int) -> str:
    """The URL of part `number`."""
    stem, dot, suffix = url.rpartition(".")
    return url if number == 0 else f"{stem}.{number:04}{dot}{suffix}"


def name_and_number(path: str) -> tuple[str, int]:
    """(the path of part 0, the number of this part) by its name alone: ("x.wst", 3) for "x.0003.wst"."""
    folder, slash, name = path.rpartition("/")
    found = re.fullmatch(r"(.+)\.(\d{4,9})(\.[^.]*)", name)
    return (path, 0) if found is None else (folder + slash + found[1] + found[3], int(found[2]))


def parts_prefix(path: str) -> str:
    """What the names of all parts begin with, by the path of part 0."""
    return "".join(path.rpartition(".")[:2]) or path


def numbered(path: str) -> list[tuple[int, str]]:
    """(number, path) of the numbered parts beside a path, in order; only files that begin like a trace."""
    whole = Path(path)
    pattern = re.compile(re.escape(whole.stem) + r"\.(\d{4,9})" + re.escape(whole.suffix))
    try:
        names = [entry.name for entry in whole.parent.iterdir()]
    except OSError:
        return []
    found = [(int(match[1]), str(whole.parent / name)) for name in names if (match := pattern.fullmatch(name))]
    return sorted(part for part in found if is_trace(part[1]))


def is_trace(path: str) -> bool:
    """Whether the path is a regular file that begins like a trace."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            return file.read(len(SYNC)) == SYNC
    except OSError:
        return False
