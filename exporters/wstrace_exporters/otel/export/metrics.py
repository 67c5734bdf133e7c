"""The metrics: the SDK's readers collect what the tables of processes and containers hold, as do the application's.

No instrument and no provider stands between a table and the data points: a provider takes 30 KB and more, and there
may be a thousand resources. Nothing is called per record.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation, get_meter_provider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from wstrace.ledger import Ledger
from wstrace.plugins import own_platform
from wstrace_exporters.otel import names
from wstrace_exporters.otel.export.processes import TYPES, Values, memory
from wstrace_exporters.otel.export.resource import of_tracer
from wstrace_exporters.otel.transport.providers import scope

#: metric -> its unit, whether it only grows, and what it says
METRICS: dict[str, tuple[str, bool, str]] = {
    names.PAGING_FAULTS: ("{fault}", True, "page faults by the kernel's own counter"),
    names.PAGE_FAULTS: ("{fault}", True, "page faults recorded, by module and kind"),
    names.WRITTEN: ("{page}", True, "pages written since the last reset, added up"),
    names.WORKING_SET: ("{page}", False, "pages in physical memory"),
    names.MEMORY_USAGE: ("By", False, "physical memory in use"),
    names.MEMORY_VIRTUAL: ("By", False, "committed virtual memory"),
    names.RECORDS: ("{record}", True, "records by stage of the ledger"),
    names.CPU_TIME: ("s", True, "CPU time of the tracer"),
    names.CONTAINER_PAGING_FAULTS: ("{fault}", True, "page faults"),
    names.POD_PAGING_FAULTS: ("{fault}", True, "page faults"),
    names.CGROUP_PAGING_FAULTS: ("{fault}", True, "page faults"),
}
#: stages of the ledger that are not ever-growing counts of records
_NOT_COUNTED = frozenset({"sampled", "unaccounted"})
#: series that ended sessions may leave behind in an application; counts of further ones are kept under `other`
MAX_PAST = 1024

#: a resource, the wall time from which its values count, and these
Row = tuple[Resource, int, Values]


def of_ledger(ledger: Ledger) -> Values:
    """What was recorded, and lost at which stage."""
    return Counter({(names.RECORDS, ((names.STAGE, stage), (names.WHO, who))): count
                    for stage, who, count in ledger.rows() if stage not in _NOT_COUNTED})  # fmt: skip


def tracer_row(ledger: Ledger) -> Callable[[], Row]:
    """A function that returns the row of this process: the ledger, its CPU time and memory."""
    resource, began = of_tracer(), time.time_ns()

    def row() -> Row:
        found, used, own = of_ledger(ledger), os.times(), memory(os.getpid())
        found[names.CPU_TIME, ((names.CPU_MODE, "user"),)] = used.user  # type: ignore[assignment]
        found[names.CPU_TIME, ((names.CPU_MODE, "system"),)] = used.system  # type: ignore[assignment]
        own.pop((names.MEMORY_VIRTUAL, ()), None)
        found.update(own)
        return resource, began, found

    return row


class Collection:
    """What one of the SDK's readers collects: all values, or of those that only grow what came since its last call.

    rows: returns the resources with their values. cumulative: whether it is all.
    """

    def __init__(self, rows: Callable[[], Iterable[Row]], cumulative: bool) -> None:
        self._rows, self._cumulative = rows, cumulative
        self._held: dict[tuple[Resource, int], Values] = {}
        self._last = time.time_ns()

    def __call__(self, *_: Any, **__: Any) -> MetricsData:
        """The metrics of all resources now."""
        now, held, found = time.time_ns(), dict[tuple[Resource, int], Values](), []
        about = InstrumentationScope(names.SCOPE, version("wstrace"), names.SCHEMA_URL)
        for resource, began, values in self._rows():
            before: Values = Counter()
            if not self._cumulative:
                held[resource, began], before = values, self._held.get((resource, began), before)
                began = self._last
            if metrics := _metrics(values, before, (began, now), self._cumulative):
                scopes = [ScopeMetrics(about, metrics, names.SCHEMA_URL)]
                found.append(ResourceMetrics(resource, scopes, names.SCHEMA_URL))
        self._held, self._last = held, now
        return MetricsData(found)


def _metrics(values: Values, before: Values, span: tuple[int, int], cumulative: bool) -> list[Metric]:
    points: dict[str, list[NumberDataPoint]] = {}
    for key, n in values.items():
        metric, attributes = key
        grows = METRICS[metric][1]
        if cumulative or not grows or n != before[key]:
            n -= before[key] if grows else 0
            points.setdefault(metric, []).append(NumberDataPoint(dict(attributes), *span, n))
    found = []
    for metric, some in points.items():
        unit, grows, about = METRICS[metric]
        way = AggregationTemporality.CUMULATIVE if cumulative or not grows else AggregationTemporality.DELTA
        found.append(Metric(metric, about, unit, Sum(some, way, grows)))
    return found


class Embedded:
    """The metrics of an application that embeds wstrace: on its global meter, registered once, for all its sessions.

    Counts of sessions that ended stay, so that counters never go back. A forked child starts at zero: its own kernel
    counter, no session, no history.
    """

    def __init__(self) -> None:
        self._registered = False
        self.forget()

    def forget(self) -> None:
        """Called at first and in a forked child: nothing was counted."""
        self._past: Values = Counter()
        self._live: list[Callable[[], Values]] = []

    def register(self) -> None:
        """Registers the instruments on the global meter. Idempotent."""
        if not self._registered:
            self._registered = True
            meter = scope(get_meter_provider(), "meter")
            for name, (unit, grows, about) in METRICS.items():
                make = meter.create_observable_counter if grows else meter.create_observable_up_down_counter
                make(name, [partial(self._observe, name)], unit, about)

    def begin(self, values: Callable[[], Values]) -> None:
        """A session begins, which has these values."""
        self.register()
        self._live.append(values)

    def end(self, values: Callable[[], Values]) -> None:
        """It has ended: what only grows stays."""
        if values not in self._live:  # forked since
            return
        self._live.remove(values)
        for key, n in values().items():
            metric, attributes = key
            if metric == names.PAGE_FAULTS and key not in self._past and len(self._past) >= MAX_PAST:
                key = metric, (attributes[0], (names.FILE_PATH, names.OTHER), (names.KIND, names.OTHER))
            if METRICS[metric][1]:
                self._past[key] += n

    def _observe(self, metric: str, _: CallbackOptions) -> list[Observation]:
        found = Counter(self._past)
        for values in list(self._live):
            found.update(values())
        if counted := _process_faults():  # by the kernel, not only while a session ran
            found = Counter({key: n for key, n in found.items() if key[0] != names.PAGING_FAULTS})
        found.update(counted)
        found.update(memory(os.getpid()))
        return [Observation(n, dict(attributes)) for (name, attributes), n in found.items() if name == metric]


def _process_faults() -> Values:
    """The page faults of this process by the system's counter, by type; on Windows, one number for both types."""
    try:
        resource: Any = import_module("resource")
    except ImportError:
        platform = own_platform()
        this = platform.process(os.getpid()) if platform is not None else None
        return Counter() if this is None else Counter({(names.PAGING_FAULTS, ()): this.faults})
    used = resource.getrusage(resource.RUSAGE_SELF)
    counts = zip(TYPES, (used.ru_minflt, used.ru_majflt), strict=True)
    return Counter({(names.PAGING_FAULTS, (kind,)): n for kind, n in counts})


embedded = Embedded()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=embedded.forget)
