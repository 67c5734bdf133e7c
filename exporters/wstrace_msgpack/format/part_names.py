"""File names of the parts of a trace: `trace.wst` is part 0, `trace.0001.wst` the next.

Each part names the one before it by its file id, so that a reader that is given `trace.wst` finds the parts that
belong together.
"""

from __future__ import annotations

import re
from pathlib import Path

from wstrace_msgpack.format.layout import SYNC


def part_path(path: str, number: int) -> str:
    """The path of part `number`."""
    return path if number == 0 else str(Path(path).with_suffix(f".{number:04}{Path(path).suffix}"))


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
