"""What the daemon tells of itself: in a word, and as facts for the health endpoint."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from wstrace.guard import quietly
from wstrace.interfaces import Exporter
from wstrace.session import Session
from wstrace.text import printable
from wstrace_plugins.daemon.health import Told
from wstrace_plugins.daemon.limits import Governed, Limits

#: Names in one answer: of cgroups and of anything else that a machine may have very many of.
_MOST_NAMES = 1000
#: the stages at which a record is lost because those behind it are late
_LATE = ("lost_kernel", "dropped_bus", "dropped_lane")


class State:
    """The daemon's state over all its sessions. Written by its main thread; told on that of the health endpoint.

    Attributes:
        session: the one that runs, None = none. governed: its sources.
        limits: those in force, None before the first session.
        refused: why the last reload was refused; "" = it was not.
        sessions: how many there were.
    """

    def __init__(self, config: str) -> None:
        self._config, self._began = config, time.monotonic()
        self.session: Session | None = None
        self.governed: list[Governed] = []
        self.limits: Limits | None = None
        self.resident = 0
        self.refused = ""
        self.sessions = 0
        self._before: Counter[tuple[str, str]] = Counter()  # the ledgers of earlier sessions, added up

    def ended(self, session: Session) -> None:
        """Adds the counts of a session that has ended to those of the ones before."""
        for stage, who, n in session.ledger.rows():
            self._before[stage, who] += n
        self.session = None

    def lost(self) -> int:
        """The records that the running session has lost because they came faster than they were taken."""
        ledger = self.session.ledger if self.session is not None else None
        return sum(map(ledger.get, _LATE)) if ledger is not None else 0

    def tell(self) -> Told:
        """The state now."""
        session, limits = self.session, self.limits
        counted = Counter(self._before)
        if session is not None:
            counted.update({(stage, who): n for stage, who, n in session.ledger.rows()})
        exporters = self._exporters(session)
        word = self._word(limits, exporters, session)
        facts: dict[str, Any] = {
            "state": word,
            "seconds": round(time.monotonic() - self._began, 1),
            "config": self._config,
            "reload_refused": self.refused,
            "sessions": self.sessions,
            "recorded": sum(n for (stage, _), n in counted.items() if stage == "recorded"),
            "lost": {f"{stage}:{who}" if who else stage: n for (stage, who), n in sorted(counted.items())
                     if n and session is not None and session.ledger.is_loss(stage)},
            "exporters": exporters,
            **self._own(limits),
            **self._cgroups(session),
        }  # fmt: skip
        return Told(session is not None and not any(exporters.values()), word, facts)

    def _word(self, limits: Limits | None, exporters: dict[str, str], session: Session | None) -> str:
        if session is None:
            return "not tracing"
        if any(exporters.values()):
            return "an output is stalled"
        if limits is not None and limits.over:
            return "over max_memory"
        return "sampling" if limits is not None and limits.every > 1 else "tracing"

    def _exporters(self, session: Session | None) -> dict[str, str]:
        """Name -> why its output takes nothing now; "" = it works."""
        queues = session.exporter_queues if session is not None else ()
        return {queue.name: printable(_stalled(queue.exporter), 300) for queue in queues}

    def _own(self, limits: Limits | None) -> dict[str, Any]:
        if limits is None:
            return {}
        return {
            "cpu": {"share": round(limits.share, 4), "max": limits.max_cpu, "seconds": round(time.process_time(), 2)},
            "memory": {"resident": self.resident, "max": limits.max_memory},
            "sampled": limits.every,
        }

    def _cgroups(self, session: Session | None) -> dict[str, Any]:
        """How many cgroups have faulted in this session, and the first of their paths."""
        if session is None:
            return {}
        codes = set().union(*(source.cgroups for source in self.governed))
        paths = [printable(session.name(code), 300) for code in sorted(codes)[:_MOST_NAMES]]
        return {"cgroups": len(codes), "cgroup_paths": paths}


def _stalled(exporter: Exporter) -> str:
    return quietly(lambda: exporter.stalled, "")
