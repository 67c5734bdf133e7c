"""Refuses files that cannot be read as one trace: copies of the same records, and traces of several boots."""

from __future__ import annotations

from collections.abc import Iterable

from wstrace.errors import TraceFileError
from wstrace_exporters.msgpack.read.part import Part


def refuse_copies(parts: Iterable[Part]) -> None:
    """Raises TraceFileError when two files hold the same records, which would be counted twice."""
    distinct = Distinct()
    for part in parts:
        distinct.add(part)


class Distinct:
    """Parts of which no two hold the same records.

    Copies of a file have its id. A file that `convert` made has an id of its own, but the boot id
    and creation time of its trace; such files are accepted when they do not overlap in time.
    """

    def __init__(self) -> None:
        self._alike: dict[object, list[Part]] = {}

    def add(self, other: Part) -> None:
        """Adds a part. Raises TraceFileError when an earlier one holds the same records."""
        copied = self._alike.setdefault(other.file_id, [])
        pieces = self._alike.setdefault(_session(other), []) if other.header.created_ns else []
        for one in [*copied, *(piece for piece in pieces if _overlap(piece, other))]:
            more = [part.path for part in (one, other) if _n_rows(part) == max(_n_rows(one), _n_rows(other))]
            raise TraceFileError(
                f"{one.path} and {other.path} hold records of the same trace, which would be counted twice",
                f"name one of them{f': {more[0]} holds more' if len(more) == 1 else ''}",
            )
        copied.append(other)
        pieces.append(other)


class OneBoot:
    """Parts of one boot of one host, as clocks and pids of others differ.

    The parts of one trace, which each name their predecessor, may be of several boots: it was resumed.

    Args:
        ids: the file ids of parts that are known before they are added.
    """

    def __init__(self, ids: Iterable[bytes | None] = ()) -> None:
        self._ids = set(ids)
        self._first: Part | None = None

    def add(self, other: Part) -> None:
        """Adds a part. Raises TraceFileError when it is of another boot or host than the first."""
        self._ids.add(other.file_id)
        if not (other.header.boot_id or other.header.host):
            return
        first = self._first = self._first or other
        if boot_of(other) != boot_of(first) and other.header.prev not in self._ids:
            raise TraceFileError(
                f"{first.path} and {other.path} come from different boots: their clocks differ, and equal pids are"
                " different processes",
                f"wstrace convert {first.path} {other.path} -o ALL.wst",
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
