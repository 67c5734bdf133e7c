"""The source `page_faults` on Windows: the working-set watch of every traced process.

Windows puts no time on a record: a batch has a window instead, from the drain before to this one. It keeps 1,024
records a process, so the drain comes the more often the fuller it finds the buffer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context, Level, Source
from wstrace.schema import (
    ADDRESS_SPACE,
    DTYPES,
    FAULT_MAJOR,
    FAULT_OBSERVER,
    FAULT_PC_KERNEL,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXIT,
    PROCESS_FORK,
    PROCESS_SEEN,
    Schema,
)
from wstrace_os.windows import api as winapi
from wstrace_os.windows import process as processes
from wstrace_os.windows.job import Job
from wstrace_os.windows.memory import AddressSpace, Memory
from wstrace_page_faults.windows.records import Changes
from wstrace_page_faults.windows.watch import KERNEL_RECORDS, Watch

_FASTEST_SECONDS = 0.001
_FILL = KERNEL_RECORDS // 4  # records that a drain should find; well under what is lost
# how often new children are looked for, by a listing of all processes: where no job tells of them, and beside one
_FAMILY_SECONDS, _STRAYS_SECONDS = 0.05, 0.5


class PageFaults(Source):
    """Page faults with address, instruction and thread, hard or soft, by GetWsChangesEx.

    Args:
        poll_ms: the longest time between two looks, in ms; it falls to 1 ms as the kernel's buffer fills.
        kernel: show faults whose instruction is in the kernel.
        children: follow the processes that the target starts.
    """

    name: ClassVar[str] = "page_faults"
    streams: ClassVar[tuple[Schema, ...]] = (PAGE_FAULT, PROCESS, ADDRESS_SPACE)
    default: ClassVar[bool] = True
    needs_target: ClassVar[bool] = True

    #: the system's functions, or a stand-in with the same ones
    api: Any = winapi
    #: how often it is asked whether a process has ended
    exits_seconds = 0.02

    def __init__(self, *, poll_ms: float = 10.0, kernel: bool = True, children: bool = True) -> None:
        self._slowest = max(poll_ms / 1000, _FASTEST_SECONDS)
        self._pause = _FASTEST_SECONDS
        self._kernel, self._children = kernel, children
        self._processes: dict[int, _Process] = {}
        self._ended: set[int] = set()
        self._family_looked = self._exits_looked = 0  # when, in ns
        self._jobs: list[Job] = []
        self._drains = self._hidden = 0
        self._started = self._stopped = False

    @classmethod
    def probe(cls) -> Level:
        """Tried on the calling process, whose watch stays on until it ends."""
        import os

        try:
            Watch(cls.api, os.getpid()).close()
        except Unavailable as no:
            return Level("none", no.why, no.remedy)
        return Level("full")

    def start(self, context: Context) -> None:
        """Watches every target; a launched one has not run yet.

        Raises:
            Unavailable: access refused, a 32-bit Python for a 64-bit target, a stub (Wine), or traced already.
        """
        self._context = context
        try:
            for target in context.targets:
                self._add(target.pid, launched=target.launched)
                if target.launched and self._children and context.children:
                    with suppress(Unavailable):  # then its children are looked for as an attached target's are
                        self._jobs.append(Job(self.api, target.pid))
        except BaseException:
            for process in self._processes.values():
                process.watch.close()
            self._processes.clear()
            self._close_jobs()
            raise
        self._oldest = min((processes.created(self.api, target.pid) for target in context.targets), default=0)
        self._started = True
        self._window = now_ns()
        context.info.level = context.info.level or Level("full")
        if any(not target.launched for target in context.targets):
            context.info.note("the watch of an attached process stays on until it exits: Windows cannot turn it off")

    def _add(self, pid: int, *, launched: bool, parent: int = 0) -> _Process:
        process = _Process(self.api, pid, self._context, parent)
        self._processes[pid] = process
        if parent:
            self._context.ledger.add("before_watch", process.watch.before, "page_fault")
        elif not launched:
            self._context.ledger.add("before_start", process.watch.discard(), "page_fault")
        if process.watch.shared:
            self._context.info.note(
                f"pid {pid} was watched before: if another tracer reads too, each gets a part of the faults"
            )
        return process

    def drain(self, timeout: float) -> Iterable[Batch]:
        """Sleeps until the next look is due, at most timeout seconds, then empties every process's buffer."""
        time.sleep(min(self._pause, max(timeout, 0)))  # sleep's timer is finer than a wait on an event
        return self._drain()

    def _drain(self) -> Iterator[Batch]:
        self._drains += 1
        window = (self._window, now_ns())
        fullest = 0
        if self._drains == 1:
            for process in self._processes.values():
                yield from self._introduce(process, window)
        if self._children and self._context.children and self._family_is_due(window[1]):
            self._family_looked = window[1]
            yield from self._follow(window)
        look = self._stopped or window[1] - self._exits_looked >= self.exits_seconds * 1e9
        self._exits_looked = window[1] if look else self._exits_looked
        for process in list(self._processes.values()):
            # asked before the drain: what it recorded until its end is in that drain
            last = look and process.watch.exited()
            changes = process.watch.drain()
            if found := len(changes) + changes.lost:
                fullest = max(fullest, found)
                yield from self._batches(process, changes, window)
            if last:
                yield self._end(process, window[1])
        self._window = window[1]
        self._adapt(fullest)

    def _adapt(self, fullest: int) -> None:
        """The next pause: such that a quarter of the buffer fills, as fast as it filled this time."""
        if fullest > _FILL:
            self._pause = max(_FASTEST_SECONDS, self._pause * _FILL / fullest / 2)
        elif fullest < _FILL // 2:
            self._pause = min(self._slowest, self._pause * 1.5)

    def _batches(self, process: _Process, changes: Changes, window: tuple[int, int]) -> Iterator[Batch]:
        columns = changes.columns
        process.major += int(np.count_nonzero(columns["flags"] & FAULT_MAJOR))
        rows = process.space.discover(np.concatenate((columns["va"], columns["pc"])), window[0])
        if len(rows["start"]):
            yield self._batch(ADDRESS_SPACE, rows, window)
        if "tid" in columns:
            self._mark_own(columns)
        if not self._kernel:
            columns = self._without_kernel(columns)
        count = len(columns["va"])
        pid = np.full(count, process.pid, "<u4")
        self._context.ledger.add("lost_kernel", changes.lost, "page_fault")
        yield self._batch(PAGE_FAULT, {"pid": pid, **columns}, window, changes.lost)

    def _introduce(self, process: _Process, window: tuple[int, int]) -> Iterator[Batch]:
        """A process's first row, and its memory as it is now."""
        event = PROCESS_FORK if process.parent else PROCESS_SEEN
        yield self._batch(PROCESS, process.row(window[0], event), window)
        yield self._batch(ADDRESS_SPACE, process.space.listing(window[0]), window)

    def _mark_own(self, columns: dict[str, NDArray[Any]]) -> None:
        """Records that wstrace's own threads made (reading the target's memory faults pages into its watch)."""
        own = self._context.own_threads()
        if own:
            columns["flags"][np.isin(columns["tid"], np.fromiter(own, "<u4", len(own)))] |= FAULT_OBSERVER

    def _without_kernel(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        keep = columns["flags"] & FAULT_PC_KERNEL == 0
        self._hidden += int(len(keep) - keep.sum())
        return {name: column[keep] for name, column in columns.items()}

    def _family_is_due(self, now: int) -> bool:
        """A job tells of a birth, or it is time to look: attached targets, and who breaks away, are in no job."""
        born = [job.news() for job in self._jobs]
        every = _STRAYS_SECONDS if len(born) == len(self._context.targets) else _FAMILY_SECONDS
        return any(born) or now - self._family_looked >= every * 1e9

    def _follow(self, window: tuple[int, int]) -> Iterator[Batch]:
        """New descendants are watched from now on; what they faulted before stands in the ledger."""
        for pid, parent in processes.descendants(self.api, *self._processes):
            if pid in self._processes or pid in self._ended:
                continue
            try:
                if processes.created(self.api, pid) < self._oldest:  # an orphan whose parent's number was given anew
                    self._ended.add(pid)
                    continue
                process = self._add(pid, launched=False, parent=parent)
            except TargetExited:
                continue
            except Unavailable as refused:
                self._ended.add(pid)
                self._context.info.note(f"child {pid} is not traced: {refused.why}")
                continue
            yield from self._introduce(process, window)

    def _end(self, process: _Process, now: int) -> Batch:
        """The row of a process that has ended; its counts go into the ledger and its handle is closed."""
        code = processes.exit_code(self.api, process.watch.handle)
        self._account(process)
        self._processes.pop(process.pid, None)
        self._ended.add(process.pid)
        return self._batch(PROCESS, process.row(now, PROCESS_EXIT, code=code), (now, now))

    def _account(self, process: _Process) -> None:
        watch, ledger = process.watch, self._context.ledger
        counted = watch.counted()
        if counted is not None:
            # Windows counts both types together: what was not recorded as major counts as minor
            ledger.add("counted", counted - min(process.major, counted), "minor")
            ledger.add("counted", min(process.major, counted), "major")
            missing = counted - watch.recorded - watch.lost
            ledger.add("unaccounted", max(missing, 0), "page_fault")
            if missing > max(counted // 4, KERNEL_RECORDS):
                self._context.info.note(
                    f"pid {process.pid}: {missing} faults are unaccounted: does another tracer read its watch?"
                )
        if not watch.lost_is_exact:
            self._context.info.note("this Windows says only that records were lost, not how many")
        watch.close()

    def _batch(self, schema: Schema, columns: dict[str, NDArray[Any]], window: tuple[int, int], lost: int = 0) -> Batch:
        return Batch(schema, columns, window=window, lost=lost, source=self.name, strings=self._context.strings)

    def stop(self) -> Iterable[Batch]:
        """A last drain, also of processes that have ended; then the handles are closed."""
        if not self._started or self._stopped:
            return []
        self._stopped = True
        try:
            batches = list(self._drain())
        finally:
            for process in self._processes.values():
                self._account(process)
            self._processes.clear()
            self._close_jobs()
        if self._hidden:
            self._context.info.note(f"{self._hidden} faults of instructions in the kernel (hidden by kernel=no)")
        return batches

    def _close_jobs(self) -> None:
        for job in self._jobs:
            job.close()
        self._jobs.clear()

    @property
    def finished(self) -> bool:
        """True when every watched process has ended."""
        return self._started and not self._processes

    def statistics(self) -> dict[str, int | float]:
        """Processes watched now, drains so far, the present pause in seconds."""
        return {"processes": len(self._processes), "drains": self._drains, "pause_seconds": self._pause}


class _Process:
    """A watched process: its watch, and what is known of its memory."""

    def __init__(self, api: Any, pid: int, context: Context, parent: int) -> None:
        self.pid, self.parent = pid, parent
        self.major = 0  # records of faults that read from disk
        self.watch = Watch(api, pid)
        self.name = context.strings.code(processes.name(api, self.watch.handle, pid))
        self.space = AddressSpace(Memory(api, self.watch.handle), pid, context.strings)

    def row(self, now: int, event: int, *, code: int = -1) -> dict[str, NDArray[Any]]:
        """A PROCESS row of it."""
        whose = {"pid": self.pid, "ppid": self.parent, "tid": self.pid, "name": self.name}
        values = {"time_ns": now, "event": event, "code": code, **whose}
        return {column.name: np.array([values[column.name]], DTYPES[column.type]) for column in PROCESS.columns}
