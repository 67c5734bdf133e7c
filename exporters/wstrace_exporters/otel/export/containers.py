"""Faults by container: each container or pod is a Resource of its own, in bounded memory; the rest is `other`.

A backend knows a container by `container.id` and a pod by `k8s.pod.uid`: the Collector's processor k8sattributes adds
all else that Kubernetes knows. Neither is ever an attribute of a data point, where each would be a series more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from wstrace.batch import Batch, Dictionary
from wstrace.cgroup_names import container_id, pod_uid
from wstrace_exporters.otel import names
from wstrace_exporters.otel.export import resource
from wstrace_exporters.otel.export.processes import TYPES, Counts, Values, faults_by

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

#: Places (file, kind, type) that are counted apart in a container.
_MAX_PLACES = 128
#: A container that has not faulted for so many seconds gives its place to a new one.
_IDLE_SECONDS = 600.0
#: (container id, pod uid, path of the cgroup), each "" where there is none
Key = tuple[str, str, str]
_OTHER: Key = ("", "", "")


class Container(Counts):
    """A container, a pod's own cgroup, any other cgroup, or `other`: all that found no room.

    key: all "" for `other`. began_ns: wall time from which it counts. seen: when it faulted last, seconds.
    """

    def __init__(self, key: Key, strings: Dictionary, modules: int) -> None:
        super().__init__(strings, modules, _MAX_PLACES)
        self.key, self.began_ns, self.seen = key, time.time_ns(), time.monotonic()

    @cached_property
    def resource(self) -> Resource:
        """Its Resource."""
        return resource.of_container(*self.key)

    def values(self) -> Values:
        """Its metrics: the semantic conventions have one of all faults for each kind of resource."""
        container, pod, path = self.key
        name = names.POD_PAGING_FAULTS if pod else names.CGROUP_PAGING_FAULTS
        found = super().values()
        for major, kind in enumerate(TYPES):
            metric = names.CONTAINER_PAGING_FAULTS if container or not path else name
            found[metric, (kind,)] = self.recorded(major)
        return found


class Containers:
    """The table of containers. One thread adds, others collect.

    limit: containers with a Resource of their own. modules: files with a series of their own, per container.
    """

    def __init__(self, strings: Dictionary, *, limit: int, modules: int) -> None:
        self._strings, self._limit, self._modules = strings, limit, modules
        self._rows: dict[Key, Container] = {}
        self._of_code: dict[int, Container] = {}

    def __iter__(self) -> Iterator[Container]:
        return iter(list(self._rows.values()))

    def add(self, batch: Batch) -> None:
        """Counts a batch of page faults, each for as many as it stands for."""
        now = time.monotonic()
        for code, places in faults_by("cgroup", batch):
            row = self._row(code, now)
            row.seen = now
            row.count(*places)

    def _row(self, code: int, now: float) -> Container:
        """The row of a cgroup, by the code of its path; `other` where there is no room."""
        if code not in self._of_code:
            path = self._strings[code] if 0 < code < len(self._strings) else ""
            container, pod = container_id(path), pod_uid(path)
            key = (container, pod, "" if container else path)
            if key not in self._rows and key != _OTHER and len(self._rows.keys() - {_OTHER}) >= self._limit:
                longest = min((row for row in self if row.key != _OTHER), key=lambda row: row.seen)
                if now - longest.seen < _IDLE_SECONDS:
                    key = _OTHER
                else:
                    del self._rows[longest.key]
                    self._of_code = {at: row for at, row in self._of_code.items() if row is not longest}
            if key not in self._rows:
                self._rows[key] = Container(key, self._strings, self._modules)
            self._of_code[code] = self._rows[key]
        return self._of_code[code]
