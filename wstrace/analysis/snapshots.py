"""Which snapshot of resident pages counts: the last whole one of each process. Every view decides it here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from wstrace.batch import Batch, SnapshotPart
from wstrace.schema import NOT_RESIDENT, RESIDENT_PAGES

T = TypeVar("T")

#: The number of processes whose snapshots are held; past it, the one that was seen first is forgotten.
MAX_PROCESSES = 4096
#: The number of forgotten processes that are distinguished, so that each is counted once.
_MOST_FORGOTTEN = 1 << 16
#: The snapshots of one process whose parts may interleave: each source takes its own.
_AT_ONCE = 4


def resident_rows(batch: Batch) -> Batch:
    """The runs that count as resident: those without a flag of schema.NOT_RESIDENT (swapped out, zero page ...)."""
    if "flags" not in batch:
        return batch
    keep = (batch["flags"] & NOT_RESIDENT) == 0
    return batch if keep.all() else batch.take(keep)


class LastSnapshots(Generic[T]):
    """The last whole snapshot of each process, in the form that its user counts in. Only one thread at a time may add.

    A snapshot is whole once its parts 0, 1 ... up to the last one have come. A snapshot that is cut (the trace ended,
    or a part was lost) never counts; the whole one before it does. The last one has the greatest time, and of equal
    times it is the one that came last. Iterating gives (pid, counted) for each; equal pids of several hosts are
    several.

    Args:
        empty: makes an empty counter for one snapshot.
        count: adds the resident rows of one part to the counter.
        limit: the number of processes that are held; past it, the one that was seen first is forgotten.
    """

    def __init__(
        self, empty: Callable[[], T], count: Callable[[T, Batch], None], *, limit: int = MAX_PROCESSES
    ) -> None:
        self._empty, self._count, self._limit = empty, count, limit
        self._processes: dict[tuple[int, int], _Process[T]] = {}  # Keyed by (host, pid).
        self._forgotten: set[tuple[int, int]] = set()

    def add(self, batch: Batch) -> None:
        """Takes one part of a snapshot; batches of other streams are ignored."""
        if batch.schema.name != RESIDENT_PAGES.name:
            return
        one = batch.snapshot or SnapshotPart()
        whose = one.host, one.pid
        if whose not in self._processes and len(self._processes) >= self._limit:
            first = next(iter(self._processes))
            del self._processes[first]
            if len(self._forgotten) < _MOST_FORGOTTEN:
                self._forgotten.add(first)
        self._forgotten.discard(whose)
        process = self._processes.setdefault(whose, _Process())
        key = one.time_ns, one.number
        parts = process.unfinished.get(key)
        if one.part == 0:
            parts = process.unfinished[key] = _Parts(self._empty())
            while len(process.unfinished) > _AT_ONCE:
                del process.unfinished[next(iter(process.unfinished))]
        if parts is None or one.part != parts.next:  # A part is missing, so this snapshot will never be whole.
            process.unfinished.pop(key, None)
            return
        self._count(parts.counted, resident_rows(batch))
        parts.next += 1
        if one.last:
            del process.unfinished[key]
            if process.whole is None or process.whole[0] <= key[0]:
                process.whole = key[0], parts.counted

    def __iter__(self) -> Iterator[tuple[int, T]]:
        for _, pid, counted in self.by_host():
            yield pid, counted

    def by_host(self) -> Iterator[tuple[int, int, T]]:
        """(host, pid, counted) for each process; the host is 0 if the trace has only one."""
        for (host, pid), process in list(self._processes.items()):
            if process.whole is not None:
                yield host, pid, process.whole[1]

    def whole(self, host: int, pid: int) -> tuple[int, T] | None:
        """(time, counted) of the last whole snapshot of a process; None without one."""
        process = self._processes.get((host, pid))
        return None if process is None else process.whole

    @property
    def pids(self) -> list[int]:
        """The processes that have a whole snapshot."""
        return [pid for pid, _ in self]

    @property
    def forgotten(self) -> int:
        """The number of processes whose snapshots came and are not held any more; at most 65,536."""
        return len(self._forgotten)

    @property
    def cut(self) -> list[int]:
        """The processes with parts but no whole snapshot: what they had in memory is not known."""
        return [pid for (_, pid), process in self._processes.items() if process.whole is None]


class _Parts(Generic[T]):
    """A snapshot whose parts are arriving: the counter so far, and the number of the next part."""

    def __init__(self, counted: T) -> None:
        self.counted, self.next = counted, 0


class _Process(Generic[T]):
    """A process: its unfinished snapshots by (time, number), and the last whole one as (time, counted)."""

    def __init__(self) -> None:
        self.unfinished: dict[tuple[int, int], _Parts[T]] = {}
        self.whole: tuple[int, T] | None = None
