"""The source `page_faults` on Windows: the working-set watch of every traced process.

Windows gives no time with a record, so a batch has a window from the previous drain to this one. The kernel keeps 1,024
records per process, so the fuller a drain finds the buffer, the sooner the next one follows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import numpy as np

from wstrace.batch import Batch, Columns
from wstrace.errors import Unavailable
from wstrace.interfaces import Context, Level, Source, Usage
from wstrace.schema import (
    ADDRESS_SPACE,
    FAULT_MAJOR,
    FAULT_OBSERVER,
    FAULT_PC_KERNEL,
    KIND_FILE,
    KIND_SHIFT,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    PROCESS_SEEN,
    Schema,
)
from wstrace_plugins.os.few_notes import FewNotes
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.page_faults import parse_stacks
from wstrace_plugins.page_faults.windows.drainer import FASTEST_SECONDS, Drained, Drainer
from wstrace_plugins.page_faults.windows.watch import KERNEL_RECORDS, Changes, Watch, level_of

#: Why no fault has a stack.
NO_STACK = "the working-set watch gives the address of the instruction and no stack"
#: In Python's default of 5 ms, a burst of faults can overflow a buffer several times. Below 1 ms, CPython on Windows
#: does not wait at all: two threads take the GIL from each other at every call, and a drain takes 6 times as long.
_SWITCH_SECONDS = 0.001
_TIMER_MS = 1  # that 1 ms is not 15.6 ms, a tick of the system's timer


class PageFaults(Source):
    """Page faults with address, instruction and thread, minor or major, by GetWsChangesEx.

    Args:
        poll_ms: the longest time between two drains in ms; it falls to 1 ms as the kernel's buffer fills.
        kernel: whether to record faults whose instruction is in the kernel.
        children: whether to trace the processes that the target starts.
        stacks: auto or none, which are the same here; others are refused at the start, as the watch gives no stack.
    """

    name = "page_faults"
    streams = (PAGE_FAULT, PROCESS, ADDRESS_SPACE)
    default = True
    needs_target = True

    #: The system's functions, or a stand-in with the same ones.
    api: WindowsApi = winapi
    #: Seconds between two checks of whether a process has ended.
    exits_seconds = 0.02
    #: Seconds between two listings of all processes: without jobs that report the children, and beside such jobs.
    listing_seconds = 0.05, 0.5
    #: Whether the drainer runs on its own thread; False for tests, where only drain() reads the buffers.
    own_thread = True

    def __init__(
        self, *, poll_ms: float = 10.0, kernel: bool = True, children: bool = True, stacks: str = "auto"
    ) -> None:
        wanted = parse_stacks(stacks)
        self._refused_stacks = stacks if wanted.required and (wanted.python or wanted.native) else ""
        self._slowest = max(poll_ms / 1000, FASTEST_SECONDS)
        self._kernel, self._children = kernel, children
        self._hidden = 0
        self._late = [0, 0]  # children that made many faults before they could be watched, and these
        self._started = self._stopped = False
        self._interval = 0.0

    @classmethod
    def probe(cls) -> Level:
        """The level; that there is a watch is tried on the calling process, for which it then stays on."""
        try:
            Watch(cls.api, cls.api.GetCurrentProcessId()).close()
        except Unavailable as no:
            return Level("none", no.why, no.remedy)
        return level_of(cls.api)

    @classmethod
    def abilities(cls) -> Mapping[str, Level]:
        """Stacks: none."""
        return {"stacks": Level("none", NO_STACK)}

    def start(self, context: Context) -> None:
        """Begins to watch every target; a launched one has not run yet.

        Raises Unavailable: access is refused, the watch is a stub (Wine), stacks are wanted, or `require` is "full" and
        the system gives less.
        """
        if self._refused_stacks:
            raise Unavailable(f"{self.name}: stacks={self._refused_stacks}: {NO_STACK}", "write stacks=auto")
        self._context = context
        self._few = FewNotes(context.info)
        self._follows = self._children and context.children
        self._level = level = level_of(self.api)
        if level.name != "full" and context.require == "full":
            raise Unavailable(level.why, level.remedy)
        jobs = [job for target in context.targets if (job := getattr(target, "job", None)) is not None]
        self._pause_ns = self.listing_seconds[len(jobs) == len(context.targets)] * 1e9
        self._drainer = Drainer(self.api, self._slowest, self.exits_seconds, jobs if self._follows else [],
                                hidden=level.name != "full")  # fmt: skip
        try:
            for target in context.targets:
                self._forget(self._drainer.watch(target.pid, 0, launched=target.launched))
            if self._follows:
                self._list_children()
            for process in self._processes.values():  # the children that attached ones have already
                if not process.older:
                    self._forget(process)
        except BaseException:
            for process in self._processes.values():
                process.close()
            self._processes.clear()
            raise
        self._started = True
        if all(target.pid != self.api.GetCurrentProcessId() for target in context.targets):
            self._interval = sys.getswitchinterval()  # of this process its threads' switches would be in the trace
            sys.setswitchinterval(min(self._interval, _SWITCH_SECONDS))
            self.api.timeBeginPeriod(_TIMER_MS)
        if self.own_thread:
            context.register_own_thread(self._drainer.start())
        context.info.level = level
        if level.name != "full":
            self._note(level.why)
        self._jobless = [target for target in context.targets if self._follows and not getattr(target, "job", None)]
        for target in self._jobless:
            why = getattr(target, "unguarded", "") or "attached"  # as WindowsTarget says
            self._note(f"{target.name} ({target.pid}) is in no job of wstrace ({why}): its children are found by a "
                       f"listing every {self.listing_seconds[0] * 1000:.0f} ms; shorter ones and what they start are "
                       "not")  # fmt: skip
        if any(not target.launched for target in context.targets):
            self._note("the watch of an attached process stays on until it exits: Windows cannot turn it off")

    @property
    def _processes(self) -> dict[int, Watch]:
        return self._drainer.processes

    def _note(self, text: str) -> None:
        self._context.info.note(text)

    def drain(self, timeout: float) -> Iterable[Batch]:
        """Sleeps until the next drain is due, at most `timeout` seconds, and returns what the buffers held."""
        time.sleep(min(self._drainer.pause, max(timeout, 0)))  # sleep's timer is finer than a wait on an event
        return self._drain()

    def _drain(self) -> Iterator[Batch]:
        self._drainer.drain(exits=self._stopped)
        if self._stopped:
            for process in self._processes.values():
                process.settle()
        found = self._drainer.take()
        window = (found[0].window[0] if found else self._drainer.window, self._drainer.window)
        yield from self._introduce_new(window)
        if self._follows and window[1] - self._listed >= self._pause_ns:
            self._list_children()
            yield from self._introduce_new(window)
        for drained in found:
            yield from self._give(drained)
        if failed := [drained for drained in found if drained.error is not None and self._matters(drained.process)]:
            raise failed[0].error or Unavailable("the watch failed")

    def _forget(self, process: Watch) -> None:
        """Leaves out what was recorded of a process that was there before the trace."""
        process.older = True
        try:
            dropped = 0 if process.launched else process.discard()
        except Unavailable:
            if not process.parent:
                raise
        else:
            self._context.ledger.add("before_start", dropped, "page_fault")

    def _list_children(self) -> None:
        self._listed = self._drainer.window
        try:
            self._drainer.list_children()
        except Unavailable as refused:
            self._note(f"children are not searched for: {refused.why}")

    def _matters(self, process: Watch) -> bool:
        """Whether the failed watch of a process ends the trace: that of a launched process, or of the last one."""
        return process.launched or not self._processes

    def _give(self, drained: Drained) -> Iterator[Batch]:
        process, changes, window = drained.process, drained.changes, drained.window
        if len(changes) or changes.lost:
            yield from self._batches(process, changes, window)
        if drained.error is not None:
            yield from self._failed(drained, drained.error)
        elif drained.last:
            yield self._end(process, window[1])

    def _batches(self, process: Watch, changes: Changes, window: tuple[int, int]) -> Iterator[Batch]:
        columns, space = changes.columns, process.describe(self._context.strings)
        process.major += int(np.count_nonzero(columns["flags"] & FAULT_MAJOR))
        rows = space.discover(np.concatenate((columns["va"], columns["pc"])), window[0])
        if len(rows["start"]):
            yield self._batch(ADDRESS_SPACE, rows, window)
        self._mark_own(columns)
        if not self._kernel:
            columns = self._without_kernel(columns)
        count = len(columns["va"])
        pid = np.full(count, process.pid, "<u4")
        self._context.ledger.add("lost_kernel", changes.lost, "page_fault")
        yield self._batch(PAGE_FAULT, {"pid": pid, **columns}, window, changes.lost)

    def _introduce_new(self, window: tuple[int, int]) -> Iterator[Batch]:
        """Yields the first row of each new process, and a listing of its memory."""
        new, refused = self._drainer.introduced()
        for pid, why in refused:
            self._few.add("children are not traced", f"child {pid} is not traced: {why}")
        for process in new:
            if not process.older:
                self._context.ledger.add("before_watch", process.before, "page_fault")
                if process.before >= KERNEL_RECORDS:
                    self._late = [self._late[0] + 1, self._late[1] + process.before]
            space = process.describe(self._context.strings)
            events = [PROCESS_SEEN if process.older else PROCESS_FORK]
            if process.launched or not process.older:  # its memory is no copy of its parent's, nor older than the trace
                events.append(PROCESS_EXEC)
            yield self._batch(PROCESS, process.rows(window[0], *events), window)
            listing = space.listing(window[0])
            if len(listing["flags"]) and not np.any((listing["flags"] >> KIND_SHIFT) & 15 == KIND_FILE):
                text = f"files of process {process.pid} are not named: GetMappedFileNameW fails; {winapi.STRIPPED}"
                self._few.add("processes have no names of files", text)
            yield self._batch(ADDRESS_SPACE, listing, window)

    def _mark_own(self, columns: Columns) -> None:
        """Marks records of wstrace's own threads: reading the target's memory causes faults that its watch records."""
        own = np.array(list(self._context.own_threads()), "<u4")
        columns["flags"][np.isin(columns["tid"], own)] |= FAULT_OBSERVER

    def _without_kernel(self, columns: Columns) -> Columns:
        keep = columns["flags"] & FAULT_PC_KERNEL == 0
        self._hidden += int(len(keep) - keep.sum())
        return {name: column[keep] for name, column in columns.items()}

    def _failed(self, drained: Drained, error: Unavailable) -> Iterator[Batch]:
        """Yields the last row of a process whose watch failed; the others are traced on."""
        process = drained.process
        self._account(process)
        self._drainer.failed(process)
        yield self._batch(PROCESS, process.rows(drained.window[1], PROCESS_EXIT), (drained.window[1],) * 2)
        if not self._matters(process):
            text = f"process {process.pid} is no longer traced: {error.why}"
            self._few.add("processes are no longer traced", text)

    def _end(self, process: Watch, now: int) -> Batch:
        """The last row of an ended process; adds its counts to the ledger and closes its handle."""
        code = -1
        with suppress(Unavailable):  # the rights of an open handle may be taken away
            code = processes.exit_code(self.api, process.handle)
        self._drainer.ended(process, processes.times(self.api, process.handle)[1])
        self._account(process)
        return self._batch(PROCESS, process.rows(now, PROCESS_EXIT, code=code), (now, now))

    def _account(self, process: Watch) -> None:
        ledger = self._context.ledger
        counted = process.counted()
        if counted is not None:
            # Windows counts both types together: what was not recorded as major counts as minor.
            ledger.add("counted", counted - min(process.major, counted), "minor")
            ledger.add("counted", min(process.major, counted), "major")
            missing = counted - process.recorded - process.lost
            ledger.add("unaccounted", max(missing, 0), "page_fault")
            if missing > max(counted // 4, KERNEL_RECORDS):
                question = "does another tracer read its watch?"
                because = question
                if self._level.name != "full":
                    because = f"{self._level.why}; or another tracer read its watch"
                text = f"pid {process.pid}: {missing} faults are unaccounted: {because}"
                self._few.add("processes have unaccounted faults", text)
        counters = processes.counters(self.api, process.handle)
        if counters is not None and counters.peak_working_set:  # Wine forgets that of an ended process
            self._context.info.usage += Usage(peak_resident_bytes=counters.peak_working_set, peak_pid=process.pid)
        process.close()

    def _batch(self, schema: Schema, columns: Columns, window: tuple[int, int], lost: int = 0) -> Batch:
        return Batch(schema, columns, window=window, lost=lost, source=self.name, strings=self._context.strings)

    def stop(self) -> Iterable[Batch]:
        """Drains all processes for the last time, also ended ones, and closes the handles."""
        if not self._started or self._stopped:
            return []
        self._stopped = True
        self._drainer.stop()
        try:
            batches = list(self._drain())
        finally:
            for process in self._processes.values():
                self._account(process)
            self._processes.clear()
            if self._interval:
                sys.setswitchinterval(self._interval)
                self.api.timeEndPeriod(_TIMER_MS)
        if self._hidden:
            self._note(f"{self._hidden} faults of instructions in the kernel (hidden by kernel=no)")
        if self._late[0]:
            self._note(
                f"{self._late[0]} children (of a launcher, or just quick) were met late: "
                f"{self._late[1]} faults of their starts are in no record"
            )
        self._few.end()
        if unseen := self._drainer.unseen:
            self._note(f"{unseen} children ended before they could be opened: their faults are in no count")
        if self._jobless and self._drainer.orphans:
            self._note(
                f"{len(self._drainer.orphans)} processes began during the trace, and who started them is not known: "
                "each may be a descendant that is not traced"
            )
        return batches

    @property
    def finished(self) -> bool:
        """Whether every watched process has ended and all records were returned."""
        return self._started and not self._processes and not self._drainer.holds
