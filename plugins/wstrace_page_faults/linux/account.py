"""Account: what the kernel counted in a trace, what became of it, and why the system's own count is higher."""

from __future__ import annotations

import os
from collections.abc import Sequence

from wstrace.interfaces import Context
from wstrace_page_faults.linux.events import PerfEvents, Settings
from wstrace_page_faults.linux.rings import MAJOR, MINOR, SIDE
from wstrace_page_faults.linux.samples import RingSamples
from wstrace_page_faults.linux.side_band import SideBand

#: The stage of the ledger for faults after an exec that gained privilege.
LOST_PRIVILEGED = "lost_privileged"


class Account:
    """Writes the ledger and the notes of a trace.

    Args:
        context: the session's context.
        source: the name of the source in the ledger.
        settings: how the events were opened.
        rings: the samples of each ring of faults.
        events: the perf events.
        side: the side band.
    """

    def __init__(
        self,
        context: Context,
        source: str,
        settings: Settings,
        rings: Sequence[RingSamples],
        events: PerfEvents,
        side: SideBand,
    ) -> None:
        self._context, self._source, self._settings = context, source, settings
        self._events, self._side = events, side
        self._kinds = [(kind, [ring for ring in rings if ring.major == (kind == MAJOR)]) for kind in (MINOR, MAJOR)]
        self._before = 0
        self._at_end: int | None = None

    def begin(self) -> None:
        """Called when all events are open: notes which faults of attached targets came before and were not counted."""
        if not all(target.launched for target in self._context.targets):
            counted = sum(self._events.counts(kind)[0] for kind, _ in self._kinds)
            self._before = max(self._usage() - counted, 0)

    def end(self) -> None:
        """Called before the events stop: what the system accounts to targets after this is not part of the trace."""
        if any(target.wait(0) is None for target in self._context.targets):
            self._at_end = self._usage()

    def so_far(self, late: int) -> None:
        """Writes the ledger during the trace, from the rings alone."""
        ledger = self._context.ledger
        for kind, rings in self._kinds:
            for stage, count in (
                ("lost_kernel", sum(ring.lost for ring in rings)),
                ("duplicates", sum(ring.duplicates for ring in rings)),
                ("foreign_clock", sum(ring.foreign for ring in rings)),
            ):
                if count:
                    ledger.set(stage, count, kind)
        for stage, count in (("late", late), ("lost_side_band", self._side.lost)):
            if count:
                ledger.set(stage, count, self._source)

    def close(self, given: int, *, failed: bool) -> None:
        """Writes the final ledger, with recorded + lost_kernel + lost_tracer + foreign_clock + unaccounted = counted.

        Args:
            given: the number of faults that were emitted; the tracer lost the others that it took from the rings.
            failed: whether the rings could not be emptied, so that what they hold is lost too.
        """
        ledger, every = self._context.ledger, self._settings.period == 1
        counted_in_all = 0
        taken = sum(ring.recorded for _, rings in self._kinds for ring in rings)
        ledger.add("lost_tracer", max(taken - given, 0), self._source)
        for kind, rings in self._kinds:
            counted, lost = self._events.counts(kind)
            counted -= sum(ring.duplicates for ring in rings)
            recorded = sum(ring.recorded for ring in rings)
            foreign = sum(ring.foreign for ring in rings)
            if lost is None:  # a LOST row appears only with the next row that finds room, so the last one is missing
                reported = sum(ring.lost for ring in rings)
                lost = max(counted - recorded - foreign, reported) if every else reported
            ledger.set("counted", counted, kind)
            ledger.set("lost_kernel", lost, kind)
            if every:
                ledger.add("lost_tracer" if failed else "unaccounted", counted - recorded - lost - foreign, kind)
            counted_in_all += counted
        # The kernel's count includes losses at the end, after which no LOST row was written.
        if lost := max(self._side.lost, self._events.counts(SIDE)[1] or 0):
            ledger.set("lost_side_band", lost, self._source)
        if self._context.targets:
            self._explain((self._usage() if self._at_end is None else self._at_end) - counted_in_all)

    def _usage(self) -> int:
        context = self._context
        return sum((t.usage() if context.children else t.own_usage()).faults or 0 for t in context.targets)

    def _explain(self, hidden: int) -> None:
        """Explains why the system's own account of the targets (rusage) is so much higher than the events' counts.

        Known reasons are stated as such; for the rest, only what may be the reason.
        """
        note, privileged = self._context.info.note, self._side.privileged_programs
        hidden = max(hidden, 0)
        before = min(self._before, hidden)
        rest = hidden - before
        if before:
            note(f"{before:,} that came while it was being attached")
        if privileged:
            self._context.ledger.set(LOST_PRIVILEGED, max(rest, privileged), self._source)
            programs = "program" if privileged == 1 else "programs"
            note(
                f"{rest:,} after the kernel ended the trace: {privileged:,} {programs} gained privilege by exec "
                "(setuid, file capabilities)"
            )
        elif rest:
            causes = self._causes()
            why = causes[0] if len(causes) == 1 else f"of which the cause is not known: {', or '.join(causes)}"
            note(f"{rest:,} {why}")
        elif not self._settings.kernel:
            note("faults that kernel code took on the target's memory, if there were any (level user)")
        if self._at_end is not None:
            note("those that came after the end of the trace")

    def _causes(self) -> list[str]:
        """What rusage may have counted without an event. The first always applies: get_user_pages() has no event."""
        causes = ["pages that came without a fault: exec's own, MAP_POPULATE, mlock"]
        if not self._settings.kernel:
            causes.append("faults that kernel code took on the target's memory (level user)")
        if not self._settings.children:
            causes.append("faults of its children")
        if any(target.pid == os.getpid() for target in self._context.targets):
            causes.append("faults of wstrace's own threads")
        return causes
