"""The level `counters`, when the kernel refuses perf events: counts of faults, and resident pages by file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Batch, SnapshotPart
from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace.schema import ADDRESS_SPACE, PAGE_FILE, RESIDENT_PAGES, SPACE_MAP, SPACE_REPLACE
from wstrace_plugins.os.linux import pagemap, procfs

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIRST_SECONDS, _SLOWEST_SECONDS = 0.02, 1.0
_MOST_CPU = 0.05  # the fraction of one CPU that snapshots may use, which spaces out those of a large process
_ENTRIES = 1 << 19


class FaultCounters:
    """Counts minor and major faults by rusage or /proc/PID/stat, and takes snapshots of resident pages from pagemap.

    Snapshots follow each other by 20 ms at first and by 1 s later. A fault has no thread, instruction or address.
    """

    def __init__(self, context: Context, source: str) -> None:
        self._context, self._source = context, source
        self._pause = _FIRST_SECONDS
        self._due = 0.0
        self._snaps = self._pages = self._missed = 0
        context.info.note("addresses, instructions and threads of faults (level counters)")

    def drain(self, timeout: float) -> Iterator[Batch]:
        """Yields a snapshot of every process when one is due; waits at most `timeout` seconds."""
        wait = self._due - time.monotonic()
        if wait > timeout:
            time.sleep(timeout)
            return
        time.sleep(max(wait, 0))
        yield from self._look()

    def stop(self) -> Iterator[Batch]:
        """Yields a last snapshot of running processes, then writes the system's own counts into the ledger."""
        yield from self._look()
        usages = [target.usage() for target in self._context.targets]
        for kind, counts in (("minor", [u.minor for u in usages]), ("major", [u.major for u in usages])):
            total = sum(count or 0 for count in counts)
            self._context.ledger.set("counted", total, kind)
            self._context.ledger.set("unaccounted", total, kind)

    @property
    def finished(self) -> bool:
        """Whether no process is left, if the trace waits for all; else False."""
        return self._context.wait_children and self._snaps > 0 and not self._pids()

    def statistics(self) -> Mapping[str, int | float]:
        """Snapshots, pages in all of them, and processes that had ended or were refused."""
        return {"snapshots": self._snaps, "pages": self._pages, "missed": self._missed}

    def _pids(self) -> list[int]:
        pids = [target.pid for target in self._context.targets if procfs.exists(target.pid)]
        if self._context.children:
            pids += procfs.descendants(*pids)
        return list(dict.fromkeys(pids))

    def _look(self) -> Iterator[Batch]:
        began = time.thread_time()
        self._snaps += 1
        for target in self._context.targets:
            target.usage()  # the target remembers its peak
        for pid in self._pids():
            try:
                yield from self._snapshot(pid)
            except (Unavailable, OSError):  # it has ended, or belongs to another user: its counts are still read
                self._missed += 1
        self._pause = min(self._pause * 2, _SLOWEST_SECONDS)
        self._due = time.monotonic() + max(self._pause, (time.thread_time() - began) / _MOST_CPU)

    def _snapshot(self, pid: int) -> Iterator[Batch]:
        now = now_ns()
        maps = procfs.read_maps(pid).coded(self._context.strings)
        n = len(maps["start"])
        if not n:
            return
        opened = pagemap.Pagemap(pid)
        try:
            runs = _present(opened, maps["start"], maps["end"])
        finally:
            opened.close()
        event = np.full(n, SPACE_MAP, "|u1")
        event[0] = SPACE_REPLACE
        maps |= {"time_ns": np.full(n, now, "<u8"), "pid": np.full(n, pid, "<u4"), "event": event}
        spaces = {column.name: maps[column.name] for column in ADDRESS_SPACE.columns}
        window = (now, now)
        yield Batch(ADDRESS_SPACE, spaces, window=window, source=self._source, strings=self._context.strings)
        pages = int(runs["pages"].sum())
        self._pages += pages
        snapshot = SnapshotPart(pid, self._snaps, time_ns=now, pages=pages)
        yield Batch(RESIDENT_PAGES, runs, window=window, source=self._source, strings=self._context.strings,
                    snapshot=snapshot)  # fmt: skip


def _present(opened: pagemap.Pagemap, starts: NDArray[Any], ends: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The runs of present pages in each mapping: columns start (u64), pages (u32), flags (u16)."""
    runs = _scanned if pagemap.has_scan() else _read
    parts = [run for start, end in zip(starts.tolist(), ends.tolist(), strict=True) for run in runs(opened, start, end)]
    start, pages, flags = (np.concatenate(c) for c in zip(*parts, strict=True)) if parts else (np.zeros(0),) * 3
    return {"start": start.astype("<u8"), "pages": pages.astype("<u4"), "flags": flags.astype("<u2")}


def _scanned(opened: pagemap.Pagemap, start: int, end: int) -> Iterator[tuple[NDArray[Any], ...]]:
    if start >= 1 << 63:  # [vsyscall] is not in pagemap
        return
    found = opened.scan(start, end, mask=pagemap.IS_PRESENT, give=pagemap.IS_FILE)
    if len(found):
        file = (found["categories"] & pagemap.IS_FILE) != 0
        yield found["start"], (found["end"] - found["start"]) // pagemap.PAGE, file * PAGE_FILE


def _read(opened: pagemap.Pagemap, start: int, end: int) -> Iterator[tuple[NDArray[Any], ...]]:
    for low in range(start, min(end, 1 << 63), _ENTRIES * pagemap.PAGE):
        entries = opened.entries([low], [min(end - low, _ENTRIES * pagemap.PAGE) // pagemap.PAGE])
        top = (entries >> np.uint64(56)).astype(np.uint8)
        state = np.where(top & pagemap.PRESENT_BIT, 1 + (top & pagemap.FILE_BIT != 0), 0)
        edges = np.flatnonzero(np.diff(state, prepend=0, append=0))
        first, after = edges[:-1], edges[1:]
        held = state[first] > 0
        first, after = first[held], after[held]
        yield low + first * pagemap.PAGE, after - first, (state[first] == 2) * PAGE_FILE
