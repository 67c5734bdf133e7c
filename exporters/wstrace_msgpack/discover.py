"""Which files belong to a trace: parts name the one before them."""

from __future__ import annotations

from pathlib import Path

from wstrace.errors import TraceFileError
from wstrace_msgpack.part import Part
from wstrace_msgpack.rotation import numbered


def parts_of(path: str) -> list[str]:
    """The file itself and the parts that follow it; where `keep` removed the first ones, those that are left.

    Raises:
        TraceFileError: there is no such file, nor parts of it.
    """
    beside = [part for _, part in numbered(path)]
    if not beside:
        return [path]
    if not Path(path).exists():
        return _chain(beside)
    return _chain([path, *beside])


def _chain(paths: list[str]) -> list[str]:
    """Those that follow each other by `prev`, from the first on."""
    found: list[str] = []
    before: bytes | None = None
    for path in paths:
        try:
            part = Part(path)
        except TraceFileError:
            if not found:
                raise
            continue
        part.close()
        if found and part.header.prev != before:
            continue
        found.append(path)
        before = part.file_id
    return found
