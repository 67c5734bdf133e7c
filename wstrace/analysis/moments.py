"""Moments: the snapshots of resident pages in a trace, and which of them tell what processes held at a moment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from wstrace.batch import Batch, SnapshotPart
from wstrace.errors import UsageError
from wstrace.schema import (
    MARK,
    NOT_RESIDENT,
    PAGE_EXCLUSIVE,
    PAGE_SWAPPED,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    RESIDENT_PAGES,
)
from wstrace.table import Recorded

T = TypeVar("T")

#: The number of processes of which snapshots are held; past it, the one that was seen first is forgotten.
MAX_PROCESSES = 4096
#: The snapshots of one process of which parts may interleave: each source takes its own.
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
    times it is the one that came last. Iterating gives ((host, pid), counted) for each.

    Args:
        empty: makes an empty counter for one snapshot.
        count: adds the resident rows of one part to the counter.
        limit: the number of processes that are held; past it, the one that was seen first is forgotten.
    """

    def __init__(
        self, empty: Callable[[], T], count: Callable[[T, Batch], None], *, limit: int = MAX_PROCESSES
    ) -> None:
        self._empty, self._count, self._limit = empty, count, limit
        #: process -> (time, number) of an unfinished one -> its next part, and the counter
        self._unfinished: dict[tuple[int, int], dict[tuple[int, int], tuple[int, T]]] = {}
        self._whole: dict[tuple[int, int], tuple[int, T]] = {}  # process -> time, counter

    def add(self, batch: Batch) -> T | None:
        """Takes one part of a snapshot; returns the counter of one that is whole with it, else None."""
        if batch.schema.name != RESIDENT_PAGES.name:
            return None
        one = batch.snapshot or SnapshotPart()
        process, key = (one.host, one.pid), (one.time_ns, one.number)
        if process not in self._unfinished and len(self._unfinished) >= self._limit:
            first = next(iter(self._unfinished))
            del self._unfinished[first]
            self._whole.pop(first, None)
        unfinished = self._unfinished.setdefault(process, {})
        begun = unfinished.pop(key, None)
        expected, counted = (0, self._empty()) if one.part == 0 or begun is None else begun
        if one.part != expected:  # a part is missing, so this snapshot will never be whole
            return None
        self._count(counted, resident_rows(batch))
        if not one.last:
            unfinished[key] = one.part + 1, counted
            while len(unfinished) > _AT_ONCE:
                del unfinished[next(iter(unfinished))]
            return None
        if process not in self._whole or self._whole[process][0] <= one.time_ns:
            self._whole[process] = one.time_ns, counted
        return counted

    def __iter__(self) -> Iterator[tuple[tuple[int, int], T]]:
        for process, (_, counted) in list(self._whole.items()):
            yield process, counted


#: Moments that are the last snapshot of each process, at its own end.
LAST = ("exit", "last snapshot", "now", "end")
_NEVER = (1 << 64) - 1
#: between the first snapshot of a process that began in the trace and one of another, at most
_BETWEEN_NS = 1_000_000_000
_MOST = 1 << 63


class Snapshot(NamedTuple):
    """A whole snapshot of a process.

    process: (host, pid). number: as its source counts them. pages, shared, swapped: how many are resident, of these not
    of this process alone, and swapped out.
    """

    time_ns: int
    process: tuple[int, int]
    number: int
    pages: int
    shared: int
    swapped: int


class Moment(NamedTuple):
    """The snapshots that tell what processes held at a moment.

    until: no later ones were taken. of_peak: the most that was resident, in bytes, where the moment is the peak.
    words: the moment: `peak`, `exit` = a command's own exit, `last snapshot` = the last one of each process, `start`,
    `time`, or the text of a mark.
    """

    snapshots: list[Snapshot]
    until: int
    words: str
    of_peak: int | None

    @property
    def swapped(self) -> int:
        """Pages that are swapped out."""
        return sum(one.swapped for one in self.snapshots)


class Snapshots:
    """The whole snapshots of a trace.

    Attributes:
        taken, marks: by time. began, ends: (host, pid) -> the last time that it began a program, and that it ended.
    """

    def __init__(self, trace: Recorded) -> None:
        self.info = trace.info
        self.marks = marks_of(trace)
        self.began, self.ends = _lives(trace)
        taken: dict[tuple[int, tuple[int, int], int], Snapshot] = {}
        swapped: dict[tuple[int, tuple[int, int], int], int] = {}
        pages = LastSnapshots[list[int]](lambda: [0, 0], _add_pages, limit=_MOST)
        for batch in trace.batches(RESIDENT_PAGES.name, ("pages", "flags")):
            if (part := batch.snapshot) is None:
                continue
            key = part.time_ns, (part.host, part.pid), part.number
            before = swapped.get(key, 0) if part.part else 0
            swapped[key] = before
            if "pages" in batch and "flags" in batch:
                swapped[key] += int(batch["pages"][(batch["flags"] & PAGE_SWAPPED) != 0].sum(dtype=np.int64))
            if (counted := pages.add(batch)) is not None:
                taken[key] = Snapshot(*key, counted[0], counted[1], swapped[key])
        self.taken = sorted(taken.values(), key=lambda one: one.time_ns)

    def at(self, at: str | int, pids: Collection[int] = ()) -> Moment:
        """The snapshots of a moment.

        Args:
            at: `exit` = the last snapshot of each process, ended ones too; `peak` = the largest; `start` = the first;
                the text of a mark; or a time in ns of the records' clock. Of these, processes that have ended by then
                are none.
            pids: the processes that are wanted; () = all.

        Raises:
            UsageError: there is no such mark.
        """
        until, words = self._until(at)
        held = {one.process: one for one in self.taken if one.time_ns <= until}
        if at not in LAST:
            held = {process: one for process, one in held.items() if not self._gone(one, until)}
        found = [one for one in held.values() if not pids or one.process[1] in pids]
        if at == "exit" and not self._of_the_exit(found):
            words = "last snapshot"
        return Moment(found, until, words, self._peak() if at == "peak" else None)

    def _of_the_exit(self, held: Sequence[Snapshot]) -> bool:
        """Whether these are the pages of a command at its exit; of its children the last snapshot is left."""
        info = self.info
        return info.exit_code is not None and [one.process[1] for one in held] == [info.final_snapshot]

    def _peak(self) -> int | None:
        """The most that was resident, in bytes: of one process, as the system accounts it, or of all, as was read."""
        peak = self.info.extra.get("peak_snapshot")
        read = peak.get("largest") if isinstance(peak, dict) else None
        return max(self.info.usage.peak_resident_bytes or 0, read if isinstance(read, int) else 0) or None

    def first(self, until: int) -> list[Snapshot]:
        """The first snapshot of each process up to a time."""
        return list({one.process: one for one in reversed(self.taken) if one.time_ns <= until}.values())

    def parts(
        self, trace: Recorded, wanted: Collection[Snapshot], columns: Iterable[str]
    ) -> dict[Snapshot, list[Batch]]:
        """The resident rows of snapshots."""
        known = {(one.time_ns, one.process, one.number): one for one in wanted}
        found: dict[Snapshot, list[Batch]] = {one: [] for one in wanted}
        for batch in trace.batches(RESIDENT_PAGES.name, tuple(columns)):
            part = batch.snapshot
            if part is not None and (one := known.get((part.time_ns, (part.host, part.pid), part.number))):
                if part.part == 0:
                    found[one].clear()
                found[one].append(resident_rows(batch))
        return found

    def _until(self, at: str | int) -> tuple[int, str]:
        """The last time of a snapshot that counts, and the moment in words."""
        if isinstance(at, int):
            return at, "time"
        if at in LAST:
            return _NEVER, at
        if at in ("peak", "start"):
            times = self._largest() if at == "peak" else self._begun()
            last = bool(times) and times[0] == self.taken[-1].time_ns and self._of_the_exit(self.taken[-1:])
            return (times[0] if times else _NEVER), "exit" if last else at
        for time, text in self.marks:
            if text == at:
                after = [one.time_ns for one in self.taken if one.time_ns >= time]
                return (after[0] if after else time), at
        raise UsageError(f"there is no mark {at!r}", "write: exit, peak, start, or the text of a mark")

    def _begun(self) -> list[int]:
        """The time at which all processes that are there at first have a snapshot: one after the other; [] without."""
        seen: dict[tuple[int, int], int] = {}
        for one in self.taken:
            since = one.time_ns - max(seen.values(), default=one.time_ns)
            if one.process in seen or (since > _BETWEEN_NS and one.process in self.began):
                break
            seen[one.process] = one.time_ns
        return [max(seen.values())] if seen else []

    def _largest(self) -> list[int]:
        """The time at which the last snapshots of the processes that lived then were the largest; [] without any."""
        best = self.sizes()
        return [max(best)[1]] if best else []

    def sizes(self) -> list[tuple[int, int]]:
        """After each snapshot the resident pages of the last ones of all processes that lived then, and its time.

        What they share counts as much as it is in the one that shares most: about once, and not for each.
        """
        held: dict[tuple[int, int], Snapshot] = {}
        found: list[tuple[int, int]] = []
        for one in self.taken:
            held[one.process] = one
            held = {process: last for process, last in held.items() if not self._gone(last, one.time_ns)}
            own = sum(last.pages - last.shared for last in held.values())
            found.append((own + max(last.shared for last in held.values()) if held else 0, one.time_ns))
        return found

    def _gone(self, one: Snapshot, time: int) -> bool:
        """Whether a process has ended since a snapshot and up to a time. One taken after its end is of its exit."""
        return one.time_ns <= self.ends.get(one.process, -1) <= time


def _add_pages(pages: list[int], batch: Batch) -> None:
    """Adds to the number of pages those of a part, and to the number of shared ones."""
    if "pages" in batch:
        shared = (batch["flags"] & PAGE_EXCLUSIVE) == 0 if "flags" in batch else np.zeros(len(batch), np.bool_)
        pages[0] += int(batch["pages"].sum(dtype=np.int64))
        pages[1] += int(batch["pages"][shared].sum(dtype=np.int64))


def marks_of(trace: Recorded) -> list[tuple[int, str]]:
    """The time and text of each mark, by time."""
    return sorted(
        (time, batch.strings[text])
        for batch in trace.batches(MARK.name)
        for time, text in zip(batch["time_ns"].tolist(), batch["text"].tolist(), strict=True)
    )


def _lives(trace: Recorded) -> tuple[Mapping[tuple[int, int], int], Mapping[tuple[int, int], int]]:
    """(host, pid) -> the last time that it began a program, and the last one that it ended."""
    began: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], int] = {}
    for batch in trace.batches(PROCESS.name, ("time_ns", "pid", "tid", "event", "host")):
        if any(name not in batch for name in ("time_ns", "pid", "tid", "event")):
            continue  # of a damaged file
        for found, events in ((began, (PROCESS_FORK, PROCESS_EXEC)), (ends, (PROCESS_EXIT,))):
            rows = np.isin(batch["event"], events) & (batch["tid"] == batch["pid"])
            hosts = batch.columns.get("host", np.zeros(len(batch), np.uint32))[rows]
            pids, times = batch["pid"][rows], batch["time_ns"][rows]
            found.update(zip(zip(hosts.tolist(), pids.tolist(), strict=True), times.tolist(), strict=True))
    return began, ends
