"""The address spaces of processes over time, built from `process` and `address_space` rows, in bounded memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace import schema
from wstrace.analysis.tally import distinct
from wstrace.batch import Dictionary
from wstrace_plugins.os.intervals import Pieces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

#: later than every other time
NEVER = 0xFFFF_FFFF_FFFF_FFFF
_ANON = (0, 0, 0, 0, schema.MAP_READ | schema.MAP_WRITE | schema.KIND_ANON << schema.KIND_SHIFT)
#: kernel addresses of 64-bit Linux and Windows: the upper half
KERNEL_START = 1 << 63
#: after exec, an image's first faults arrive up to 100 ms before the rows of its first mappings
EARLY_NS = 100_000_000
UNTIL_REPORTED = -1
#: up to so many addresses of one process, a search each costs less than arrays of its mappings
_FEW = 8
#: and where its log has no more changes than this
_SHORT = 256
#: limit on (change, address range) pairs, so that a target that maps in many steps cannot make the tracer grow
_MOST_LAYERS = 1 << 22
_NAMES = {
    schema.KIND_ANON: "[anon]",
    schema.KIND_HEAP: "[heap]",
    schema.KIND_STACK: "[stack]",
    schema.KIND_VDSO: "[vdso]",
    schema.KIND_SHARED: "[shared memory]",
}


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
        return self.flags >> schema.KIND_SHIFT & 15

    def says(self, start: int, rest: tuple[int, ...]) -> bool:
        """True when a mapping from `start` on with this offset, file, dev, ino and flags is a piece of this one."""
        if rest[1:] != self[6:]:
            return False
        # memory without a file has no offset of its own: perf reports the address, maps reports 0
        return self.kind not in (schema.KIND_FILE, schema.KIND_SHARED) or rest[0] == self.offset + start - self.start


#: the time of a change, the addresses [start, end), and what lies there from then on
Change = tuple[int, int, int, MappingRow | None]
_time = itemgetter(0)
Layout = Pieces[tuple[MappingRow, int]]  # mappings, and the time since which each is known to lie there


class Space:
    """The address space of one process over time, over all images that it executed.

    Every change stands in the log at its own time. Rows may arrive late, because two sources report one process: a late
    one is put where it belongs, and what is newer lies above it. An image begins with a change that clears the
    addresses up to NEVER; other changes end below the kernel.
    kernel: the mapping of the kernel's addresses, which every process has. ended: when it ended. reported: a row has
    named the process (records alone do not count). blind: rows were lost, or the source asks itself: until the next
    listing nobody queries what is missing. listing_due: the earliest time, in ns, at which its mappings may be listed
    again.
    """

    MOST, LEAST = 16_384, 1024

    def __init__(self, kernel: MappingRow) -> None:
        self._kernel = kernel
        self.ended, self.listing_due = NEVER, 0
        self.reported = self.blind = False
        self.log: list[Change] = []
        #: the length of the log at which it is time to forget
        self.full = self.LEAST
        #: when each image began, and until when its faults may arrive before the row of their mapping
        self.images: list[tuple[int, int]] = [(0, UNTIL_REPORTED)]
        self._base, self._live, self._listed = Layout(), Layout(), Layout()  # before the log, after it, at a listing
        self._listed_ns = 0
        self._stale = False  # the log has late changes that `_live` has not
        self._arrays: tuple[NDArray[Any], ...] = ()
        self._logged: tuple[NDArray[Any], ...] = ()

    def put(self, time: int, start: int, end: int, mapping: MappingRow | None, since: int | None = None) -> None:
        """Maps [start, end) from that time on, or unmaps it when mapping is None. since: when it was known before."""
        at = self._image(time)
        if self.images[at][1] == UNTIL_REPORTED:
            self.images[at] = self.images[at][0], time + EARLY_NS
        change = time, start, min(end, KERNEL_START), mapping
        if self._in_order(time):
            self.log.append(change)
            if not self._stale:
                if self._live is self._base:
                    self._live = self._base.copy()
                self._live.put(*change[1:3], mapping and (mapping, time if since is None else since))
        else:
            insort(self.log, change, key=_time)
            self._stale |= time >= self._listed_ns
            self._logged = ()
        self._arrays = ()

    def known(self, time: int, start: int, end: int, rest: tuple[int, ...]) -> tuple[MappingRow, int] | None:
        """What lies there with this very mapping (offset, file, dev, ino, flags), and since when; None = another."""
        pieces = self._listed if time == self._listed_ns else self._live
        at = bisect_left(pieces.starts, start)
        if at == len(pieces) or (pieces.starts[at], pieces.ends[at]) != (start, end):
            return None
        return pieces.values[at] if pieces.values[at][0].says(start, rest) else None

    def relist(self, time: int, *, empty: bool) -> None:
        """A full listing made at that time follows.

        empty: it has nothing, as its source does not know what was mapped before. Of a process that ran before only
        what is listed was there before that time, not what it maps since.
        """
        at = self._image(time)
        if empty or self.images[at][1] == UNTIL_REPORTED:
            self.images[at] = self.images[at][0], 0 if empty else time
        self.blind = empty
        self._clear(time, KERNEL_START, self.now())

    def begin(self, time: int, inherited: Layout | None = None) -> None:
        """Begins an image: with nothing mapped after execve(), with what is inherited after a fork."""
        early = UNTIL_REPORTED if self._in_order(time) else time + EARLY_NS
        insort(self.images, (time, early if inherited is None else 0))
        self._clear(time, NEVER, Layout())
        if inherited is not None and len(self.log) == 1:
            self._base = self._live = inherited.copy()
            self.log = []
        elif inherited is not None:  # the pid is used again
            at = bisect_right(self.log, time, key=_time)
            self.log[at:at] = [(time, start, end, mapping) for start, end, (mapping, _) in inherited.rows()]
            self._stale = True

    def _clear(self, time: int, end: int, listed: Layout) -> None:
        if self._in_order(time):
            self.log.append((time, 0, end, None))
            self._live, self._listed, self._listed_ns, self._stale = Layout(), listed, time, False
        else:
            insort(self.log, (time, 0, end, None), key=_time)
            self._stale = True
        self._arrays = self._logged = ()

    def now(self) -> Layout:
        """What is mapped after all changes."""
        if self._stale:
            self._live, self._stale = self._laid(len(self.log)), False
        return self._live

    def _laid(self, n: int) -> Layout:
        """What the first changes of the log add up to."""
        pieces = self._base.copy()
        for time, start, end, mapping in self.log[:n]:
            pieces.put(start, end, mapping and (mapping, time))
        return pieces

    def at(self, time: int) -> Layout:
        """What was mapped at that time."""
        return self.now() if self._in_order(time) else self._laid(bisect_right(self.log, time, key=_time))

    def covered(self, addresses: NDArray[Any]) -> NDArray[np.bool_]:
        """Mask of the addresses at which something is mapped now."""
        start, end, _, _ = self._table()
        return addresses < end[np.searchsorted(start, addresses, "right")]

    def forget(self, horizon: int) -> None:
        """Forgets how it came, until that time, to what was mapped then."""
        if len(self.log) > self.MOST:
            horizon = max(horizon, self.log[-self.MOST][0])
        past = bisect_left(self.log, horizon, key=_time)
        self._base, self._logged = self._laid(past), ()
        del self.log[:past]
        del self.images[: self._image(horizon)]
        self.full = max(2 * len(self.log), self.LEAST)

    def find(self, addresses: NDArray[Any], times: NDArray[Any]) -> NDArray[Any]:
        """What lay at each address (u64, shape (n,)) at its time: id, file and kind, u4, shape (3, n); 0 = nothing."""
        if not len(addresses):
            return np.zeros((3, 0), "<u4")
        if len(addresses) <= _FEW and (few := self._find_few(addresses.tolist(), times.tolist())):
            return np.array(few, "<u4").T
        start, end, since, what = self._table()
        # Most faults of a batch lie in one mapping, and most of the instructions in one file: to compare with the ends
        # of the one around the middle address takes a tenth of a search.
        middle = int(np.searchsorted(start, addresses[len(addresses) // 2], "right"))
        low = start[middle - 1] if middle else end[0]
        others = np.flatnonzero(addresses - low >= end[middle] - low)
        if not len(others) and since[middle] <= times.min(initial=since[middle]):
            return np.repeat(what[:, middle : middle + 1], len(addresses), axis=1)
        at = np.full(len(addresses), middle)
        at[others] = np.searchsorted(start, addresses[others], "right")
        found: NDArray[Any] = what.take(at, axis=1)
        again = np.flatnonzero((addresses >= end.take(at)) | (since.take(at) > times))
        if len(again):
            if not self._logged:
                base = [(since, start, end, mapping) for start, end, (mapping, since) in self._base.rows()]
                self._logged = _columns(sorted(base, key=_time))
            if new := self.log[len(self._logged[0]) - len(self._base) :]:
                both = zip(self._logged, _columns(new), strict=True)
                self._logged = tuple(np.concatenate(columns, axis=-1) for columns in both)
            found[:, again] = _earlier(self._logged, self.images, addresses[again], times[again])
        return found

    def _find_few(self, addresses: list[int], times: list[int]) -> list[tuple[int, int, int]]:
        """The same of few addresses, for which a search each costs less than arrays; nothing where the log is long.

        Of a node, most processes of a batch have one fault, and those that end at once have it in their past.
        """
        live = self.now()
        found = []
        for address, time in zip(addresses, times, strict=True):
            at = bisect_right(live.starts, address) - 1
            mapping: MappingRow | None
            mapping, since = live.values[at] if at >= 0 and address < live.ends[at] else (self._kernel, 0)
            if since > time or (mapping is self._kernel and not KERNEL_START <= address < NEVER):
                if len(self.log) > _SHORT:
                    return []
                mapping = self._before(address, time)
            found.append((mapping.id, mapping.file, mapping.kind) if mapping else (0, 0, 0))
        return found

    def _before(self, address: int, time: int) -> MappingRow | None:
        """What lay at the address at that time, as `_earlier` has it."""
        base = self._base.rows(self._base.between(address, address + 1))
        changes: list[Change] = [(since, start, end, mapping) for start, end, (mapping, since) in base]
        changes += [change for change in self.log if change[1] <= address < change[2]]
        changes.sort(key=_time)
        at = bisect_right(changes, time, key=_time)
        if at and changes[at - 1][2] <= KERNEL_START:
            return changes[at - 1][3]
        early = self.images[self._image(time)][1]
        if time >= early or at == len(changes) or changes[at][0] > early:
            return None
        return changes[bisect_right(changes, changes[at][0], key=_time) - 1][3]

    def _table(self) -> tuple[NDArray[Any], ...]:
        """What is mapped now: start, end, since, and id, file and kind.

        All but start have an extra row 0, which covers nothing, so that `searchsorted(start, address, "right")` is the
        index of the row to check.
        """
        if not self._arrays:
            live = [(*row[:2], row[2][1], row[2][0]) for row in self.now().rows()]
            start, *rest = _columns([(0, 0, 0, None), *live, (KERNEL_START, NEVER, 0, self._kernel)])
            self._arrays = start[1:], *rest
        return self._arrays

    @property
    def size(self) -> int:
        """The mappings and changes that it holds."""
        return len(self._base) + len(self._live) * (self._live is not self._base) + len(self.log)

    def _in_order(self, time: int) -> bool:
        return not self.log or time >= self.log[-1][0]

    def _image(self, time: int) -> int:
        """The number of the image at that time; 0 for an earlier time."""
        return max(0, bisect_right(self.images, time, key=_time) - 1)


def _columns(rows: Iterable[tuple[int, int, int, MappingRow | None]]) -> tuple[NDArray[Any], ...]:
    """Three columns, u64, and id, file and kind of the mappings, u4, shape (3, n)."""
    values = [(*row[:3], *((row[3].id, row[3].file, row[3].kind) if row[3] else (0, 0, 0))) for row in rows]
    columns = np.ascontiguousarray(np.array(values, "<u8").reshape(-1, 6).T)
    return *columns[:3], columns[3:].astype("<u4")


def _earlier(
    log: tuple[NDArray[Any], ...], images: list[tuple[int, int]], addresses: NDArray[Any], times: NDArray[Any]
) -> NDArray[Any]:
    """What the log says of each address at its time: id, file and kind, u4, shape (3, n).

    A row where nothing has lain yet since its image began takes the first mapping, if that came early enough.
    """
    changed, start, end, what = log
    found = np.zeros((3, len(addresses)), "<u4")
    if not len(changed):
        return found
    # between two neighbouring ends of changes the same ones lie; places are those of them that are wanted
    cuts = distinct(np.concatenate((start, end)))
    between = np.searchsorted(cuts, addresses, side="right")
    wanted = np.zeros(len(cuts) + 1, "i8")
    wanted[between] = 1
    places = np.cumsum(wanted)
    place = places[between] - 1
    first, last = places[np.searchsorted(cuts, start)], places[np.searchsorted(cuts, end)]
    layers = last - first
    layers[np.cumsum(layers[::-1])[::-1] > _MOST_LAYERS] = 0  # the newest are kept
    if not layers.any():
        return found
    number = np.repeat(np.arange(len(layers)), layers)
    at = np.arange(len(number)) - np.repeat(np.cumsum(layers) - layers, layers) + first[number]
    moments = distinct(changed)
    key = at * (len(moments) + 1) + (np.searchsorted(moments, changed) + 1)[number]
    order = np.argsort(key, kind="stable")
    key, number, at = key[order], number[order], at[order]
    # the newest change of the place by then
    upto = place * (len(moments) + 1) + np.searchsorted(moments, times, side="right")
    newest = np.searchsorted(key, upto, side="right") - 1
    there = (newest >= 0) & (at[newest] == place)
    found[:, there] = what[:, number[newest[there]]]
    starts, earlies = np.array([(start, max(early, 0)) for start, early in images], "<u8").T
    early = earlies[np.maximum(np.searchsorted(starts, times, side="right"), 1) - 1]
    following = np.minimum(newest + 1, len(key) - 1)
    late = (~there | (end[number[newest]] > KERNEL_START)) & (times < early) & (newest + 1 < len(key))
    late &= (at[following] == place) & (changed[number[following]] <= early)  # what is mapped later was not there
    top = np.searchsorted(key, key[following[late]], side="right") - 1  # of those of the same time
    found[:, late] = what[:, number[top]]
    return found


class AddressSpaces:
    """The address spaces of all processes.

    What has ended is kept for KEEP_NS after the newest record, so that late records still resolve; nothing else is
    retained.
    """

    KEEP_NS = 2_000_000_000
    MAX_PROCESSES = 8192
    #: of these, those of processes that have ended: 32 MB
    MAX_ENDED = 1 << 16
    #: mappings and changes of all processes: 130 MB where no two are shared. Past it the longest unused processes are
    #: forgotten; those that live are listed again when they are met.
    MAX_HELD = 1 << 18
    _COUNTED_EVERY = 1 << 13  # new mappings between two counts

    def __init__(self, strings: Dictionary) -> None:
        self._names = {kind: strings.code(name) for kind, name in _NAMES.items()}
        self._processes: OrderedDict[int, Space] = OrderedDict()
        self._ended: deque[tuple[int, int, int]] = deque()  # when, which process, and its size
        self._ended_size = 0
        self._horizon = 0
        self.mappings = self._counted_at = 0
        #: processes dropped for lack of room: a process that is met again may be one of them
        self.forgotten = 0
        self._fresh: list[MappingRow] = []
        rest = (0, strings.code("[kernel]"), 0, 0, schema.KIND_KERNEL << schema.KIND_SHIFT)
        self._empty = partial(Space, self._new(0, 0, KERNEL_START, NEVER, rest))

    def process(self, pid: int) -> Space:
        """The process with that pid, marked as recently used; an unknown process starts with nothing mapped."""
        space = self._processes.get(pid)
        if space is None:
            space = self._processes[pid] = self._empty()
            self._make_room(self.MAX_PROCESSES)  # more than these, where the records of their exits were lost
        else:
            self._processes.move_to_end(pid)
        return space

    def _make_room(self, most: int) -> None:
        """Forgets the longest unused processes until at most that many are left."""
        while len(self._processes) > most:
            self._processes.popitem(last=False)
            self.forgotten += 1

    def apply_process(self, event: int, time: int, pid: int, ppid: int) -> None:
        """Applies a row about a process, not about a thread. Only fork, exec and exit change an address space."""
        if event == schema.PROCESS_EXIT:
            if pid in self._processes:
                space = self._processes[pid]
                space.ended = time
                self._ended.append((time, pid, space.size))
                self._ended_size += space.size
            return
        space = self.process(pid)
        if event == schema.PROCESS_FORK:
            parent = self._processes.get(ppid)
            space.begin(time, Layout() if parent is None else parent.at(time))
            space.listing_due = 0
        elif event == schema.PROCESS_EXEC:
            space.begin(time)
        space.reported, space.ended = True, NEVER

    def apply(self, event: int, time: int, pid: int, start: int, end: int, rest: tuple[int, ...]) -> None:
        """Applies an address_space row. rest is offset, file, dev, ino, flags."""
        space = self.process(pid)
        space.reported = True
        if event == schema.SPACE_UNMAP:
            space.put(time, start, end, None)
            space.blind |= start == 0 and end >= KERNEL_START  # the source lost rows; it will send a listing
            return
        if event == schema.SPACE_MOVE:
            self._move(space, time, pid, start, end, rest)
            return
        if event == schema.SPACE_REPLACE:
            space.relist(time, empty=not end)
        self.map(space, time, pid, start, end, rest)

    def _move(self, space: Space, time: int, pid: int, start: int, end: int, rest: tuple[int, ...]) -> None:
        """Maps at [start, end) what lies at its old place; the last mapping may have grown.

        Where nothing is known it is memory without a file.
        """
        source, _, returned, length, stays = rest
        layout = space.at(time)
        pieces = layout.rows(layout.between(source, source + length))
        if start != source and not stays:
            space.put(time, source, source + length, None)
        at, by = start, start - source
        for low, high, (mapping, _) in pieces:
            self.map(space, returned, pid, at, max(low, source) + by, _ANON)
            until = end if high >= source + length else high + by
            has_file = mapping.kind in (schema.KIND_FILE, schema.KIND_SHARED)
            offset = mapping.offset + (max(low, source) - mapping.start if has_file else 0)
            self.map(space, returned, pid, max(low, source) + by, until, (offset, *mapping[6:]))
            at = until
        self.map(space, returned, pid, at, end, _ANON)

    def map(self, space: Space, time: int, pid: int, start: int, end: int, rest: tuple[int, ...]) -> None:
        """Maps a range from that time on. A mapping that is known keeps its id; a new one gets the next id."""
        if start >= end or start >= KERNEL_START:
            return
        offset, file, *others = rest
        rest = (offset, file or self._names.get(rest[-1] >> schema.KIND_SHIFT & 15, 0), *others)
        mapping, since = space.known(time, start, end, rest) or (self._new(time, pid, start, end, rest), time)
        space.put(time, start, end, mapping, min(since, time))
        if len(space.log) > space.full:
            space.forget(self._horizon)

    def _new(self, time: int, pid: int, start: int, end: int, rest: tuple[int, ...]) -> MappingRow:
        self.mappings += 1
        self._fresh.append(MappingRow(self.mappings, time, pid, start, end, *rest))
        return self._fresh[-1]

    def taken(self) -> list[MappingRow]:
        """The mappings that were added since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def awaits(self, time: int) -> None:
        """Records from that time on are still to come: what ended since then is kept for them."""
        self._horizon = min(self._horizon, time)

    def passed(self, time: int) -> None:
        """Records up to that time have arrived: forgets what ended more than KEEP_NS earlier."""
        self._horizon = max(self._horizon, time - self.KEEP_NS)
        if self.mappings >= self._counted_at:
            self._counted_at = self.mappings + self._COUNTED_EVERY
            held, recent = 0, 0
            for one in reversed(self._processes.values()):
                held, recent = held + one.size, recent + (held + one.size <= self.MAX_HELD)
            self._make_room(max(recent, 1))
        while self._ended and (self._ended[0][0] < self._horizon or self._ended_size > self.MAX_ENDED):
            ended, pid, size = self._ended.popleft()
            self._ended_size -= size
            space = self._processes.get(pid)
            if space is not None and space.ended <= ended:
                del self._processes[pid]
