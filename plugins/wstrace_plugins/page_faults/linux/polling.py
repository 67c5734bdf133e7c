"""What the system says beside the records: mappings where some were lost, titles, peaks of memory; and Account: what it
counted in a trace, what became of that, and why its own count is higher.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.tally import distinct
from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace.schema import CONTENT_LOSS
from wstrace.text import plural
from wstrace.trace_info import Usage
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux.events import PerfEvents, Settings
from wstrace_plugins.page_faults.linux.python_stacks.capture import PythonStacks
from wstrace_plugins.page_faults.linux.rings import MAJOR, MINOR, SIDE
from wstrace_plugins.page_faults.linux.samples import RingSamples
from wstrace_plugins.page_faults.linux.side_band import SideBand, ended

if TYPE_CHECKING:
    from numpy.typing import NDArray


_KEPT = 1 << 16


class CatchUp:
    """Brings a side band up to date. look: what looks at a process that is met."""

    def __init__(self, side: SideBand, look: Callable[[int], object]) -> None:
        self._side, self._look = side, look
        self._met: set[int] = set()

    def read_maps_again(self, targets: Iterable[int]) -> None:
        """After a loss in the side band: reads the current mappings of the targets and of every live traced process."""
        self._side.stale = False
        now = now_ns()
        for pid in {*self._side.live, *targets}:
            try:
                self._side.seen(pid, now)
            except Unavailable:
                self._side.live.gone(pid)

    def meet(self, columns: dict[str, NDArray[Any]]) -> bool:
        """Reads processes that fault but that no record has named: they ran before, or those of their start were lost.

        What they have mapped now holds from their first fault on.
        columns: the faults in order of time, with pid, time_ns, va and pc. Returns whether the side band has anything
        new to give.
        """
        pids, times = columns["pid"], columns["time_ns"]
        new = {*distinct(pids).tolist()} - self._met - self._side.live.keys() - self._side.ended
        for pid in new:
            if len(self._met) >= _KEPT:
                self._met.clear()
            self._met.add(pid)
            with contextlib.suppress(Unavailable):  # it has ended
                if not procfs.stat(pid).gone:
                    self._look(pid)
                    self._side.seen(pid, int(times[np.argmax(pids == pid)]))
                    self._met.discard(pid)
        return bool(new)


#: The most processes of which a title is read at once, at 30 us each, and how many of these are the newest; and between
#: two turns of all, at least and for each process, so that these take 0.06 % of a CPU at most. In seconds.
_MOST_A_LOOK, _NEWEST, _APART_SECONDS, _TURN_SECONDS, _SECONDS_EACH = 64, 4, 0.1, 0.5, 0.05
#: The most titles of a trace: a process may change its own all the time, and each is a name that stays in memory.
_MOST = 4096


class Titles:
    """Reads the titles of live processes: those of the newest, of all in turn, and of all at the end of the trace.

    side: the side band, which knows the live processes and takes their titles.
    """

    def __init__(self, side: SideBand) -> None:
        self._side = side
        self._due, self._turn_due, self._left = 0.0, 0.0, _MOST
        self._turn: list[int] = []

    def read_if_due(self) -> None:
        """Reads the titles of the newest processes, and those of all in turn."""
        now = time.monotonic()
        if now < self._due:
            return
        live = self._side.live
        self._due = now + _APART_SECONDS
        if not self._turn and now >= self._turn_due:
            self._turn, self._turn_due = list(live), now + max(_TURN_SECONDS, _SECONDS_EACH * len(live))
        self._turn, due = self._turn[:-_MOST_A_LOOK], self._turn[-_MOST_A_LOOK:]
        self.read({*due, *islice(reversed(live), _NEWEST)})

    def read(self, pids: Iterable[int]) -> None:
        """Reads the titles of these processes: at the end of those that are live, as they cannot be read afterwards."""
        for pid in pids:
            time_ns = now_ns()  # before it is read: an execve() meanwhile makes a title void, and must come after it
            title = procfs.title(pid) if self._left else b""
            if title and self._side.titled(pid, time_ns, title):
                self._left -= 1


#: The most processes that one call of read() reads, at 20 us each; with more of them, the calls take turns.
_MOST_READ = 64
#: Between two reads: the first pause and the longest one, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.25


class Peaks:
    """The peaks of the processes that the targets started, or had when they were attached.

    context: the session's context; its targets remember their own peaks. children: whether processes that the targets
    start are traced.
    """

    def __init__(self, context: Context, *, children: bool = True) -> None:
        self._targets, self._children = context.targets, children
        self._due, self._pause = 0.0, _FIRST_PAUSE
        self._own = {target.pid for target in context.targets}
        self._older: dict[int, int] = {}  # pid -> its peak in bytes when the trace began
        self._largest = (0, 0)  # bytes, pid
        self._sampled = self._begun = False
        self._next = 0

    @property
    def seconds(self) -> float:
        """The time until the next read is due."""
        return max(self._due - time.monotonic(), _FIRST_PAUSE)

    def read_if_due(self, live: Collection[int]) -> bool:
        """Reads them if it is time: False when it is not. The pauses grow."""
        if time.monotonic() < self._due:
            return False
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        self._due = time.monotonic() + self._pause
        self.read(live)
        return True

    def read(self, live: Collection[int], *, final: bool = False) -> None:
        """Reads the peaks of the targets and of live processes, as they cannot be read afterwards.

        Of processes at most _MOST_READ are read, or all with `final`.
        """
        for target in self._targets:
            target.usage()
        pids = [pid for pid in live if pid not in self._own] if self._children else []
        if not self._begun and not all(target.launched for target in self._targets):
            for pid in pids:
                with contextlib.suppress(Unavailable):  # it has ended
                    self._older[pid] = procfs.resident(pid)[0]
        self._begun = True
        if not final and len(pids) > _MOST_READ:
            first, self._next = self._next % len(pids), self._next + _MOST_READ
            pids = list(islice(pids + pids, first, first + _MOST_READ))
        for pid in pids:
            with contextlib.suppress(Unavailable):  # it has ended
                peak, now = procfs.resident(pid)
                # What an older process had reached before the trace is not a peak of the trace.
                raised = peak > self._older.get(pid, 0)
                self._sampled |= not raised
                self._largest = max(self._largest, (peak if raised else now, pid))

    def usage(self, ended: Collection[int], *, orphaned: bool) -> Usage:
        """The largest peak so far, in bytes, with its process.

        ended: the pids of traced processes that have ended. orphaned: whether a process outlived its parent, so that no
        traced process waits for it.
        """
        waited_for = all(target.launched and target.exit_code is not None for target in self._targets)
        unseen = orphaned if waited_for else bool(set(ended) - self._own)
        peak, pid = self._largest
        return Usage(peak_resident_bytes=peak or None, peak_pid=pid or None, peak_sampled=self._sampled or unseen)


#: The stage of the ledger for faults after an exec that gained privilege.
LOST_PRIVILEGED = "lost_privileged"
WITHOUT_STACK = "without_stack"
#: The stage of the ledger for records of mappings and processes that were not read.
SKIPPED = "skipped_side_band"


_OF_RINGS = (("duplicates", "duplicates"), ("foreign_clock", "foreign"))


class Account:
    """Writes the ledger and the notes of a trace.

    source: the name of the source in the ledger. settings: how the events were opened. rings: the samples of each ring
    of faults. python: the Python stacks.
    """

    def __init__(
        self,
        context: Context,
        source: str,
        settings: Settings,
        rings: Sequence[RingSamples],
        events: PerfEvents,
        side: SideBand,
        python: PythonStacks,
    ) -> None:
        self._context, self._source, self._settings = context, source, settings
        self._events, self._side = events, side
        self._rings = rings
        self._python = python
        self._before = 0
        self._hints: int | None = None
        self._at_end: int | None = None

    def begin(self) -> None:
        """Called when all events are open: says which content losses they tell, and notes which faults of attached
        targets came before and were not counted.
        """
        self._tell_losses()
        self._hints = procfs.balancing_hints()
        if not all(target.launched for target in self._context.targets):
            counted = sum(self._events.counts(kind)[0] for kind in (MINOR, MAJOR))
            self._before = max(self._usage() - counted, 0)

    def end(self) -> None:
        """Called before the events stop: what the system accounts to targets after this is not part of the trace."""
        for group in self._context.groups:
            group.end()
        if any(target.wait(0) is None for target in self._context.targets):
            self._at_end = self._usage()

    def so_far(self, late: int) -> None:
        """Writes the ledger during the trace, from the rings alone, and which content losses are known by now."""
        self._tell_losses()
        ledger = self._context.ledger
        side, counts = self._side, [("late", late, self._source)]
        counts += [("lost_side_band", side.lost, self._source), (SKIPPED, side.skipped, self._source)]
        for kind in (MINOR, MAJOR):
            counts += [("lost_kernel", self.reported_lost(kind), kind)]
            counts += [(stage, self._sum(kind, name), kind) for stage, name in _OF_RINGS]
        for stage, count, who in counts:
            if count:
                ledger.set(stage, count, who)

    def _sum(self, kind: str, name: str) -> int:
        """A count of all rings of a kind of faults."""
        return sum(getattr(ring, name) for ring in self._rings if ring.major == (kind == MAJOR))

    def _tell_losses(self) -> None:
        everywhere = self._events.tracepoints_everywhere
        self._context.info.content_losses = self._side.traced_losses(calls_everywhere=everywhere)

    def reported_lost(self, kind: str) -> int:
        """The faults that LOST rows have counted so far: they count lost rows of stacks, too."""
        lost = self._sum(kind, "lost")
        return max(lost - self._python.rows_lost(kind), 0) if lost else 0

    def close(self, given: int, *, failed: bool) -> None:
        """Writes the final ledger: what was recorded, all losses and unaccounted are what was counted.

        given: the number of faults that were emitted; the tracer lost the others that it took from the rings. failed:
        whether the rings could not be emptied, so that what they hold is lost too.
        """
        ledger, every = self._context.ledger, self._settings.period == 1 and not self._events.thinned
        counted_in_all = 0
        ledger.add("lost_tracer", max(sum(ring.recorded for ring in self._rings) - given, 0), self._source)
        for kind in (MINOR, MAJOR):
            counted, lost = self._events.counts(kind)
            counted -= self._sum(kind, "duplicates")
            absent = counted - self._sum(kind, "recorded") - self._sum(kind, "foreign")
            if lost is None:  # a LOST row appears only with the next row that finds room, so the last one is missing
                reported = self.reported_lost(kind)
                lost = max(absent, reported) if every else reported
            ledger.set("counted", counted, kind)
            ledger.set("lost_kernel", lost, kind)
            if every:
                ledger.add("lost_tracer" if failed else "unaccounted", absent - lost, kind)
            counted_in_all += counted
        # The kernel's count includes losses at the end, after which no LOST row was written.
        if lost := max(self._side.lost, self._events.counts(SIDE)[1] or 0):
            ledger.set("lost_side_band", lost, self._source)
        for reason, n in self._python.reasons().items():
            ledger.set(WITHOUT_STACK, n, reason)
        if self._context.wants(CONTENT_LOSS):  # what owners need
            self._context.info.extra["fault_around_bytes"] = fault_around_bytes()
        self._tell_hints()
        if self._context.groups:
            usage = self._context.usage().faults
            if usage is None:
                self._context.info.note("an unknown number faulted in by the kernel itself")
            elif usage > counted_in_all:
                self._context.info.note(f"{usage - counted_in_all:,} faulted in by the kernel itself")
        elif self._context.targets:
            if all(target.launched for target in self._context.targets) and (went_on := self._went_on()):
                self._context.info.extra["went_on"] = went_on
            self._explain((self._usage() if self._at_end is None else self._at_end) - counted_in_all)

    def _tell_hints(self) -> None:
        hints = procfs.balancing_hints() if self._hints is not None else None
        if self._hints is not None and hints is not None and hints > self._hints:
            self._context.info.lack(
                "what tells faults that bring a page from hint faults on pages that were there: memory was balanced "
                f"between nodes, with {hints - self._hints:,} on this machine meanwhile; sysctl kernel.numa_balancing=0"
            )

    def _went_on(self) -> list[int]:
        """The pids of traced processes, other than the targets, that have not ended."""
        others = self._side.live.keys() - {target.pid for target in self._context.targets}
        return sorted(others - set(ended(others)))

    def _usage(self) -> int:
        return self._context.usage().faults or 0

    def _explain(self, hidden: int) -> None:
        """Explains why the system's own account of the targets (rusage) is so much higher than the events' counts.

        Known reasons are stated as such; for the rest, only what may be the reason: always also get_user_pages(), which
        has no event.
        """
        note, privileged, settings = self._context.info.note, self._side.privileged_programs, self._settings
        before = max(min(self._before, hidden), 0)
        rest = max(hidden, 0) - before
        if before:
            note(f"{before:,} that came while it was being attached")
        if privileged:
            self._context.ledger.set(LOST_PRIVILEGED, max(rest, privileged), self._source)
            note(
                f"{rest:,} after the kernel ended the trace: {plural(privileged, 'program')} gained privilege by exec "
                "(setuid, file capabilities)"
            )
        elif rest:
            causes = "pages that came without a fault: exec's own, MAP_POPULATE, mlock"
            own = any(target.pid == os.getpid() for target in self._context.targets)
            if own or not (settings.kernel and settings.children):
                causes = f"of which the cause is not known: {causes}, or faults of kernel code, children or wstrace"
            note(f"{rest:,} {causes}")
        elif not settings.kernel:
            note("faults that kernel code took on the target's memory, if there were any (level user)")
        if self._at_end is not None:
            note("what came after the end of the trace is not in it")


_SETTING = "/sys/kernel/debug/fault_around_bytes"


def fault_around_bytes() -> int:
    """The most bytes of a file in the page cache that a read fault maps with the touched page; 0 = not known.

    It is a setting, 64 KiB unless root changes it, which debugfs has where it is mounted (mm/memory.c).
    """
    with contextlib.suppress(OSError, ValueError):
        return max(int(procfs.content(_SETTING)), mmap.PAGESIZE)
    return 0
