"""Live: the exporter behind the screen. It keeps in bounded memory what a refresh needs, and makes one a second."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Event

import numpy as np

from wstrace.batch import Batch
from wstrace.errors import UsageError
from wstrace.interfaces import Context, Exporter
from wstrace.schema import FAULT_MAJOR, PAGE_FAULT
from wstrace.session_trace import Recorder, SessionTrace
from wstrace_exporters.live_screen.refresh import OWNERS, Refresh, refreshed

#: The bytes of faults that are kept between two refreshes; what is past that is counted as lost.
_KEEP_BYTES = 24 << 20
#: Refreshes are so many times their own CPU time apart, so that they take 2 % of a CPU at most.
_APART = 50
_SECOND = 0.95  # tick() is called about once a second, at times a little earlier


class Live(Exporter):
    """Refreshes the figures of the trace about every second, for a screen that asks for the latest ones.

    Attributes:
        latest: the newest refresh; never changed once it is here.
        by: what the owners of the next refresh are.
        fresh: set by every refresh.
    """

    name = "top"
    streams = frozenset({"page_fault", "process", "mapping", "call_site", "resident", "content_loss"})

    def __init__(self) -> None:
        self.latest, self.by, self.fresh = Refresh(), OWNERS[0], Event()
        self._recorder, self._faults = Recorder(keep_bytes=_KEEP_BYTES), [0, 0]
        self._due = 0.0
        self._until = 0  # the time of the last fault, in ns

    def start(self, context: Context) -> None:
        """Begins to keep records."""
        self._context = context
        self._recorder.start(context)
        self._trace = SessionTrace(context, self._recorder, lambda: "running")

    def export(self, batch: Batch) -> None:
        """Keeps a batch, and refreshes where that is due."""
        if batch.schema == PAGE_FAULT:
            self._until = max(self._until, batch.window[1])
            each = batch.columns.get("sampled", np.ones(len(batch), np.uint32))
            for at, some in enumerate((each, each[(batch["flags"] & FAULT_MAJOR) != 0])):
                self._faults[at] += int(some.sum())
        self._recorder.export(batch)
        self.tick()

    def tick(self) -> None:
        """Refreshes where that is due."""
        if time.monotonic() >= self._due:
            self._refresh()

    def close(self) -> None:
        """Refreshes for the last time."""
        self._refresh()

    def _refresh(self) -> None:
        begun = time.thread_time()
        info = self._context.info
        before = self.latest if self.latest.time_ns else Refresh(info.started_ns)
        self._recorder.thin(lambda batch: batch)  # few long batches are read in half of the time of many short ones
        try:
            found, chosen = refreshed(self._trace, self.by, before, self._until)
        except UsageError as error:  # no snapshot of any process has come yet, or none can be taken
            found = Refresh(before.time_ns, until_ns=before.until_ns, completeness=str(error), by=self.by)
        else:
            self._recorder.thin(chosen)
        ended = bool(self._context.targets) and all(one.wait(0) is not None for one in self._context.targets)
        level = info.level if info.level is not None and info.level.name != "full" else None
        self.latest = replace(
            found, faults=self._faults[0], major=self._faults[1], ended=ended,
            counted=level is not None and level.counts_only, level=info.obstacles[0] if level else "",
        )  # fmt: skip
        self._due = time.monotonic() + max(_SECOND, _APART * (time.thread_time() - begun))
        self.fresh.set()
