"""The level `counters`, when the kernel refuses perf events: the numbers of faults alone."""

from __future__ import annotations

import time
from collections.abc import Mapping

from wstrace.interfaces import Context
from wstrace_plugins.os.linux import procfs

_PAUSE_SECONDS = 0.1


class FaultCounters:
    """Counts minor and major faults by rusage or /proc/PID/stat: a fault has no thread, instruction or address."""

    def __init__(self, context: Context) -> None:
        self._context, self._looks = context, 0
        context.info.note("addresses, instructions and threads of faults (level counters)")

    def drain(self, timeout: float) -> None:
        """Waits at most `timeout` seconds, and reads the counts: each target remembers its own, and its peak."""
        self._looks += 1
        for target in self._context.targets:
            target.usage()
        time.sleep(min(timeout, _PAUSE_SECONDS))

    def stop(self) -> None:
        """Writes the system's own counts into the ledger."""
        usages = [target.usage() for target in self._context.targets]
        for kind, counts in (("minor", [u.minor for u in usages]), ("major", [u.major for u in usages])):
            total = sum(count or 0 for count in counts)
            self._context.ledger.set("counted", total, kind)
            self._context.ledger.set("unaccounted", total, kind)

    @property
    def finished(self) -> bool:
        """Whether no process is left, if the trace waits for all; else False."""
        pids = [target.pid for target in self._context.targets if procfs.exists(target.pid)]
        children = procfs.descendants(*pids) if self._context.children and pids else ()
        return self._context.wait_children and self._looks > 0 and not pids and not children

    def statistics(self) -> Mapping[str, int | float]:
        """How often the counts were read."""
        return {"looks": self._looks}
