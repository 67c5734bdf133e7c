"""The instruments: observable counters over the tables in processes.py, read when a backend collects.

They are registered on a meter of a provider of our own (one per process) or of the application's. Nothing is called per
record, and a forked child has its own tables.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from wstrace_exporters.otel import names
from wstrace_exporters.otel.export.processes import Process, kind_name, memory

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

Values = Iterator[tuple[dict[str, Any], float]]

#: stages of the ledger that are not ever-growing counts of records
_NOT_COUNTED = frozenset({"sampled", "unaccounted"})


class ProcessInstruments:
    """The metrics of traced processes.

    Args:
        meter: where they are registered.
        processes: returns the processes that belong to the meter's resource.
        kernel: updates the counters of Process.kernel.
        memory_of: returns (resident, virtual) bytes of a live process, None for one that is not on this machine.
        label: attributes that distinguish processes of one resource; none where each has its own resource.
    """

    def __init__(
        self,
        meter: Meter,
        processes: Callable[[], Iterable[Process]],
        *,
        kernel: Callable[[], None],
        memory_of: Callable[[Process], tuple[int, int] | None] = lambda process: memory(process.pid),
        label: Callable[[Process], dict[str, Any]] = lambda process: {},
    ) -> None:
        self._processes, self._label = processes, label
        self._kernel, self._memory_of = kernel, memory_of
        counter, level = meter.create_observable_counter, meter.create_observable_up_down_counter
        fault = "page faults"
        counter(names.PAGING_FAULTS, [self._read(self._paging)], "{fault}", f"{fault} by the kernel's own counter")
        counter(names.PAGE_FAULTS, [self._read(self._faults)], "{fault}", f"{fault} recorded, by module and kind")
        counter(names.WRITTEN, [self._read(self._written)], "{page}", "pages written since the last reset, added up")
        level(names.WORKING_SET, [self._read(self._working_set)], "{page}", "pages in physical memory")
        level(names.MEMORY_USAGE, [self._read(self._resident_bytes)], "By", "physical memory in use")
        level(names.MEMORY_VIRTUAL, [self._read(self._virtual_bytes)], "By", "committed virtual memory")

    def _read(self, values: Callable[[Process], Values]) -> Callable[[CallbackOptions], list[Observation]]:
        def observe(_: CallbackOptions) -> list[Observation]:
            return observations(
                ({**attributes, **self._label(process)}, value)
                for process in self._processes()
                for attributes, value in values(process)
            )

        return observe

    def _paging(self, process: Process) -> Values:
        self._kernel()
        yield {names.FAULT_TYPE: names.MINOR}, process.kernel[0]
        yield {names.FAULT_TYPE: names.MAJOR}, process.kernel[1]

    def _faults(self, process: Process) -> Values:
        for (file, kind, major), count in process.named_series().items():
            yield {
                names.FAULT_TYPE: names.MAJOR if major else names.MINOR, names.FILE_PATH: file, names.KIND: kind
            }, count  # fmt: skip

    def _written(self, process: Process) -> Values:
        for kind, pages in list(process.written.items()):
            yield {names.KIND: kind_name(kind)}, pages

    def _working_set(self, process: Process) -> Values:
        for (kind, shared), pages in list(process.resident.items()):
            yield {names.KIND: kind_name(kind), names.SHARED: bool(shared)}, pages

    def _resident_bytes(self, process: Process) -> Values:
        if (found := self._memory_of(process)) is not None:
            yield {}, found[0]

    def _virtual_bytes(self, process: Process) -> Values:
        if (found := self._memory_of(process)) is not None:
            yield {}, found[1]


class TracerInstruments:
    """The metrics of the tracer itself: what was recorded, and lost at which stage; with own_usage its CPU and memory.

    Args:
        meter: where they are registered.
        rows: returns (stage, who, count) of the loss ledger.
        own_usage: False inside an application, whose process, CPU and memory these would be.
    """

    def __init__(self, meter: Meter, rows: Callable[[], list[tuple[str, str, int]]], *, own_usage: bool) -> None:
        self._rows = rows
        meter.create_observable_counter(names.RECORDS, [self._records], "{record}", "records by stage of the ledger")
        if own_usage:
            meter.create_observable_counter(names.CPU_TIME, [self._cpu], "s", "CPU time of the tracer")
            meter.create_observable_up_down_counter(
                names.MEMORY_USAGE, [self._memory], "By", "physical memory of the tracer"
            )

    def _records(self, _: CallbackOptions) -> list[Observation]:
        return observations(
            ({names.STAGE: stage, names.WHO: who}, count)
            for stage, who, count in self._rows()
            if stage not in _NOT_COUNTED
        )

    def _cpu(self, _: CallbackOptions) -> list[Observation]:
        used = os.times()
        return observations([({names.CPU_MODE: "user"}, used.user), ({names.CPU_MODE: "system"}, used.system)])

    def _memory(self, _: CallbackOptions) -> list[Observation]:
        found = memory(os.getpid())
        return observations([] if found is None else [({}, found[0])])


def observations(values: Iterable[tuple[dict[str, Any], float]]) -> list[Observation]:
    """Observations with distinct attributes: those with equal ones are added up, as a backend would keep only one."""
    from opentelemetry.metrics import Observation

    sums: dict[tuple[tuple[str, Any], ...], float] = {}
    for attributes, value in values:
        key = tuple(sorted(attributes.items()))
        sums[key] = sums.get(key, 0) + value
    return [Observation(value, dict(key)) for key, value in sums.items()]


class KernelCounts:
    """The system's own counters of all targets together; reads them at most four times a second."""

    def __init__(self, read: Callable[[], tuple[int, int]], share: Callable[[int, int], None]) -> None:
        self._read, self._share, self._asked = read, share, -1.0

    def __call__(self) -> None:
        """Updates the table."""
        now = time.monotonic()
        if now - self._asked >= 0.25:
            self._asked = now
            self._share(*self._read())

    def now(self) -> None:
        """Updates it without the limit on rate: at the end, when the counts are complete."""
        self._asked = -1.0
        self()
