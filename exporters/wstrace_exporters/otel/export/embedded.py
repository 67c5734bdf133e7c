"""The instruments of an application that embeds wstrace: on its global meter, registered once, for all its sessions.

Counts of sessions that ended stay, so that counters never go back. A forked child starts at zero: its own kernel
counter, no session, no history.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from wstrace.batch import Dictionary
from wstrace.ledger import Ledger
from wstrace_exporters.otel.export.metrics import ProcessInstruments, TracerInstruments
from wstrace_exporters.otel.export.processes import Process, Processes, memory
from wstrace_exporters.otel.export.resource import of_tracer
from wstrace_exporters.otel.transport.providers import GlobalProviders
from wstrace_exporters.otel.usage import process_faults

#: series that ended sessions may leave behind; counts of further ones are kept under `other`
MAX_ARCHIVED = 1024


class Archive(Process):
    """What ended sessions counted, by name: their dictionaries are gone."""

    def __init__(self) -> None:
        super().__init__(os.getpid(), Dictionary(), modules=0)
        self._named: dict[tuple[str, str, int], int] = {}

    def absorb(self, process: Process) -> None:
        """Adds what a process of an ended session shows."""
        for key, count in process.named_series().items():
            if key not in self._named and len(self._named) >= MAX_ARCHIVED:
                key = ("other", "other", key[2])
            self._named[key] = self._named.get(key, 0) + count
        for kind, pages in process.written.items():
            self.written[kind] = self.written.get(kind, 0) + pages

    def named_series(self) -> dict[tuple[str, str, int], int]:
        """What was absorbed."""
        return self._named


class Embedded:
    """One an interpreter: `embedded`."""

    def __init__(self) -> None:
        self._registered = False
        self._archive = Archive()
        self._live: list[Processes] = []
        self._past: dict[tuple[str, str], int] = {}
        self._ledgers: list[Ledger] = []

    def register(self) -> None:
        """Registers the instruments on the global meter. Idempotent."""
        if not self._registered:
            self._registered = True
            meter = GlobalProviders().meter(of_tracer())
            ProcessInstruments(meter, self._processes, kernel=self._kernel, memory_of=self._memory)
            TracerInstruments(meter, self._sum_ledgers, own_usage=False)

    def add(self, processes: Processes, ledger: Ledger) -> None:
        """A session begins."""
        self.register()
        self._live.append(processes)
        self._ledgers.append(ledger)

    def end(self, processes: Processes, ledger: Ledger) -> None:
        """A session has ended: its counts stay."""
        if processes not in self._live:  # forked since
            return
        for process in processes:
            self._archive.absorb(process)
        self._live.remove(processes)
        self._ledgers.remove(ledger)
        for stage, who, count in ledger.rows():
            self._past[stage, who] = self._past.get((stage, who), 0) + count

    def forget(self) -> None:
        """Forgets all counts, in a forked child."""
        self._archive, self._live, self._ledgers, self._past = Archive(), [], [], {}

    def _processes(self) -> Iterator[Process]:
        yield self._archive
        for processes in list(self._live):
            yield from processes

    def _kernel(self) -> None:
        """Reads the kernel's count of faults of this process; without one, the number of recorded faults."""
        counted = process_faults()
        if counted is None:
            for processes in list(self._live):
                processes.take_kernel(0, 0)
        else:
            self._archive.kernel = [max(a, b) for a, b in zip(self._archive.kernel, counted, strict=True)]

    def _memory(self, process: Process) -> tuple[int, int] | None:
        return memory(os.getpid()) if process is self._archive else None

    def _sum_ledgers(self) -> list[tuple[str, str, int]]:
        sums = dict(self._past)
        for ledger in list(self._ledgers):
            for stage, who, count in ledger.rows():
                sums[stage, who] = sums.get((stage, who), 0) + count
        return [(stage, who, count) for (stage, who), count in sums.items()]


embedded = Embedded()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=embedded.forget)
