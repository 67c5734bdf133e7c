"""Summary: counts which process, thread and module faulted which pages, by batch and in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from wstrace.analysis.place_counts import OTHER, PlaceCounts
from wstrace.analysis.process_names import ProcessNames
from wstrace.analysis.processes import Processes
from wstrace.analysis.snapshots import LastSnapshots
from wstrace.analysis.symbols import UNKNOWN, PlaceBy
from wstrace.analysis.tally import Tally, first_rows, group
from wstrace.batch import Batch, Dictionary
from wstrace.errors import WstraceError
from wstrace.schema import (
    FAULT_MAJOR,
    FAULT_OBSERVER,
    FAULT_PC_KERNEL,
    KINDS,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXIT,
    RESIDENT_PAGES,
    WRITTEN_PAGES,
)
from wstrace.text import base_name, number, plural, printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

By = Literal["file", "module", "pair", "thread", "process", "kind", "cgroup"]


class Row(NamedTuple):
    """One line of a table of faults.

    label is the name as it came from the target (print it through wstrace.text.printable). share is the part of all
    faults of the table, 0..1. key is what the label was made of: (path,), (module,), (path, module), (name, pid, tid),
    (name, pid), (kind,) or (cgroup,). role: of a process that executes the program of its parent, `worker 2 of 4711`;
    of that parent `main`; else "".
    in_all: the faults for which these stand, where only samples were recorded. In rows of estimates, which
    analysis/sampled.py makes of these, samples is what total was; else 0.
    """

    label: str
    total: int
    minor: int
    major: int
    share: float
    key: tuple[str | int, ...]
    role: str = ""
    in_all: int = 0
    samples: int = 0


class HeldPages(NamedTuple):
    """The pages that a process had in memory according to its last whole snapshot."""

    pid: int
    name: str
    pages: int


class Summary:
    """Counts faults by file, module, both, thread, process, kind and cgroup; resident and written pages by file.

    Only one thread at a time may add. Memory is bounded: a table keeps at most 65,536 keys and counts the rarest as
    `[other]`.

    Args:
        places: returns the counts by section or function, if they are available.

    Attributes:
        total, minor, major: recorded faults. in_all: what they stand for by their column `sampled`; without it, total.
        unresolved: faults whose page has no known mapping.
        kernel: faults of instructions in the kernel; observer: faults of the tracer itself.
        first_ns, last_ns: times of the first and last fault, monotonic; 0 when there was none.
        exits: processes that ended.
        strings: the Dictionary that codes point into: that of the first batch.
    """

    LIMIT = Tally.LIMIT

    def __init__(self, places: Callable[[PlaceBy], PlaceCounts] | None = None) -> None:
        self._places = places
        self.total = self.minor = self.major = self.in_all = self.unresolved = self.kernel = self.observer = 0
        self.first_ns = self.last_ns = self.exits = 0
        self.strings: Dictionary | None = None
        self._tables = {by: Tally(self.LIMIT) for by in get_args(By)}
        #: For how many more faults than themselves samples stand.
        self._more: dict[str, Tally] = {by: Tally(self.LIMIT) for by in get_args(By)}
        self._processes = Processes(self.LIMIT)  # Below, "process" means this number.
        self._names = ProcessNames(self.LIMIT)
        self._seen: set[int] = set()  # processes
        self._snapshots: LastSnapshots[Tally] = LastSnapshots(Tally, lambda tally, part: tally.add(*self._pages(part)))
        self._written = Tally(self.LIMIT)
        self._add = {
            PAGE_FAULT.name: self._page_fault,
            PROCESS.name: self._process,
            RESIDENT_PAGES.name: self._snapshots.add,
            WRITTEN_PAGES.name: self._write,
        }

    def __repr__(self) -> str:
        counted = [plural(self.total, "fault")] + [f"{number(self.major)} from disk"] * bool(self.major)
        if self.processes:
            counted.append(f"{number(self.processes)} process{'es' if self.processes > 1 else ''}")
        most = [f"most in {printable(base_name(row.label), 60)} ({number(row.total)})" for row in self.top(n=1)]
        return f"<{type(self).__name__}: {'; '.join([', '.join(counted), *most])}>"

    def add(self, batch: Batch) -> None:
        """Counts a batch of page_fault, process, resident or written rows; other streams are ignored."""
        if add := self._add.get(batch.schema.name):
            if self.strings is None:
                self.strings = batch.strings
            add(batch.recode(self.strings))

    # -- faults ------------------------------------------------------------------------------------------------------

    def _page_fault(self, batch: Batch) -> None:
        n = len(batch)
        if not n:
            return
        flags = batch["flags"]
        hard = (flags & FAULT_MAJOR) != 0
        major = int(np.count_nonzero(hard))
        self.total, self.minor, self.major = self.total + n, self.minor + n - major, self.major + major
        each = batch.columns.get("sampled")
        self.in_all += n if each is None else int(each.sum(dtype=np.uint64))
        self.kernel += int(np.count_nonzero(flags & FAULT_PC_KERNEL))
        self.observer += int(np.count_nonzero(flags & FAULT_OBSERVER))
        self._span(batch)

        whole = self._keys(batch)
        # These rows are few: a second pass over them costs less than a wider key for all rows.
        part = self._keys(batch.take(hard)) if major else {}
        for by, table in self._tables.items():
            table.add(*whole[by], *part.get(by, ()))
        if each is not None:
            for by, sums in self._keys(batch, each.astype(np.int64) - 1).items():
                self._more[by].add(*sums)
        files, counts = whole["file"]
        self.unresolved += int(counts[files == 0].sum())

    def _keys(self, batch: Batch, weights: NDArray[Any] | None = None) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
        """by -> keys of its table and their counts, or the sums of these weights; keys may repeat."""
        if "host" in batch:
            (hosts, pids, tids), of_thread = group(batch["host"], batch["pid"], batch["tid"], weights=weights)
            pids = self._processes.numbers(hosts, pids).astype(np.intp)
        else:
            (pids, tids), of_thread = group(batch["pid"], batch["tid"], weights=weights)
        (files, modules), of_pair = group(_column(batch, "file"), _column(batch, "pc_file"), weights=weights)
        (kinds,), of_kind = group(_column(batch, "kind"), weights=weights)
        (cgroups,), of_cgroup = group(_column(batch, "cgroup"), weights=weights)
        return {
            "file": (files, of_pair),
            "module": (modules, of_pair),
            "pair": (files << 32 | modules, of_pair),
            "thread": (pids << 32 | tids, of_thread),
            "process": (pids, of_thread),
            "kind": (kinds, of_kind),
            "cgroup": (cgroups, of_cgroup),
        }

    def _span(self, batch: Batch) -> None:
        if "time_ns" in batch:
            first, last = int(batch["time_ns"].min()), int(batch["time_ns"].max())
        else:
            first, last = batch.window
        self.first_ns = min(self.first_ns, first) if self.first_ns else first
        self.last_ns = max(self.last_ns, last)

    # -- other streams -----------------------------------------------------------------------------------------------

    def _process(self, batch: Batch) -> None:
        events, tids, own = batch["event"], batch["tid"], batch["tid"] == batch["pid"]
        hosts = batch.columns.get("host")
        processes, parents = (self._processes.numbers(hosts, batch[name]) for name in ("pid", "ppid"))
        self.exits += int(np.count_nonzero((events == PROCESS_EXIT) & own))
        self._seen.update(processes[own].tolist()[: max(self.LIMIT - len(self._seen), 0)])
        names = batch.columns.get("name", np.zeros(len(batch), np.uint32))
        self._names.learn(processes, parents, tids, own, events, names)

    def _write(self, batch: Batch) -> None:
        self._written.add(*self._pages(batch))

    def _pages(self, batch: Batch) -> tuple[NDArray[Any], NDArray[Any]]:
        """(file << 8 | kind, pages) of runs of pages."""
        (files, kinds), counts = group(_column(batch, "file"), _column(batch, "kind"), weights=batch["pages"])
        return files << 8 | kinds, counts

    # -- results ----------------------------------------------------------------------------------------------------

    def top(
        self, by: By | PlaceBy = "file", n: int | None = 10, *, hard: bool = False, soft: bool = False
    ) -> list[Row]:
        """The n rows with the most faults (None: all), most first, equal ones by label.

        Args:
            by: file = the page's file; module = last part of the instruction's file; pair = both; thread; process;
                kind; cgroup = the control group, `[unknown]` where none was traced; section = the section of the page;
                function = the function of the instruction.
            n: the number of rows.
            hard: count only faults that read from disk. Their time apart is not known, so that it is 0.
            soft: the same for faults that did not.

        Raises:
            WstraceError: this summary has no counts by section or function.
        """
        if by == "section" or by == "function":
            return self._top_places(by, n, hard=hard, soft=soft)
        table = self._tables[by]
        counts, other = table.counts.copy(), table.other.copy()
        counts[:, 0] -= counts[:, 1]  # (all, major) -> (minor, major)
        other[0] -= other[1]
        if hard or soft:
            counts[:, 0 if hard else 1] = other[0 if hard else 1] = 0
        sums = counts.sum(axis=1)
        chosen = np.flatnonzero(sums)
        # Modules may share a name, so all are looked at; in other tables only the candidates for the first n.
        if n and by not in ("module", "pair") and n < len(chosen):
            chosen = chosen[sums[chosen] >= np.partition(sums[chosen], -n)[-n]]
        found: dict[tuple[tuple[str | int, ...], int], list[int]] = {}
        further = {} if hard or soft else self._more[by].as_dict()
        for code, (minor, major) in zip(table.keys[chosen].tolist(), counts[chosen].tolist(), strict=True):
            # Files with the same name are one module; processes with the same name and pid belong to several hosts.
            name = self._key(by, code)
            key = name, code if by in ("process", "thread") and len(name) > 1 else 0
            values = minor, major, further.get(code, 0)
            found[key] = [a + b for a, b in zip(found.get(key, (0, 0, 0)), values, strict=True)]
        if other.any():
            values = *other.tolist(), int(self._more[by].other[0])
            before = found.get(((OTHER,), 0), (0, 0, 0))
            found[(OTHER,), 0] = [a + b for a, b in zip(before, values, strict=True)]
        whole = max(int(sums.sum() + other.sum()), 1)
        ordered = sorted(found.items(), key=lambda item: (-sum(item[1][:2]), item[0]))[:n]
        roles = self._names.roles(self._processes.pid) if by == "process" else {}
        return [
            Row(_label(by, key), n, minor, major, n / whole, key, roles.get(code, ""), n + more)
            for (key, code), (minor, major, more) in ordered
            for n in [minor + major]
        ]

    def _top_places(self, by: PlaceBy, n: int | None, *, hard: bool, soft: bool) -> list[Row]:
        if self._places is None:
            raise WstraceError(f"this summary cannot tell faults by {by}", "ask that of a session that records")
        return place_rows(self._places(by), hard=hard, soft=soft)[:n]

    @property
    def processes(self) -> int:
        """The number of processes that appear in the trace, whatever was counted of them; at most 65,536."""
        return max(len(self._seen), self.count("process"))

    @property
    def snapshots(self) -> list[HeldPages]:
        """The resident pages of each process that has a whole snapshot."""
        found = ((self._processes.number(host, pid), table) for host, pid, table in self._snapshots.by_host())
        return [
            HeldPages(self._processes.pid(process), self.name_of(process), int(table.total()[0]))
            for process, table in found
        ]

    @property
    def cut_snapshots(self) -> list[int]:
        """The processes whose only snapshot lacks a part: what they had in memory is not known."""
        return self._snapshots.cut

    @property
    def forgotten_snapshots(self) -> int:
        """How many processes' snapshots are no longer held, as there are too many: their pages are not known."""
        return self._snapshots.forgotten

    @property
    def cgroups_known(self) -> bool:
        """Whether the control group of any fault is."""
        return bool(self._tables["cgroup"].keys.any())

    def count(self, by: By) -> int:
        """The number of rows of the table, including those counted as `[other]`."""
        table = self._tables[by]
        return len(table) + table.forgotten

    def _key(self, by: By, key: int) -> tuple[str | int, ...]:
        if by in ("file", "cgroup"):
            return (self._text(key),)
        if by == "module":
            return (base_name(self._text(key)),)
        if by == "pair":
            return self._text(key >> 32), base_name(self._text(key & 0xFFFFFFFF))
        if by in ("process", "thread"):
            process, tid = (key >> 32, key & 0xFFFFFFFF) if by == "thread" else (key, 0)
            pid = self._processes.pid(process)
            if self._processes.is_shared(process):
                return (OTHER,)
            return (self.name_of(process, process if tid == pid else tid), pid, tid)[: 3 if by == "thread" else 2]
        return (KINDS[key] if key < len(KINDS) else KINDS[0],)

    def _text(self, code: int) -> str:
        return (self.strings[code] if self.strings is not None and code < len(self.strings) else "") or UNKNOWN

    def name_of(self, process: int, tid: int = 0) -> str:
        """The title of a process, else its last name, or a thread's; else of what that was forked from; or "".

        Args:
            process: its pid, on the first host of a merged trace.
            tid: the thread.
        """
        code = self._names.code(process, tid)
        return self._text(code) if code else ""

    def resident(self) -> list[tuple[str, str, int]]:
        """(file, kind, pages) of each process's last whole snapshot, most first; each counts all that it maps."""
        return self._page_rows([table for _, table in self._snapshots])

    def written(self) -> list[tuple[str, str, int]]:
        """(file, kind, pages) of all written pages that were reported, most pages first."""
        return self._page_rows([self._written])

    def _page_rows(self, tables: list[Tally]) -> list[tuple[str, str, int]]:
        pages: dict[tuple[str, str], int] = {}
        for table in tables:
            for key, n in zip(table.keys.tolist(), table.counts[:, 0].tolist(), strict=True):
                name = (self._text(key >> 8), str(self._key("kind", key & 0xFF)[0]))
                pages[name] = pages.get(name, 0) + n
            if table.other[0]:
                pages[OTHER, "other"] = pages.get((OTHER, "other"), 0) + int(table.other[0])
        return sorted(((file, kind, n) for (file, kind), n in pages.items()), key=lambda row: (-row[2], row[0]))

    def as_dict(
        self, n: int | None = 10, estimated: Callable[[list[Row]], list[Row]] = lambda rows: rows
    ) -> dict[str, object]:
        """The whole summary for JSON: counts, `top` (by -> rows) with at most n rows per table, resident, written.

        estimated: makes estimates of rows of samples.
        """
        return {
            **{name: getattr(self, name) for name in ("total", "minor", "major", "unresolved", "kernel", "observer")},
            **{name: getattr(self, name) for name in ("first_ns", "last_ns", "exits")},
            "top": {
                by: [_as_dict(by, row) for row in first_rows(estimated(self.top(by, None)), n)] for by in get_args(By)
            },
            "snapshots": [one._asdict() for one in self.snapshots],
            "resident": [dict(zip(("file", "kind", "pages"), row, strict=True)) for row in self.resident()[:n]],
            "written": [dict(zip(("file", "kind", "pages"), row, strict=True)) for row in self.written()[:n]],
        }


def place_rows(places: PlaceCounts, *, hard: bool = False, soft: bool = False) -> list[Row]:
    """Faults by section or function, most first."""
    found = {label: (0 if hard else minor, 0 if soft else major) for label, (minor, major) in places.faults().items()}
    whole = max(sum(map(sum, found.values())), 1)
    in_all = places.in_all()
    return [
        Row(label, sum(pair), *pair, sum(pair) / whole, (label,), in_all=in_all[label])
        for label, pair in sorted(found.items(), key=lambda item: (-sum(item[1]), item[0]))
        if sum(pair)
    ]


def _column(batch: Batch, name: str) -> NDArray[Any]:
    """The column, or zeros (unknown) where no enricher added it."""
    return batch[name] if name in batch else np.zeros(len(batch), np.uint8)


def _label(by: By, key: tuple[str | int, ...]) -> str:
    if len(key) == 1:
        return str(key[0])
    return f"{key[0]} by {key[1]}" if by == "pair" else f"{key[0] or UNKNOWN} ({key[-1]})"


def _as_dict(by: By, row: Row) -> dict[str, Any]:
    fields = {"pair": ("file", "module"), "thread": ("name", "pid", "tid"), "process": ("name", "pid")}.get(by, (by,))
    named = dict(zip(fields, row.key, strict=False)) | ({"role": row.role} if row.role else {})
    counted = {"total": row.total, "minor": row.minor, "major": row.major, "share": round(row.share, 6)}
    counted |= {"samples": row.samples} if row.samples else {}
    return {**named, **counted}
