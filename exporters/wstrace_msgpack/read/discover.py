"""Which files belong to a trace: parts name the one before them."""

from __future__ import annotations

from pathlib import Path

from wstrace.errors import TraceFileError
from wstrace_msgpack.format.part_names import numbered
from wstrace_msgpack.read.part import Part, first_header


def parts_of(path: str) -> list[str]:
    """The file itself and the parts that follow it; where `keep` removed the first ones, those that are left.

    Raises:
        TraceFileError: a part cannot be read.
    """
    beside = [part for _, part in numbered(path)]
    if not beside:
        return [path]
    if not Path(path).exists():
        return _chain(beside)
    return _chain([path, *beside])


def _chain(paths: list[str]) -> list[str]:
    """Those that follow each other by `prev`, from the first on. One whose header is lost is not left out."""
    found: list[str] = []
    before: bytes | None = None
    for path in paths:
        header = first_header(path)
        if found and header is not None and before is not None and header.prev != before:
            continue
        found.append(path)
        before = header.id if header is not None else _scanned_id(path)
    return found


def _scanned_id(path: str) -> bytes | None:
    """The file id that a damaged part's frames have, None when it has no good one."""
    try:
        part = Part(path)
    except TraceFileError:
        return None
    part.close()
    return part.file_id
