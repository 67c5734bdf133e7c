"""AddressSpaces: the address spaces of all processes over time, built from `process` and `address_space` rows."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque

from wstrace.batch import Dictionary
from wstrace.schema import (
    KIND_ANON,
    KIND_HEAP,
    KIND_KERNEL,
    KIND_SHARED,
    KIND_SHIFT,
    KIND_STACK,
    KIND_VDSO,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    SPACE_REPLACE,
    SPACE_UNMAP,
)
from wstrace_plugins.mapped_files.epoch import NEVER, UNTIL_REPORTED, Epoch, Fragment, MappingRow

#: kernel addresses of 64-bit Linux and Windows: the upper half
KERNEL_START, KERNEL_END = 1 << 63, NEVER

_NAMES = {
    KIND_ANON: "[anon]",
    KIND_HEAP: "[heap]",
    KIND_STACK: "[stack]",
    KIND_VDSO: "[vdso]",
    KIND_SHARED: "[shared memory]",
}


class ProcessHistory:
    """One pid: its epochs in order of time.

    reported: a row has named the process (records alone do not count). listing_due: the earliest time, in ns, at which
    its mappings may be listed again (see Listings).
    """

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self.ended = NEVER
        self.reported = False
        self.listing_due = 0

    def add(self, epoch: Epoch) -> None:
        """Inserts an epoch in order of time."""
        self.epochs.insert(bisect_right([e.start for e in self.epochs], epoch.start), epoch)

    def current(self, time: int) -> Epoch:
        """The epoch at that time; the first epoch for an earlier time."""
        if time >= self.epochs[-1].start:
            return self.epochs[-1]
        return self.epochs[max(0, bisect_right([e.start for e in self.epochs], time) - 1)]


class AddressSpaces:
    """The address spaces of all processes, in bounded memory.

    Ended mappings are kept for keep_ns after the newest record so that late records still resolve; nothing else is
    retained.

    Args:
        strings: the session's names.
        keep_ns: how late, in ns, a record may arrive and still resolve.
    """

    MAX_PROCESSES = 16_384
    MAX_ENDED = 2048

    def __init__(self, strings: Dictionary, keep_ns: int = 2_000_000_000) -> None:
        self._keep_ns = keep_ns
        self._names = {kind: strings.code(name) for kind, name in _NAMES.items()}
        self._processes: OrderedDict[int, ProcessHistory] = OrderedDict()
        self._ended: deque[tuple[int, int]] = deque()
        self._listing: tuple[int, int, int] | None = None  # pid, time, end of its last row
        self._horizon = 0
        self.mappings = 0
        #: processes dropped for lack of room: a process that is met again may be one of them
        self.forgotten = 0
        self.fresh: list[MappingRow] = []
        kernel = MappingRow(
            0, 0, 0, KERNEL_START, KERNEL_END, 0, strings.code("[kernel]"), 0, 0, KIND_KERNEL << KIND_SHIFT
        )
        self.kernel = Fragment(KERNEL_START, KERNEL_END, 0, self._new(kernel))

    def __len__(self) -> int:
        return len(self._processes)

    def process(self, pid: int) -> ProcessHistory:
        """The process with that pid; an unknown process starts with nothing mapped."""
        process = self._processes.get(pid)
        if process is None:
            process = self._processes[pid] = ProcessHistory()
            process.add(Epoch(0, self.kernel, UNTIL_REPORTED))
            self._make_room()
        return process

    def _make_room(self) -> None:
        while len(self._processes) > self.MAX_PROCESSES:  # the records of their exits were lost
            self._processes.popitem(last=False)
            self.forgotten += 1

    def used(self, pid: int) -> ProcessHistory:
        """The process with that pid, marked as recently used."""
        process = self.process(pid)
        self._processes.move_to_end(pid)
        return process

    # -- process rows ----------------------------------------------------------------------------------------------

    def apply_process(self, event: int, time: int, pid: int, ppid: int) -> None:
        """Applies a row about a process, not about a thread. Only fork, exec and exit change an address space."""
        if event == PROCESS_FORK:
            self._fork(time, pid, ppid)
        elif event == PROCESS_EXEC:
            process = self.process(pid)
            process.add(process.current(time).since(time))
            self._ended.append((time, pid))
        elif event == PROCESS_EXIT and pid in self._processes:
            self._processes[pid].ended = time
            self._ended.append((time, pid))
        if event != PROCESS_EXIT:
            process = self.process(pid)
            process.reported, process.ended = True, NEVER

    def _fork(self, time: int, pid: int, ppid: int) -> None:
        parent = self._processes.get(ppid)
        epoch = parent.current(time).at(time, time) if parent is not None else Epoch(time, self.kernel)
        child = self._processes.get(pid)
        if child is None:
            child = self._processes[pid] = ProcessHistory()
        else:  # the pid is reused
            child.listing_due = 0
            self._ended.append((time, pid))
        child.add(epoch)
        self._make_room()

    # -- address_space rows ----------------------------------------------------------------------------------------

    def apply(self, event: int, time: int, pid: int, start: int, end: int, rest: tuple[int, ...]) -> None:
        """Applies an address_space row. rest is offset, file, dev, ino, flags."""
        if self._listing is not None and self._listing[:2] != (pid, time):
            self.end_listing()
        process = self.process(pid)
        process.reported = True
        epoch = process.current(time)
        if event == SPACE_UNMAP:
            self._put(epoch, time, start, end, None)
            epoch.blind |= start == 0 and end >= KERNEL_START  # the source lost rows; it will send a listing
            return
        if event == SPACE_REPLACE and self._listing is None:
            epoch.begin_listing(time, empty=not end)
            self._listing = (pid, time, 0)
        if self._listing is not None:
            _, _, at = self._listing
            if start > at:
                self._put(epoch, time, at, start, None)
            self._listing = (pid, time, max(at, end))
        self.map(epoch, time, pid, start, end, rest)

    def end_listing(self) -> None:
        """Ends a listing: above its last row nothing is mapped."""
        if self._listing is not None:
            pid, time, at = self._listing
            self._listing = None
            self._put(self.process(pid).current(time), time, at, KERNEL_START, None)

    def map(self, epoch: Epoch, time: int, pid: int, start: int, end: int, rest: tuple[int, ...]) -> None:
        """Maps a range from that time on. A mapping that is known keeps its id; a new one gets the next id."""
        if start >= end or start >= KERNEL_START:
            return
        offset, file, dev, ino, flags = rest
        file = file or self._names.get(flags >> KIND_SHIFT & 15, 0)
        rest = (offset, file, dev, ino, flags)
        known = epoch.known(start, end, rest)
        if known is not None:
            epoch.confirm(known, time)
            return
        self._put(epoch, time, start, end, self._new(MappingRow(0, time, pid, start, end, *rest)))

    def _put(self, epoch: Epoch, time: int, start: int, end: int, mapping: MappingRow | None) -> None:
        epoch.put(time, start, end, mapping)
        if len(epoch.closed) > epoch.full:
            epoch.prune(self._horizon)

    def _new(self, mapping: MappingRow) -> MappingRow:
        self.mappings += 1
        mapping = mapping._replace(id=self.mappings)
        self.fresh.append(mapping)
        return mapping

    def taken(self) -> list[MappingRow]:
        """The mappings that were added since the last call."""
        fresh, self.fresh = self.fresh, []
        return fresh

    # -- forgetting ------------------------------------------------------------------------------------------------

    def told(self, time: int) -> None:
        """Records from that time on are still to come: what ended since then is kept for them."""
        self._horizon = min(self._horizon, time)

    def passed(self, time: int) -> None:
        """Records up to that time have arrived: forgets what ended more than keep_ns earlier."""
        self._horizon = max(self._horizon, time - self._keep_ns)
        while self._ended and (self._ended[0][0] < self._horizon or len(self._ended) > self.MAX_ENDED):
            ended, pid = self._ended.popleft()
            process = self._processes.get(pid)
            if process is None:
                continue
            if process.ended <= ended:
                del self._processes[pid]
                continue
            after = bisect_right([epoch.start for epoch in process.epochs], ended)
            del process.epochs[: max(0, after - 1)]

    def statistics(self) -> dict[str, int]:
        """Processes, their epochs, live fragments, fragments that ended recently, and mappings emitted."""
        epochs = [epoch for process in list(self._processes.values()) for epoch in process.epochs]
        return {
            "mappings": self.mappings,
            "processes": len(self._processes),
            "epochs": len(epochs),
            "live": sum(len(epoch) for epoch in epochs),
            "ended": sum(len(epoch.closed) for epoch in epochs),
        }
