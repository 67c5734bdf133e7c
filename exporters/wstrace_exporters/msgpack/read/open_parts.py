"""OpenParts: the parts of a trace, and what their ids are in the whole trace.

Refused are files that cannot be read as one trace: copies of the same records, and traces of several boots.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary
from wstrace.errors import TraceFileError
from wstrace.schema import MAPPING, STREAMS
from wstrace.table import Selection
from wstrace_exporters.msgpack.format.layout import Limits
from wstrace_exporters.msgpack.read.ids import PartIds, by_id
from wstrace_exporters.msgpack.read.part import Part
from wstrace_exporters.msgpack.storage.urls import Place

#: For how long a record may wait until it is written, so that a part may begin before the one before it ends: rows
#: gather for a second, a snapshot takes seconds, and a tracer that was stopped is behind by as long.
LATE_NS = 60 * 10**9


class OpenParts:
    """The parts of a trace in their order. Files are opened at once; objects of a store, when they are first used.

    places: where they are. strings: the dictionary of the whole trace. limits: see Part. several_boots: whether parts
    may come from different boots, of which each has its own clock. Raises TraceFileError: a part cannot be read; two
    hold the same records, or come from different boots. Of an object, except the first, this is raised when it is first
    used.
    """

    def __init__(self, places: Sequence[Place], strings: Dictionary, limits: Limits, *, several_boots: bool) -> None:
        self._places, self._strings, self._limits, self._several_boots = places, strings, limits, several_boots
        self.remote = any(not isinstance(place, str) for place in places)
        self._opened: dict[int, Part] = {}
        self._in_order, self._boot = 0, ""  # how many of the first ones are open and of one boot, and that one
        self._distinct = Distinct()
        self._ids: list[PartIds] = []  # of the first ones
        self._alone: dict[int, PartIds] = {}  # of those that a window needed
        self._base, self._top = dict[str, int](), dict[str, int]()
        self._given: dict[str, NDArray[np.uint32]] = {}
        self._lock = threading.RLock()
        try:
            _ = self[0] if self.remote else list(self.with_ids())
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Part]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Part:
        with self._lock:
            while self._in_order <= number:
                part, boot = self._open(self._in_order), boot_of(self._open(self._in_order))
                self._boot = self._boot or boot
                # The parts of one trace, which each name their predecessor, may be of several boots: it was resumed.
                differ = not self._several_boots and boot not in ("", self._boot)
                if differ and part.header.prev != self._opened[self._in_order - 1].file_id:
                    first = self._opened[0].path
                    raise TraceFileError(
                        f"{first} and {part.path} come from different boots: their clocks differ, and equal pids are"
                        " different processes",
                        f"wstrace convert {first} {part.path} -o ALL.wst",
                    )
                self._in_order += 1
            return self._opened[number]

    def _open(self, number: int) -> Part:
        """A part, whether or not those before it are open."""
        with self._lock:
            if number not in self._opened:
                part = Part(self._places[number], self._limits)
                try:
                    self._distinct.add(part)
                except BaseException:
                    part.close()
                    raise
                self._opened[number] = part
            return self._opened[number]

    def with_ids(self) -> Iterator[tuple[Part, PartIds]]:
        """Yields each part with what its ids are in the whole trace."""
        for number, part in enumerate(self):
            with self._lock:
                if number == len(self._ids):
                    self._ids.append(self._next(part))
            yield part, self._ids[number]

    def _next(self, part: Part) -> PartIds:
        """What the ids of the next part are: those of its session, behind the ids of sessions before that one."""
        if self._ids and part.session != self[len(self._ids) - 1].session:
            self._base, self._given = dict(self._top), {}
        found = PartIds(part, self._strings, self._base, self._given)
        for space, top in found.top.items():
            if top >= 1 << 32:
                raise TraceFileError(f"{part.path}: its ids do not fit behind those of the sessions before it",
                                     "read it alone")  # fmt: skip
            self._top[space] = max(self._top.get(space, 0), top)
        self._given = {
            table: distinct(np.concatenate((ids, self._given.get(table, ids)))) for table, ids in found.rows.items()
        }
        return found

    def holding(self, selection: Selection) -> Iterator[tuple[Part, PartIds]]:
        """Yields the parts that can hold rows of a selection with what their ids are in the whole trace.

        Of many objects in a store only those are opened that the search for a window of time tries, and those that
        meet it: where the rows have times, and the parts are of one session, which follow each other in time.
        """
        known = STREAMS.get(selection.stream or "")
        timed = known is not None and not known.essential and (selection.start, selection.end) != (None, None)
        if not timed or len(self._ids) == len(self) or self._open(len(self) - 1).session != self[0].session:
            yield from self.with_ids()
            return
        start, end = selection.start or 0, selection.end if selection.end is not None else 1 << 64
        for number in range(bisect_left(range(len(self)), start - LATE_NS, key=self._last_of), len(self)):
            part = self._open(number)
            span = part.span(essential=False)
            if span is not None and span[0] >= end + LATE_NS:
                return
            if span is not None and span[1] >= start and span[0] < end:
                with self._lock:
                    if number not in self._alone:
                        self._alone[number] = PartIds(part, self._strings)
                yield part, self._alone[number]

    def _last_of(self, number: int) -> int:
        """The last time of a part, or of the next one that has rows."""
        spans = (self._open(other).span(essential=False) for other in range(number, len(self)))
        return next((span[1] for span in spans if span is not None), 1 << 64)

    @property
    def mappings(self) -> Batch:
        """The mappings of the parts that were read, as one batch with ascending ids."""
        columns = by_id([ids.mappings for ids in (*self._ids, *self._alone.values())])
        return Batch(MAPPING, columns, source="replay", strings=self._strings)

    def close(self) -> None:
        """Closes those that are open."""
        for part in self._opened.values():
            part.close()


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
        made_of = other.header.boot_id, other.header.created_ns, other.header.part
        pieces = self._alike.setdefault(made_of, []) if other.header.created_ns else []
        for one in [*copied, *(piece for piece in pieces if _overlap(piece, other))]:
            raise TraceFileError(
                f"{one.path} and {other.path} hold records of the same trace, which would be counted twice",
                "name one of them",
            )
        copied.append(other)
        pieces.append(other)


def _overlap(one: Part, other: Part) -> bool:
    a, b = one.span(essential=False), other.span(essential=False)
    return a is not None and b is not None and a[0] <= b[1] and b[0] <= a[1]


def boot_of(part: Part) -> str:
    """What identifies the boot of the machine that a file comes from, which has one clock; "" = not known."""
    return part.header.boot_id or (repr(part.header.host) if part.header.host else "")
