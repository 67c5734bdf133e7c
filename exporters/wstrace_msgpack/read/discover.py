"""Finds the files of a trace, whose parts each name their predecessor, and files that hold the same records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from wstrace.errors import TraceFileError
from wstrace_msgpack.format.part_names import numbered
from wstrace_msgpack.read.part import Part, first_header


def files_of(paths: Iterable[str]) -> list[str]:
    """The paths of all parts of the named traces, each file once even if it is named twice.

    Raises:
        TraceFileError: a part cannot be read.
    """
    found: dict[Path, str] = {}
    for path in paths:
        for part in parts_of(path):
            found.setdefault(Path(part).resolve(), part)
    return list(found.values())


def refuse_copies(parts: Sequence[Part]) -> None:
    """Raises TraceFileError when two files hold the same records, which would be counted twice.

    Copies of a file have its id. A file that `recover`, `merge` or `replay` made has an id of its own, but the boot id
    and creation time of its trace; such files are accepted when they do not overlap in time.
    """
    alike: dict[object, list[Part]] = {}
    for other in parts:
        copied = alike.setdefault(other.file_id, [])
        pieces = alike.setdefault(_session(other), []) if other.header.created_ns else []
        for one in [*copied, *(piece for piece in pieces if _overlap(piece, other))]:
            more = [part.path for part in (one, other) if _n_rows(part) == max(_n_rows(one), _n_rows(other))]
            raise TraceFileError(
                f"{one.path} and {other.path} hold records of the same trace, which would be counted twice",
                f"name one of them{f': {more[0]} holds more' if len(more) == 1 else ''}",
            )
        copied.append(other)
        pieces.append(other)


def refuse_other_boots(parts: Sequence[Part]) -> None:
    """Raises TraceFileError when traces of several boots or hosts, whose clocks and pids differ, are read as one.

    The parts of one trace, which each name their predecessor, may be of several boots: it was resumed.
    """
    known = [part for part in parts if part.header.boot_id or part.header.host]
    ids = {part.file_id for part in parts}
    for other in known[1:]:
        first = known[0]
        if boot_of(other) != boot_of(first) and other.header.prev not in ids:
            raise TraceFileError(
                f"{first.path} and {other.path} come from different boots: their clocks differ, and equal pids are"
                " different processes",
                f"wstrace merge {first.path} {other.path} -o ALL.wst",
            )


def boot_of(part: Part) -> str:
    """What identifies the boot of the machine that a file comes from, which has one clock."""
    return part.header.boot_id or repr(part.header.host)


def _session(part: Part) -> tuple[str, int, int]:
    """The boot id, creation time and part number, which identify what a part was first written for."""
    return part.header.boot_id, part.header.created_ns, part.header.part


def _overlap(one: Part, other: Part) -> bool:
    a, b = one.span(), other.span()
    return a is not None and b is not None and a[0] <= b[1] and b[0] <= a[1]


def _n_rows(part: Part) -> int:
    """The number of rows of a part that can be read."""
    part.check()
    return sum(part.frame_rows().values())


def parts_of(path: str) -> list[str]:
    """The paths of a file and of the parts that follow it; rotation with `keep` may have removed the first ones.

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
    """The paths whose headers name their predecessor by `prev`, from the first on. A part without a header is kept."""
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
    """The file id in the frames of a damaged part; None when no frame is good."""
    try:
        part = Part(path)
    except TraceFileError:
        return None
    part.close()
    return part.file_id
