"""Epoch: one image of one process, from exec, fork or first sight on, and what was mapped where at what time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.schema import KIND_FILE, KIND_SHARED, KIND_SHIFT

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: later than every other time
NEVER = 0xFFFF_FFFF_FFFF_FFFF
#: after exec, an image's first faults arrive up to 100 ms before the rows of its first mappings
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
    """A piece of a mapping: the addresses [start, end), from the time `birth` until the time `death`.

    listed: the time of the last listing that showed it again; 0 = none has.
    """

    start: int
    end: int
    birth: int
    mapping: MappingRow
    death: int = NEVER
    listed: int = 0

    def says(self, start: int, end: int, rest: tuple[int, ...]) -> bool:
        """True when a mapping [start, end) with this offset, file, dev, ino and flags is this same piece."""
        m = self.mapping
        if self.start != start or self.end != end or rest[1:] != m[6:]:
            return False
        # memory without a file has no offset of its own: perf reports the address, maps reports 0
        return m.kind not in (KIND_FILE, KIND_SHARED) or rest[0] == m.offset + self.start - m.start


class FragmentTable(NamedTuple):
    """The live fragments as arrays, sorted by start.

    All columns but `start` have an extra row 0, which means "unknown" and covers nothing, so that
    `searchsorted(start, address, side="right")` is the index of the row to check.
    """

    start: NDArray[Any]
    end: NDArray[Any]
    birth: NDArray[Any]
    id: NDArray[Any]
    file: NDArray[Any]
    kind: NDArray[Any]
    newest: int


class Past(NamedTuple):
    """Fragments that ended recently, followed by recently mapped ones, as arrays."""

    start: NDArray[Any]
    end: NDArray[Any]
    birth: NDArray[Any]
    death: NDArray[Any]
    id: NDArray[Any]
    file: NDArray[Any]
    kind: NDArray[Any]


class Epoch:
    """The address space of one image. Live fragments never overlap; recently ended ones are kept in `closed`.

    Rows may arrive late, because two sources report one process. A late row does not change what is newer than itself;
    it adds what was mapped before.

    Args:
        start: time in ns.
        kernel: the fragment of the kernel's addresses, which every image has.
        early: faults before this time may arrive before the row of their mapping; they take the first mapping.
            0 = none may; UNTIL_REPORTED = until EARLY_NS after the first row.
    """

    MAX_CLOSED, LEAST_CLOSED = 65_536, 1024

    def __init__(self, start: int, kernel: Fragment, early: int = 0) -> None:
        self.start = start
        self.early = early
        self.replaced = 0
        self.newest = 0
        #: rows were lost, or the source asks itself: until the next listing nobody queries what is missing
        self.blind = False
        self.kernel = kernel
        self.closed: list[Fragment] = []
        #: the number of closed fragments at which it is time to prune
        self.full = self.LEAST_CLOSED
        self._starts: list[int] = []
        self._live: list[Fragment] = []
        self._table: FragmentTable | None = None

    def __len__(self) -> int:
        return len(self._live)

    @property
    def live(self) -> list[Fragment]:
        """The live fragments sorted by start, without the kernel's."""
        return self._live

    def find(self, start: int, end: int) -> slice:
        """The slice of live fragments that overlap [start, end)."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._live[first].end <= start:
            first += 1
        return slice(first, max(first, bisect_left(self._starts, end)))

    def covering(self, address: int) -> Fragment | None:
        """The live fragment at an address, None where nothing is mapped."""
        if self.kernel.start <= address < self.kernel.end:
            return self.kernel
        at = bisect_right(self._starts, address) - 1
        return self._live[at] if at >= 0 and address < self._live[at].end else None

    def known(self, start: int, end: int, rest: tuple[int, ...]) -> Fragment | None:
        """The live fragment with this very mapping (offset, file, dev, ino, flags), None when there is none."""
        at = bisect_left(self._starts, start)
        return self._live[at] if at < len(self._live) and self._live[at].says(start, end, rest) else None

    def confirm(self, fragment: Fragment, time: int) -> None:
        """A row at that time repeats this fragment: its birth becomes the time of the oldest such row.

        What a listing has shown since keeps its birth, because rows of the time between may have replaced it meanwhile.
        """
        at = bisect_left(self._starts, fragment.start)
        if time >= fragment.birth:
            if time == self.replaced:
                self._live[at] = fragment._replace(listed=time)
        elif time < self.replaced:
            self._close(fragment.start, fragment.end, time, fragment.mapping, fragment.birth)
        else:
            self._live[at] = fragment._replace(birth=time)
            self._table = None

    def put(self, time: int, start: int, end: int, mapping: MappingRow | None) -> None:
        """Maps [start, end) from that time on, or unmaps it when mapping is None."""
        if self.early == UNTIL_REPORTED:
            self.early = time + EARLY_NS
        where = self.find(start, end)
        pieces: list[Fragment] = []
        at = start
        for old in self._live[where]:
            if old.birth <= time < old.listed:  # the row is late: it replaced `old` until that listing showed it again
                self._close(old.start, old.end, old.birth, old.mapping, old.listed)
                old = old._replace(birth=old.listed, listed=0)
            if old.birth > time:  # the row is late: before `old` was mapped, this mapping was there
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
        if time < self.replaced:  # a listing made since then shows that nothing is here
            self._close(start, end, time, mapping, self.replaced)
        else:
            pieces.append(Fragment(start, end, time, mapping))

    def _close(self, start: int, end: int, birth: int, mapping: MappingRow | None, death: int) -> None:
        if mapping is not None and birth < death:
            self.closed.append(Fragment(start, end, birth, mapping, death))

    def begin_listing(self, time: int, *, empty: bool) -> None:
        """A full listing made at that time follows: older rows that arrive later do not survive it.

        empty: it has nothing yet, as its source asks for each mapping that a fault lies in. What the source did not
        find has been replaced since, so that nobody else is to ask for it. Of a process that ran before only what is
        listed was there before that time, not what it maps since.
        """
        if empty or self.early == UNTIL_REPORTED:
            self.early = 0 if empty else time
        self.replaced = max(self.replaced, time)
        self.blind = empty

    def at(self, time: int, start: int) -> Epoch:
        """A copy of the state at that time, as an epoch that begins at start: what a forked child inherits."""
        copy = Epoch(start, self.kernel)
        if self.newest <= time:
            copy._starts, copy._live = list(self._starts), list(self._live)
        else:
            # Rows that are older than a listing but came after it do not end each other: where they overlap, the newest
            # one counts. One below a newer one of the same start would leave nothing: of a program that maps one place
            # again and again there were 1,770, at 5 us each for every fork.
            was = sorted((f for f in (*self._live, *self.closed) if f.birth <= time < f.death), key=lambda f: f.birth)
            seen: list[Fragment] = []
            reach: dict[int, int] = {}
            for f in reversed(was):
                if f.end > reach.get(f.start, 0):
                    reach[f.start] = f.end
                    seen.append(f)
            for f in reversed(seen):
                copy.put(f.birth, f.start, f.end, f.mapping)
            copy.closed = []
        copy.newest = min(self.newest, time)
        return copy

    def since(self, time: int) -> Epoch:
        """What was mapped after that time, as a new epoch: rows of a new image that arrived before its exec."""
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
        """Forgets the fragments that ended before that time."""
        self.closed = [f for f in self.closed if f.death >= horizon][-self.MAX_CLOSED :]
        self.full = max(2 * len(self.closed), self.LEAST_CLOSED)

    @property
    def table(self) -> FragmentTable:
        """The live fragments as arrays, rebuilt after a change."""
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
        """Fragments that ended recently, and fragments mapped since that time."""
        young = [f for f in self._live if f.birth > time]
        rows = [(*f[:3], f.death, f.mapping.id, f.mapping.file, f.mapping.kind) for f in (*self.closed, *young)]
        start, end, birth, death, ids, file, kind = np.array(rows, "<u8").reshape(-1, 7).T
        return Past(start, end, birth, death, ids.astype("<u4"), file.astype("<u4"), kind.astype("|u1"))
