"""Account: what the system counted in a trace, what became of that, and why its own count is higher."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence

from wstrace.interfaces import Context
from wstrace.schema import CONTENT_LOSS
from wstrace.text import plural
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux.events import PerfEvents, Settings
from wstrace_plugins.page_faults.linux.python_stacks.capture import PythonStacks
from wstrace_plugins.page_faults.linux.rings import MAJOR, MINOR, SIDE
from wstrace_plugins.page_faults.linux.samples import RingSamples
from wstrace_plugins.page_faults.linux.side_band import SideBand, ended

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
            note(f"{before:,} more came while it was being attached")
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
