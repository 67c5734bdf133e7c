"""Which files belong to a trace: parts name the one before them; and which of them hold the same records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from wstrace.errors import TraceFileError
from wstrace_msgpack.format.part_names import numbered
from wstrace_msgpack.read.part import Part, first_header


def files_of(paths: Iterable[str]) -> list[str]:
    """The parts of every trace that is named, each file once however often it is.

    Raises:
        TraceFileError: a part cannot be read.
    """
    found: dict[Path, str] = {}
    for path in paths:
        for part in parts_of(path):
            found.setdefault(Path(part).resolve(), part)
    return list(found.values())


def refuse_copies(parts: Sequence[Part]) -> None:
    """Raises TraceFileError when two files hold records of the same trace: they would be counted twice.

    Copies of a file have its id. What `recover`, `merge` and `replay` made of a trace has an id of its own but the
    trace's boot and time of creation; pieces of it that do not overlap in time are put together.
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


def _session(part: Part) -> tuple[str, int, int]:
    """What names the trace that a part was first written for."""
    return part.header.boot_id, part.header.created_ns, part.header.part


def _overlap(one: Part, other: Part) -> bool:
    a, b = one.span(), other.span()
    return a is not None and b is not None and a[0] <= b[1] and b[0] <= a[1]


def _n_rows(part: Part) -> int:
    """Rows of a part that can be read."""
    part.check()
    return sum(part.frame_rows().values())


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
