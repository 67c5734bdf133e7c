"""Epoch: one image of one process, from exec, fork or first sight on, and what lay where in it at what time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.schema import KIND_FILE, KIND_SHARED, KIND_SHIFT

#: a time after every time
NEVER = 0xFFFF_FFFF_FFFF_FFFF
#: an image's first faults come before the rows that tell of its first mappings: so long after the first row
EARLY_NS = 100_000_000
UNTIL_REPORTED = -1


class MappingRow(NamedTuple):
    """A row of the `mapping` stream."""

    id: int
    time_ns: int
    pid: int
    start: int
    end: int
    offset: int
    file: int
    dev: int
    ino: int
    flags: int

    @property
    def kind(self) -> int:
        """An index into schema.KINDS."""
        return self.flags >> KIND_SHIFT & 15


class Fragment(NamedTuple):
    """A piece of a mapping: the addresses [start, end) from the time birth on, until death."""

    start: int
    end: int
    birth: int
    mapping: MappingRow
    death: int = NEVER

    def says(self, start: int, end: int, rest: tuple[int, ...]) -> bool:
        """True when a mapping [start, end) with these offset, file, dev, ino and flags is this very piece."""
        m = self.mapping
        if self.start != start or self.end != end or rest[1:] != m[6:]:
            return False
        # memory without a file has no offset of its own: perf gives the address, maps gives 0
        return m.kind not in (KIND_FILE, KIND_SHARED) or rest[0] == m.offset + self.start - m.start


class FragmentTable(NamedTuple):
    """The live fragments as arrays, by start.

    All but `start` have a row 0 before them that is "unknown" and covers nothing, so that
    `searchsorted(start, address, side="right")` is the row to look at.
    """

    start: NDArray[Any]
    end: NDArray[Any]
    birth: NDArray[Any]
    id: NDArray[Any]
    file: NDArray[Any]
    kind: NDArray[Any]
    newest: int


class Past(NamedTuple):
    """Fragments that ended lately, then those that are young, as arrays."""

    start: NDArray[Any]
    end: NDArray[Any]
    birth: NDArray[Any]
    death: NDArray[Any]
    id: NDArray[Any]
    file: NDArray[Any]
    kind: NDArray[Any]


class Epoch:
    """The address space of one image. Live fragments never overlap; those that ended lately are kept as `closed`.

    Rows may come late (two sources tell of one process): what is newer than a row stands, the row fills in what was
    before it.

    Args:
        start: time in ns.
        kernel: the fragment of the kernel's addresses, which every image has.
        early: faults before this time may come before the row of their mapping: they take the first one that comes.
            0 = none may; UNTIL_REPORTED = until EARLY_NS after the first row.
    """

    MAX_CLOSED, LEAST_CLOSED = 65_536, 1024

    def __init__(self, start: int, kernel: Fragment, early: int = 0) -> None:
        self.start = start
        self.early = early
        self.replaced = 0
        self.newest = 0
        #: rows were lost: what is not told anew is not to be asked for
        self.blind = False
        self.kernel = kernel
        self.closed: list[Fragment] = []
        #: so many that it is time to prune
        self.full = self.LEAST_CLOSED
        self._starts: list[int] = []
        self._live: list[Fragment] = []
        self._table: FragmentTable | None = None

    def __len__(self) -> int:
        return len(self._live)

    @property
    def live(self) -> list[Fragment]:
        """The live fragments by start, without the kernel's."""
        return self._live

    def find(self, start: int, end: int) -> slice:
        """Where the live fragments stand that overlap [start, end)."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._live[first].end <= start:
            first += 1
        return slice(first, max(first, bisect_left(self._starts, end)))

    def known(self, start: int, end: int, rest: tuple[int, ...]) -> Fragment | None:
        """The live fragment that is this very mapping (offset, file, dev, ino, flags), if there is one."""
        at = bisect_left(self._starts, start)
        return self._live[at] if at < len(self._live) and self._live[at].says(start, end, rest) else None

    def confirm(self, fragment: Fragment, time: int) -> None:
        """A row says at that time what the fragment says: it is as old as the oldest such row."""
        if time < fragment.birth:
            self._live[bisect_left(self._starts, fragment.start)] = fragment._replace(birth=time)
            self._table = None

    def put(self, time: int, start: int, end: int, mapping: MappingRow | None) -> None:
        """From that time on the mapping, or None for nothing, lies at [start, end)."""
        if self.early == UNTIL_REPORTED:
            self.early = time + EARLY_NS
        where = self.find(start, end)
        pieces: list[Fragment] = []
        at = start
        for old in self._live[where]:
            if old.birth > time:  # the row is late: before old it was this mapping
                self._lay(pieces, at, old.start, time, mapping)
                self._close(max(old.start, start), min(old.end, end), time, mapping, old.birth)
                pieces.append(old)
                at = old.end
                continue
            if old.start < start:
                pieces.append(old._replace(end=start))
            self._close(max(old.start, start), min(old.end, end), old.birth, old.mapping, time)
            if old.end > end:
                self._lay(pieces, at, end, time, mapping)
                pieces.append(old._replace(start=end))
                at = old.end
        self._lay(pieces, at, end, time, mapping)
        self._live[where] = pieces
        self._starts[where] = [piece.start for piece in pieces]
        self.newest = max(self.newest, time)
        self._table = None

    def _lay(self, pieces: list[Fragment], start: int, end: int, time: int, mapping: MappingRow | None) -> None:
        if mapping is None or start >= end:
            return
        if time < self.replaced:  # a listing made since then shows nothing here
            self._close(start, end, time, mapping, self.replaced)
        else:
            pieces.append(Fragment(start, end, time, mapping))

    def _close(self, start: int, end: int, birth: int, mapping: MappingRow | None, death: int) -> None:
        if mapping is not None and birth < death:
            self.closed.append(Fragment(start, end, birth, mapping, death))

    def begin_listing(self, time: int) -> None:
        """A full listing of that time follows: rows that are older and come later do not outlive it."""
        self.replaced = max(self.replaced, time)
        self.blind = False

    def at(self, time: int, start: int) -> Epoch:
        """A copy as it was at that time, as an epoch that begins at start: what a forked child has."""
        copy = Epoch(start, self.kernel)
        if self.newest <= time:
            copy._starts, copy._live = list(self._starts), list(self._live)
        else:
            was = [f for f in (*self._live, *self.closed) if f.birth <= time < f.death]
            copy._live = sorted(f._replace(death=NEVER) for f in was)
            copy._starts = [f.start for f in copy._live]
        copy.newest = min(self.newest, time)
        return copy

    def since(self, time: int) -> Epoch:
        """What came after that time, as an epoch of its own: rows of a new image that were told before its exec."""
        copy = Epoch(time, self.kernel, UNTIL_REPORTED)
        if self.replaced > time:
            copy.replaced = self.replaced
        if self.newest > time:
            copy.early = time + EARLY_NS
            copy._live = [f for f in self._live if f.birth > time]
            copy._starts = [f.start for f in copy._live]
            copy.newest = self.newest
        return copy

    def prune(self, horizon: int) -> None:
        """Forgets fragments that ended before that time."""
        self.closed = [f for f in self.closed if f.death >= horizon][-self.MAX_CLOSED :]
        self.full = max(2 * len(self.closed), self.LEAST_CLOSED)

    @property
    def table(self) -> FragmentTable:
        """The live fragments as arrays, made anew after a change."""
        if self._table is None:
            rows = [(f.start, f.end, f.birth, f.mapping.id, f.mapping.file, f.mapping.kind) for f in self._live]
            k = self.kernel
            rows.append((k.start, k.end, 0, k.mapping.id, k.mapping.file, k.mapping.kind))
            start, end, birth, ids, file, kind = np.ascontiguousarray(np.array([(0,) * 6, *rows], "<u8").T)
            self._table = FragmentTable(
                start[1:], end, birth, ids.astype("<u4"), file.astype("<u4"), kind.astype("|u1"), int(birth.max())
            )
        return self._table

    def past(self, time: int) -> Past:
        """What ended lately, and what has come since that time."""
        young = [f for f in self._live if f.birth > time]
        rows = [(*f[:3], f.death, f.mapping.id, f.mapping.file, f.mapping.kind) for f in (*self.closed, *young)]
        start, end, birth, death, ids, file, kind = np.array(rows, "<u8").reshape(-1, 7).T
        return Past(start, end, birth, death, ids.astype("<u4"), file.astype("<u4"), kind.astype("|u1"))
