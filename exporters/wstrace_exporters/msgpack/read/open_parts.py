"""OpenParts: the parts of a trace, and what their ids are in the whole trace."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary
from wstrace.errors import TraceFileError
from wstrace.schema import STREAMS, TABLES
from wstrace.table import Selection
from wstrace_exporters.msgpack.format.layout import EVENTS, MAPPINGS, SESSION_BYTES, STRINGS, Limits
from wstrace_exporters.msgpack.format.part_names import name_and_number
from wstrace_exporters.msgpack.read.id_tables import Numbering, PartLookups, joined
from wstrace_exporters.msgpack.read.part import Part
from wstrace_exporters.msgpack.read.same_trace import Distinct, OneBoot, refuse_copies
from wstrace_exporters.msgpack.storage.urls import Place

#: Of fewer parts all are opened.
_FEW = 4


class OpenParts(Sequence[Part]):
    """The parts of a trace in their order. Files are opened at once; objects of a store, when they are first used.

    Args:
        places: where they are.
        strings: the dictionary of the whole trace.
        limits, scan: see Part.

    Raises:
        TraceFileError: a part cannot be read; two hold the same records, or come from different boots. Of an object,
            except the first, this is raised when it is first used.
    """

    def __init__(self, places: Sequence[Place], strings: Dictionary, limits: Limits, *, scan: bool = False) -> None:
        self._places, self._strings, self._limits, self._scan = places, strings, limits, scan
        self.remote = any(not isinstance(place, str) for place in places)
        self._opened: dict[int, Part] = {}
        self._n_checked = 0  # those that were compared with all before them
        self._lookups: list[PartLookups] = []  # of the first ones
        self._alone: dict[int, PartLookups] = {}  # of those that a window needed
        self._numbering, self._session = Numbering(), b""
        self._top: dict[str, int] = {}
        self._distinct, self._boot = Distinct(), OneBoot()
        self._lock = threading.RLock()
        try:
            if self.remote:
                self._open_to(0)
                return
            for number, place in enumerate(places):
                self._opened[number] = Part(place, limits, scan=scan)
            refuse_copies(self._opened.values())
            boot = OneBoot(part.file_id for part in self._opened.values())
            for part in self._opened.values():
                boot.add(part)
            self._n_checked = len(places)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, position: int) -> Part: ...
    @overload
    def __getitem__(self, position: slice) -> list[Part]: ...
    def __getitem__(self, position: int | slice) -> Part | list[Part]:
        if isinstance(position, slice):
            return [self[number] for number in range(*position.indices(len(self)))]
        number = range(len(self))[position]
        self._open_to(number)
        return self._opened[number]

    def _open_to(self, last: int) -> None:
        with self._lock:
            while self._n_checked <= last:
                self._boot.add(self._open(self._n_checked))
                self._n_checked += 1

    def _open(self, number: int) -> Part:
        """A part, whether or not those before it are open."""
        with self._lock:
            if number not in self._opened:
                part = Part(self._places[number], self._limits, scan=self._scan)
                try:
                    self._distinct.add(part)
                except BaseException:
                    part.close()
                    raise
                self._opened[number] = part
            return self._opened[number]

    def with_lookups(self) -> Iterator[tuple[Part, PartLookups]]:
        """Yields each part with the translation of its ids."""
        for number, part in enumerate(self):
            with self._lock:
                if number == len(self._lookups):
                    self._lookups.append(self._next(part))
            yield part, self._lookups[number]

    def holding(self, selection: Selection) -> Iterator[tuple[Part, PartLookups]]:
        """Yields the parts that can hold rows of a selection with the translation of their ids; see _within()."""
        numbers = self._within(selection)
        if numbers is None:
            yield from self.with_lookups()
            return
        for number in numbers:
            part = self._open(number)
            if not _meets(part, selection):
                continue
            with self._lock:
                if number not in self._alone:
                    self._alone[number] = self._lookup(part, Numbering())
            yield part, self._alone[number]

    def _within(self, selection: Selection) -> range | None:
        """The numbers of the parts that can hold a window of time, of which only some are opened to find them.

        None = all: the parts are files, or read already; the rows have no times; or the parts are not known to follow
        each other in time, as those of several traces, of several boots, and of a copy whose parts tell one time of
        creation.
        """
        known = STREAMS.get(selection.stream or "")
        timed = known is not None and not known.essential and (selection.start, selection.end) != (None, None)
        if not (self.remote and timed and len(self._lookups) < len(self)) or len(self) < _FEW or not self._one_name:
            return None
        self._open(len(self) - 1)  # tells of another boot
        found = parts_within(len(self), lambda number: self._open(number).span(), selection.start, selection.end)
        for number in found:
            self._open(number)
        opened = [self._opened[number] for number in sorted(self._opened)]
        follow = all(a.header.created_ns < b.header.created_ns for a, b in itertools.pairwise(opened))
        return found if follow and len(set(map(session_of, opened))) == 1 else None

    @functools.cached_property
    def _one_name(self) -> bool:
        """Whether all parts are of one trace by their names."""
        return len({self._name_of(number) for number in range(len(self))}) == 1

    def _name_of(self, number: int) -> str:
        """The path or URL of part 0 of the trace to which a part belongs, by its name."""
        place = self._places[number]
        return name_and_number(place if isinstance(place, str) else place.url)[0]

    def _next(self, part: Part) -> PartLookups:
        """What the ids of the next part are: those of its session, behind the ids of sessions before that one."""
        session = session_of(part)
        if session != self._session:
            self._session, self._numbering = session, Numbering(dict(self._top))
        found = self._lookup(part, self._numbering)
        for space, top in found.top.items():
            if top >= 1 << 32:
                raise TraceFileError(f"{part.path}: its ids do not fit behind those of the sessions before it",
                                     "read it alone")  # fmt: skip
            self._top[space] = max(self._top.get(space, 0), top)
        given = {
            table: distinct(np.concatenate((ids, found.given.get(table, ids)))) for table, ids in found.rows.items()
        }
        self._numbering = self._numbering._replace(given=given)
        return found

    def _lookup(self, part: Part, numbering: Numbering) -> PartLookups:
        if self.remote:  # one plan for all tables, as each of them is read by itself
            part.ahead(part.entries[_are_of_tables(part)])
        found = PartLookups(part.tables, {table: part.row_ids(table) for table in TABLES}, numbering, self._strings)
        if (n := len(distinct(found.mappings["file"]))) > self._limits.files:
            raise TraceFileError(f"{part.path}: it names {n:,} files, and at most {self._limits.files:,} are read",
                                 "record in shorter parts: rotate_bytes=64MiB")  # fmt: skip
        return found

    @property
    def mappings(self) -> Batch:
        """The mappings of the parts that were read, as one batch with ascending ids."""
        return joined([*self._lookups, *self._alone.values()], self._strings)

    def close(self) -> None:
        """Closes those that are open."""
        for part in self._opened.values():
            part.close()


def session_of(part: Part) -> bytes:
    """What identifies the session that wrote a part: the beginning of its file id."""
    return (part.file_id or b"")[:SESSION_BYTES]


def _meets(part: Part, selection: Selection) -> bool:
    """Whether the times of a part's rows meet those of a selection."""
    span, (start, end) = part.span(), (selection.start, selection.end)
    return span is not None and (start is None or span[1] >= start) and (end is None or span[0] < end)


def _are_of_tables(part: Part) -> NDArray[np.bool_]:
    """Which frames hold names, mappings or rows that others refer to, bool, shape (n,)."""
    streams = [part.streams.index(table) for table in TABLES if table in part.streams]
    entries = part.entries
    rows = (entries["kind"] == EVENTS) & np.isin(entries["stream"], streams)
    return np.asarray(rows | np.isin(entries["kind"], (STRINGS, MAPPINGS)))


#: For how long a record may wait until it is written, so that a part may begin before the one before it ends: rows
#: gather for a second, a snapshot takes seconds, and a tracer that was stopped is behind by as long.
LATE_NS = 60 * 10**9
_NEVER = 1 << 64


def parts_within(n: int, span_of: Callable[[int], tuple[int, int] | None], start: int | None, end: int | None) -> range:
    """The numbers of the parts, of n that follow each other in time, that can hold rows of a window.

    Args:
        n: the number of parts.
        span_of: gives (first, last) time of a part's rows, None = it has none. It is called for a few parts where all
            are about as long, of 3 log2(n) at most, and of those that the window meets.
        start, end: the window in nanoseconds, without `end`; None = no bound.
    """

    def span(number: int) -> tuple[int, int]:
        """That of a part, or of the next one that has rows."""
        spans = (span_of(other) for other in range(number, n))
        return next((found for found in spans if found is not None), (_NEVER, _NEVER))

    first = 0
    if start is not None:
        first = _first(0, n, start - LATE_NS, lambda number: span(number)[1])
    if end is None:
        return range(first, n)
    low, step = first, 1
    while low + step < n and span(low + step)[0] < end + LATE_NS:
        low, step = low + step, 2 * step
    return range(first, _first(low, min(low + step, n), end + LATE_NS, lambda number: span(number)[0]))


def _first(low: int, high: int, at: int, time_of: Callable[[int], int]) -> int:
    """The first number in [low, high) whose time is not before `at`, else `high`; the times ascend.

    It tries where the time would be if all parts between two that are known were as long: under a steady load they
    are. Every third try halves what is left, whatever their lengths.
    """
    if low >= high or (before := time_of(low)) >= at:
        return low
    last = high - 1
    if last == low or (after := time_of(last)) < at:
        return high
    tries = 0
    while last - low > 1:
        tries += 1
        place = low + (last - low) // 2
        if tries % 3 and after < _NEVER:
            place = min(max(low - (at - before) * (low - last) // (after - before), low + 1), last - 1)
        if (time := time_of(place)) < at:
            low, before = place, time
        else:
            last, after = place, time
    return last
