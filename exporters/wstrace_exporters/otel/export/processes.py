"""What is known of every traced process, in bounded memory: fault counts by file, kind and type, pages, and lifetime.

Batches are counted by columns here; metrics, events and spans read the counts when they need them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.moments import LastSnapshots
from wstrace.analysis.tally import group
from wstrace.batch import Batch, Dictionary
from wstrace.plugins import own_platform
from wstrace.schema import FAULT_MAJOR, KINDS, PAGE_SHARED
from wstrace.text import printable, well_formed
from wstrace_exporters.otel import names

#: (file code, kind, major): the key of a count
Place = tuple[int, int, int]
#: (metric, attributes) -> value
Values = Counter[tuple[str, tuple[tuple[str, Any], ...]]]
#: the file code for all modules past the bounds; no Dictionary issues that many codes
OTHER_FILE = 0xFFFF_FFFF
#: limit on keys that are counted separately per process; faults at further ones count as OTHER_FILE
MAX_PLACES = 8192
#: the attribute of a minor fault, and of a major one
TYPES = (names.FAULT_TYPE, names.MINOR), (names.FAULT_TYPE, names.MAJOR)


class Counts:
    """Page faults by place.

    modules: files with a series of their own. places: how many places are counted separately. faults: place -> faults
    recorded.
    """

    def __init__(self, strings: Dictionary, modules: int, places: int = MAX_PLACES) -> None:
        self.faults: dict[Place, int] = {}
        self._strings, self._modules, self._places = strings, modules, places
        self._slots: dict[int, dict[Place, int]] = {}  # file -> the counts of its places when it got its own series

    def recorded(self, major: int) -> int:
        """Recorded page faults of that type."""
        return sum(count for (_, _, m), count in list(self.faults.items()) if m == major)

    def count(self, files: NDArray[Any], kinds: NDArray[Any], majors: NDArray[Any], counts: NDArray[Any]) -> None:
        """Adds counts at places; arrays of shape (k,)."""
        faults = self.faults
        for *place, n in zip(files.tolist(), kinds.tolist(), majors.tolist(), counts.tolist(), strict=True):
            key: Any = tuple(place)
            if key not in faults and len(faults) >= self._places:
                key = (OTHER_FILE, 0, key[2])
            faults[key] = faults.get(key, 0) + n

    def series(self) -> dict[Place, int]:
        """Counts by place for an OpenTelemetry backend: the modules with the most faults; the rest under OTHER_FILE.

        A module that has a series keeps it, and the series starts with what is counted from then on. So every series
        only grows, `other` too, and together they are everything that was recorded.
        """
        faults = dict(self.faults)
        by_file: Counter[int] = Counter()
        for (file, _, _), count in faults.items():
            by_file[file] += count
        by_file.pop(OTHER_FILE, None)
        first = not self._slots
        for file, _ in by_file.most_common(self._modules):
            if file not in self._slots and len(self._slots) < 2 * self._modules:
                self._slots[file] = {} if first else {p: n for p, n in faults.items() if p[0] == file}
        found: Counter[Place] = Counter()
        for place, count in faults.items():
            before = self._slots.get(place[0], faults).get(place, 0)
            if before < count:
                found[place] = count - before
            if before:
                found[OTHER_FILE, 0, place[2]] += before
        return found

    def values(self) -> Values:
        """Its metrics: the series by type, file and kind."""
        found: Values = Counter()
        for (file, kind, major), count in self.series().items():
            where = (names.FILE_PATH, file_name(self._strings, file)), (names.KIND, kind_name(kind))
            found[names.PAGE_FAULTS, (TYPES[major], *where)] += count
        return found


class Process(Counts):
    """A traced process, or `other`: all processes past the bound, together.

    started_ns, ended_ns: on the records' clock, 0 = not known. code: its exit code, None = not known. written: kind ->
    pages written, in all intervals together. kernel: (minor, major) as the system counts them; never decreases.
    resource, logger: of OpenTelemetry; None until its exec has named it.
    """

    def __init__(self, pid: int, strings: Dictionary, modules: int) -> None:
        super().__init__(strings, modules)
        self.pid, self.parent, self.name = pid, 0, ""
        self.started_ns = self.ended_ns = 0
        self.code: int | None = None
        self.written: Counter[int] = Counter()
        self.kernel = [0, 0]
        self.resource: Any = None
        self.logger: Any = None
        self._snapshots: LastSnapshots[Counter[tuple[int, int]]] = LastSnapshots(Counter, _count_pages)

    @property
    def resident(self) -> Counter[tuple[int, int]]:
        """(kind, shared) -> pages of the last whole snapshot; for `other` the sum over its processes."""
        pages: Counter[tuple[int, int]] = Counter()
        for _, counted in self._snapshots:
            pages.update(counted)
        return pages

    def add_resident(self, batch: Batch) -> None:
        """Adds a part of a snapshot; the parts count once the last one has arrived."""
        self._snapshots.add(batch)

    def add_written(self, batch: Batch) -> None:
        """Pages written since the last reset."""
        if len(batch):
            (kind,), pages = group(_kinds(batch), weights=batch["pages"])
            self.written.update(dict(zip(kind.tolist(), pages.tolist(), strict=True)))

    def values(self) -> Values:
        """Its metrics, but for those that the system tells of a live process."""
        found = super().values()
        for major, kind in enumerate(TYPES):
            found[names.PAGING_FAULTS, (kind,)] = self.kernel[major]
        for number, pages in list(self.written.items()):
            found[names.WRITTEN, ((names.KIND, kind_name(number)),)] += pages
        for (number, shared), pages in self.resident.items():
            found[names.WORKING_SET, ((names.KIND, kind_name(number)), (names.SHARED, bool(shared)))] += pages
        return found


def faults_by(column: str, batch: Batch) -> Iterator[tuple[int, list[NDArray[Any]]]]:
    """For each value of a column of page faults: the files, kinds, types and counts at each place, shape (k,)."""
    if not len(batch):
        return
    zero = np.zeros(len(batch), np.uint8)
    major = (batch["flags"] & FAULT_MAJOR) != 0 if "flags" in batch else zero
    owner, file, kind = (batch.columns.get(name, zero) for name in (column, "file", "kind"))
    (owners, *places), counts = group(owner, file, kind, major, weights=batch.columns.get("sampled"))
    cuts = np.flatnonzero(np.diff(owners)) + 1
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(owners)], strict=True):
        yield int(owners[low]), [one[low:high] for one in (*places, counts)]


def _kinds(batch: Batch) -> NDArray[Any]:
    return batch["kind"] if "kind" in batch else np.zeros(len(batch), np.uint8)


def _count_pages(pages: Counter[tuple[int, int]], batch: Batch) -> None:
    """Adds the pages of resident runs, by (kind, shared)."""
    shared = (batch["flags"] & PAGE_SHARED) != 0 if "flags" in batch else np.zeros(len(batch), np.bool_)
    (kind, share), counts = group(_kinds(batch), shared, weights=batch["pages"])
    for *key, n in zip(kind.tolist(), share.tolist(), counts.tolist(), strict=True):
        pages[key[0], key[1]] += n


class Processes:
    """All traced processes; at most `limit` have a row of their own, the rest is `other` (pid 0). One thread adds.

    limit: processes with a row of their own. modules: files with a series of their own, per process.
    """

    def __init__(self, strings: Dictionary, *, limit: int, modules: int) -> None:
        self.strings, self._limit, self._modules = strings, limit, modules
        self.roots: tuple[int, ...] = ()
        self._rows: dict[int, Process] = {}

    def __iter__(self) -> Iterator[Process]:
        return iter(list(self._rows.values()))

    def get(self, pid: int) -> Process:
        """The row of a process, created at first sight; `other` past the bound."""
        if pid not in self._rows and len(self._rows.keys() - {0}) >= self._limit:
            pid = 0
        if pid not in self._rows:
            self._rows[pid] = Process(pid, self.strings, self._modules)
        return self._rows[pid]

    def add_faults(self, batch: Batch) -> None:
        """Counts a batch of page faults, each for as many as it stands for: a step per distinct place."""
        for pid, places in faults_by("pid", batch):
            self.get(pid).count(*places)

    def take_kernel(self, minor: int, major: int) -> None:
        """Distributes the totals of the system's own counters among the processes.

        They count a tree of processes. Every process but the first root gets at least what was recorded of it. What the
        kernel counted and no record names belongs to the root, which has waited for its children.
        """
        rows = list(self)
        root = next((row for row in rows if row.pid in self.roots), rows[0] if rows else None)
        for kind, counted in enumerate((minor, major)):
            others = 0
            for row in rows:
                if row is not root:
                    row.kernel[kind] = max(row.kernel[kind], row.recorded(kind))
                    others += row.kernel[kind]
            if root is not None:
                root.kernel[kind] = max(root.kernel[kind], root.recorded(kind), counted - others)


def clean(text: str) -> str:
    """A text from outside as an attribute value: printable, UTF-8, of bounded length."""
    return well_formed(printable(text[: names.MAX_VALUE]))[: names.MAX_VALUE]


def file_name(strings: Dictionary, code: int) -> str:
    """The name of a file code for a backend: its path, `other` or `unknown`, of bounded length and printable."""
    if code == OTHER_FILE:
        return names.OTHER
    return clean(strings[code]) if 0 < code < len(strings) else names.UNKNOWN


def kind_name(kind: int) -> str:
    """The kind of a mapping in words."""
    return KINDS[kind] if 0 <= kind < len(KINDS) else KINDS[0]


def memory(pid: int) -> Values:
    """The metrics of the memory of a live process, in bytes; none when it has ended or cannot be read."""
    platform = own_platform()
    found = platform.process(pid or os.getpid()) if platform is not None else None
    if found is None:
        return Counter()
    return Counter({(names.MEMORY_USAGE, ()): found.resident, (names.MEMORY_VIRTUAL, ()): found.virtual})
