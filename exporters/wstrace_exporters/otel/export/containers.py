"""Faults by container: each container or pod is a Resource of its own, in bounded memory; the rest is `other`.

A backend knows a container by `container.id` and a pod by `k8s.pod.uid`: the Collector's processor k8sattributes adds
all else that Kubernetes knows. Neither is ever an attribute of a data point, where each would be a series more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wstrace.batch import Batch, Dictionary
from wstrace.cgroup_names import container_id, pod_uid
from wstrace_exporters.otel import names
from wstrace_exporters.otel.export import resource
from wstrace_exporters.otel.export.processes import Process, faults_by
from wstrace_exporters.otel.transport.providers import version

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import NumberDataPoint, ResourceMetrics
    from opentelemetry.sdk.resources import Resource

#: Places (file, kind, type) that are counted apart, in all containers together: about 20 MB.
_MAX_PLACES = 65_536
#: A container that has not faulted for so many seconds gives its place to a new one.
_IDLE_SECONDS = 600.0
_OTHER = ("", "", "")


class Container:
    """A container, a pod's own cgroup, any other cgroup, or `other`: all that found no room.

    Attributes:
        key: (container id, pod uid, path of the cgroup), each "" where there is none; all "" for `other`.
        counts: its faults by place. began_ns: wall time from which they count. seen: when it faulted last, seconds.
    """

    def __init__(self, key: tuple[str, str, str], strings: Dictionary, modules: int) -> None:
        self.key, self.counts = key, Process(0, strings, modules=modules)
        self.began_ns, self.seen = time.time_ns(), time.monotonic()
        self._resource: Resource | None = None

    @property
    def resource(self) -> Resource:
        """Its Resource."""
        if self._resource is None:
            self._resource = resource.of_container(*self.key)
        return self._resource

    @property
    def paging_faults(self) -> str:
        """The name of the metric of all its faults: the semantic conventions have one for each kind of resource."""
        container, pod, path = self.key
        if container or not path:
            return names.CONTAINER_PAGING_FAULTS
        return names.POD_PAGING_FAULTS if pod else names.CGROUP_PAGING_FAULTS


class Containers:
    """The table of containers. One thread adds, others collect.

    Args:
        strings: the session's names.
        limit: containers with a Resource of their own.
        modules: files with a series of their own, per container.
    """

    def __init__(self, strings: Dictionary, *, limit: int, modules: int) -> None:
        self._strings, self._limit, self._modules = strings, limit, modules
        self._rows: dict[tuple[str, str, str], Container] = {}
        self._of_code: dict[int, Container] = {}
        self._places = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, batch: Batch) -> None:
        """Counts a batch of page faults, each for as many as it stands for."""
        now = time.monotonic()
        for code, places in faults_by("cgroup", batch):
            row = self._row(code, now)
            row.seen, held = now, len(row.counts.faults)
            row.counts.places = held + max(0, _MAX_PLACES - self._places)
            row.counts.count(*places)
            self._places += len(row.counts.faults) - held

    def _row(self, code: int, now: float) -> Container:
        row = self._of_code.get(code)
        if row is None:
            path = self._strings[code] if 0 < code < len(self._strings) else ""
            container, pod = container_id(path), pod_uid(path)
            key = (container, pod, "" if container else path)
            row = self._rows.get(key) or self._new(key, path, now)
            self._of_code[code] = row
        return row

    def _new(self, key: tuple[str, str, str], path: str, now: float) -> Container:
        """A row for a cgroup; `other` where there is no room."""
        if key != _OTHER and sum(1 for known in self._rows if known != _OTHER) >= self._limit:
            longest = min((row for row in self._rows.values() if row.key != _OTHER), key=lambda row: row.seen)
            if now - longest.seen < _IDLE_SECONDS:
                key = _OTHER
            else:
                self._forget(longest)
        if key not in self._rows:
            self._rows[key] = Container(key, self._strings, self._modules)
        return self._rows[key]

    def _forget(self, row: Container) -> None:
        del self._rows[row.key]
        self._of_code = {code: known for code, known in self._of_code.items() if known is not row}
        self._places -= len(row.counts.faults)

    def collector(self, cumulative: bool) -> Callable[[], list[ResourceMetrics]]:
        """A function that returns the metrics of all containers: of all faults, or of those since its last call."""
        held: dict[tuple[Any, ...], int] = {}
        last = time.time_ns()

        def collect() -> list[ResourceMetrics]:
            nonlocal held, last
            now, fresh = time.time_ns(), dict[tuple[Any, ...], int]()
            found = []
            for row in list(self._rows.values()):
                each = _values(row)
                if not cumulative:
                    fresh |= {(row.began_ns, *key): n for key, n in each.items()}
                    each = {key: n - held.get((row.began_ns, *key), 0) for key, n in each.items()}
                    each = {key: n for key, n in each.items() if n}
                if each:
                    found.append(_metrics(row.resource, each, (row.began_ns if cumulative else last, now), cumulative))
            held, last = fresh, now
            return found

        return collect


#: (metric, type of the fault, file, kind): what is one point
_Key = tuple[str, str, str, str]


def _values(row: Container) -> dict[_Key, int]:
    """The faults of a container: all by type, and by type, file and kind."""
    types = (names.MINOR, names.MAJOR)
    found = {(row.paging_faults, word, "", ""): row.counts.recorded(major) for major, word in enumerate(types)}
    for (file, kind, major), count in row.counts.named_series().items():
        found[names.PAGE_FAULTS, types[major], file, kind] = count
    return found


def _metrics(of: Resource, values: dict[_Key, int], span: tuple[int, int], cumulative: bool) -> ResourceMetrics:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Metric,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    points: dict[str, list[NumberDataPoint]] = {}
    for (metric, word, file, kind), n in values.items():
        attributes = {names.FAULT_TYPE: word} | ({names.FILE_PATH: file, names.KIND: kind} if file else {})
        points.setdefault(metric, []).append(NumberDataPoint(attributes, *span, n))
    way = AggregationTemporality.CUMULATIVE if cumulative else AggregationTemporality.DELTA
    made = [
        Metric(name, _ABOUT.get(name, "page faults"), "{fault}", Sum(some, way, is_monotonic=True))
        for name, some in points.items()
    ]
    scope = InstrumentationScope(names.SCOPE, version(), names.SCHEMA_URL)
    return ResourceMetrics(of, [ScopeMetrics(scope, made, names.SCHEMA_URL)], names.SCHEMA_URL)


_ABOUT = {names.PAGE_FAULTS: "page faults by file and kind"}
