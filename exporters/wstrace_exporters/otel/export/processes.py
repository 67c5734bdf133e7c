"""What is known of every traced process, in bounded memory: fault counts by file, kind and type, pages, and lifetime.

Batches are counted by columns here; the instruments in metrics.py and the spans read the counts when they need them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.moments import LastSnapshots
from wstrace.analysis.tally import group
from wstrace.batch import Batch, Dictionary
from wstrace.plugins import own_platform
from wstrace.schema import FAULT_MAJOR, KINDS, PAGE_SHARED
from wstrace_exporters.otel import names

#: (file code, kind, major): the key of a count
Place = tuple[int, int, int]
#: the file code for all modules past the bounds; no Dictionary issues that many codes
OTHER_FILE = 0xFFFF_FFFF
#: limit on keys that are counted separately per process; faults at further ones count as OTHER_FILE
MAX_PLACES = 8192


class Process:
    """A traced process, or `other`: all processes past the bound, together.

    Attributes:
        faults: place -> faults recorded.
        written: kind -> pages written, in all intervals together.
        kernel: (minor, major) as the system counts them; never decreases.
        places: how many places are counted separately.
    """

    def __init__(self, pid: int, strings: Dictionary, *, modules: int) -> None:
        self.pid, self.parent, self.name = pid, 0, ""
        self.strings = strings
        self.started_ns = self.ended_ns = 0  # monotonic
        self.code: int | None = None
        self.faults: dict[Place, int] = {}
        self.written: dict[int, int] = {}
        self.kernel = [0, 0]
        self.places = MAX_PLACES
        self._modules = modules
        self._slots: dict[int, dict[Place, int]] = {}  # file -> the counts of its places when it got its own series
        self._snapshots: LastSnapshots[dict[tuple[int, int], int]] = LastSnapshots(dict, _count_pages)

    def recorded(self, major: int) -> int:
        """Recorded page faults of that type."""
        return sum(count for (_, _, m), count in list(self.faults.items()) if m == major)

    def count(self, files: NDArray[Any], kinds: NDArray[Any], majors: NDArray[Any], counts: NDArray[Any]) -> None:
        """Adds counts at places; arrays of shape (k,)."""
        faults = self.faults
        for place in zip(files.tolist(), kinds.tolist(), majors.tolist(), counts.tolist(), strict=True):
            key = place[:3]
            if key not in faults and len(faults) >= self.places:
                key = (OTHER_FILE, 0, place[2])
            faults[key] = faults.get(key, 0) + place[3]

    def series(self) -> dict[Place, int]:
        """Counts by place for an OpenTelemetry backend: the modules with the most faults; the rest under OTHER_FILE.

        A module that has a series keeps it, and the series starts with what is counted from then on. So every series
        only grows, `other` too, and together they are everything that was recorded.
        """
        faults = dict(self.faults)
        by_file: dict[int, int] = {}
        for (file, _, _), count in faults.items():
            by_file[file] = by_file.get(file, 0) + count
        by_file.pop(OTHER_FILE, None)
        first = not self._slots
        for file in sorted(by_file, key=lambda f: by_file[f], reverse=True)[: self._modules]:
            if file not in self._slots and len(self._slots) < 2 * self._modules:
                self._slots[file] = {} if first else {p: n for p, n in faults.items() if p[0] == file}
        found: dict[Place, int] = {}
        for place, count in faults.items():
            slot = self._slots.get(place[0])
            before = count if slot is None else slot.get(place, 0)
            if before < count:
                found[place] = count - before
            if before:
                rest = (OTHER_FILE, 0, place[2])
                found[rest] = found.get(rest, 0) + before
        return found

    def named_series(self) -> dict[tuple[str, str, int], int]:
        """The same, keyed by (path, kind in words, major)."""
        found: dict[tuple[str, str, int], int] = {}
        for (file, kind, major), count in self.series().items():
            key = (file_name(self.strings, file), kind_name(kind), major)
            found[key] = found.get(key, 0) + count
        return found

    @property
    def resident(self) -> dict[tuple[int, int], int]:
        """(kind, shared) -> pages of the last whole snapshot; for `other` the sum over its processes."""
        pages: dict[tuple[int, int], int] = {}
        for _, counted in self._snapshots:
            for key, n in counted.items():
                pages[key] = pages.get(key, 0) + n
        return pages

    def add_resident(self, batch: Batch) -> None:
        """Adds a part of a snapshot; the parts count once the last one has arrived."""
        self._snapshots.add(batch)

    def add_written(self, batch: Batch) -> None:
        """Pages written since the last reset."""
        if len(batch):
            kinds = batch["kind"] if "kind" in batch else np.zeros(len(batch), np.uint8)
            (kind,), pages = group(kinds, weights=batch["pages"])
            for key, n in zip(kind.tolist(), pages.tolist(), strict=True):
                self.written[key] = self.written.get(key, 0) + n


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


def _count_pages(pages: dict[tuple[int, int], int], batch: Batch) -> None:
    """Adds the pages of resident runs, by (kind, shared)."""
    kinds = batch["kind"] if "kind" in batch else np.zeros(len(batch), np.uint8)
    shared = (batch["flags"] & PAGE_SHARED) != 0 if "flags" in batch else np.zeros(len(batch), np.bool_)
    (kind, share), counts = group(kinds, shared, weights=batch["pages"])
    for key, n in zip(zip(kind.tolist(), share.tolist(), strict=True), counts.tolist(), strict=True):
        pages[key] = pages.get(key, 0) + n


class Processes:
    """All traced processes; at most `limit` have a row of their own, the rest is `other` (pid 0).

    Args:
        strings: the session's names.
        limit: processes with a row of their own; 0 = all in one row, as a service's own telemetry needs it.
        modules: files with a series of their own, per process.
    """

    def __init__(self, strings: Dictionary, *, limit: int, modules: int) -> None:
        self.strings, self.limit, self.modules = strings, limit, modules
        self.roots: tuple[int, ...] = ()
        self._rows: dict[int, Process] = {}
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Process]:
        return iter(list(self._rows.values()))

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, pid: int) -> Process:
        """The row of a process, created at first sight; `other` past the bound."""
        row = self._rows.get(pid)
        if row is not None:
            return row
        with self._lock:
            own = sum(1 for known in self._rows if known)
            pid = pid if own < self.limit else 0
            if pid not in self._rows:
                self._rows[pid] = Process(pid, self.strings, modules=self.modules)
            return self._rows[pid]

    def add_faults(self, batch: Batch) -> None:
        """Counts a batch of page faults, each for as many as it stands for: a step per distinct place."""
        for pid, places in faults_by("pid", batch):
            self.get(pid).count(*places)

    def recorded(self, major: int) -> int:
        """Recorded page faults of that type, of all processes together."""
        return sum(process.recorded(major) for process in self)

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

    def forget(self) -> None:
        """In a forked child: resets the counts, and waits for no lock that another thread held."""
        self._lock = threading.Lock()
        self._rows = {}


def file_name(strings: Dictionary, code: int) -> str:
    """The name of a file code for a backend: its path, `other` or `unknown`, of bounded length and printable."""
    from wstrace.text import printable, well_formed

    if code == OTHER_FILE:
        return names.OTHER
    if not 0 < code < len(strings):
        return names.UNKNOWN
    return well_formed(printable(strings[code][: names.MAX_VALUE]))[: names.MAX_VALUE]


def kind_name(kind: int) -> str:
    """The kind of a mapping in words."""
    return KINDS[kind] if 0 <= kind < len(KINDS) else KINDS[0]


def memory(pid: int) -> tuple[int, int] | None:
    """(resident, virtual) bytes of a live process, None when it has ended or cannot be read."""
    platform = own_platform()
    found = platform.process(pid or os.getpid()) if platform is not None else None
    return (found.resident, found.virtual) if found is not None else None
