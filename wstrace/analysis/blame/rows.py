"""Rows of a composition: who holds how many bytes, by line, function, file, package, kind or process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.arrival import REASONS
from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.sums import Sums, sums_at
from wstrace.analysis.filter import kind_numbers
from wstrace.analysis.frames import Frame
from wstrace.analysis.segments import distinct
from wstrace.analysis.symbols import UNKNOWN
from wstrace.errors import UsageError
from wstrace.schema import KINDS
from wstrace.text import base_name

_CAUSES = ("line", "function", "package", "stack", "thread")
_NEVER = np.uint64((1 << 64) - 1)


@dataclass(slots=True)
class BlameRow:
    """A row; sizes in bytes.

    label: as tables show it, whole with the full path. resident, private, shared: of the pages that are there now; pss:
    None where not known. brought: of all pages that arrived, those that are gone included; where one fault maps several
    pages, of those that are gone only its own. written: of pages that were there when a fault of this row wrote them.
    from_disk: of resident pages whose fault read from disk; a lower bound, as such a fault may have read more.
    estimated: the part of resident of which a rule and not a record decided. reason: why no owner is known, "" = it is.
    copied: the part of resident that this row's faults copied as a child wrote to it; loaded_by: the whole label of the
    row that had loaded most of that, "" = itself, or not known. again: of pages that this row's faults brought though
    they had been there before: churn. major: faults that read from disk; first_ns: time of the first fault, 0 = none.
    samples: how many sampled stacks the row rests on. in_all: the faults that the recorded ones stand for.
    """

    label: str
    whole: str
    file: str = ""
    line: int = 0
    function: str = ""
    package: str = ""
    kind: str = ""
    reason: str = ""
    resident: int = 0
    private: int = 0
    shared: int = 0
    pss: float | None = None
    brought: int = 0
    written: int = 0
    from_disk: int = 0
    faults: int = 0
    estimated: int = 0
    copied: int = 0
    loaded_by: str = ""
    again: int = 0
    major: int = 0
    first_ns: int = 0
    samples: int = 0
    in_all: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The keys of a row in JSON."""
        found = {name: getattr(self, name) for name in self.__slots__ if name not in ("label", "whole")}
        pss = None if self.pss is None else round(self.pss)
        return {"label": self.whole, **found, "pss": pss}


class Cells(NamedTuple):
    """What is counted by several views together, of each combination that any fault or page has.

    labels: of each view its labels, as empty rows. of: of each cell the number of its label in each view, shape
    (n, views). sums: the numbers of a BlameRow by name, each of shape (n,). number: of each cell its number in
    Blame.labels().
    """

    labels: list[list[BlameRow]]
    of: NDArray[np.intp]
    sums: dict[str, NDArray[Any]]
    number: NDArray[np.intp]


class Blame:
    """Tables of a composition.

    Views are line, function, package, file (of the page), kind, process and cgroup (a fault is told by the one that its
    thread was in, a resident page by the one in which its process last faulted), and of a composition with whole stacks
    stack and thread.

    Args:
        composition: whose pages they count.
        kinds: the kinds of memory that they count, as `heap`; () = all.

    Raises:
        UsageError: there is no such kind.
    """

    def __init__(self, composition: Composition, kinds: Sequence[str] = ()) -> None:
        self.of, self.kinds = composition, kinds
        self._kinds = kind_numbers(kinds)
        self._joined: dict[tuple[str, ...], Labels] = {}

    @property
    def total(self) -> int:
        """Resident bytes: the sum of Rss of the processes, of the kinds of memory that are counted."""
        runs = self.of.inputs.runs
        pages = runs["pages"][np.isin(runs["kind"], self._kinds)] if self._kinds else runs["pages"]
        return int(pages.sum(dtype=np.uint64)) * self.of.page_size

    @property
    def pss(self) -> int | None:
        """The same in proportional shares; None where it is not known how many processes share the pages."""
        known = [row.pss for row in self.rows("kind") if row.pss is not None]
        return None if self.of.pss is None else round(sum(known))

    @property
    def sums(self) -> Sums:
        """What the processes have in memory together."""
        inputs = self.of.inputs
        pids = inputs.pids[np.unique(inputs.runs["space"])].tolist()
        return sums_at(self.of.info, pids, inputs.runs["time"], self.total, self.pss,
                       all_kinds=not self.kinds, at_peak=inputs.moment == "peak")  # fmt: skip

    def rows(self, *views: str, sort: str = "resident") -> list[BlameRow]:
        """All rows by these views together, largest first. Each column sums to the same total in every view."""
        labels = self.labels(*views)
        told = self._of_kinds(labels) if self._kinds else labels
        rows = self._filled(told, labels.joined())
        found = [row for row in rows if row.resident or row.faults or row.brought]
        same = Counter(row.label for row in found)
        for row in found:
            if same[row.label] > 1 or views == ("process",):  # beside another key there is no room for the role
                row.label = row.whole
        return sorted(found, key=lambda row: (_place(row, sort), -row.resident, row.whole))

    def cells(self, *views: str) -> Cells:
        """The numbers by these views together, as columns: exact, so that they sum to those of rows()."""
        labels = self.labels(*views)
        sums = self._sums(self._of_kinds(labels) if self._kinds else labels)
        n = labels.n
        some = np.flatnonzero((sums["resident"] != 0) | (sums["faults"] != 0) | (sums["brought"] != 0))
        some = some[some < n]
        return Cells(labels.views, labels.of[some], {name: column[some] for name, column in sums.items()}, some)

    @property
    def frames(self) -> Mapping[str, Sequence[Frame]]:
        """The whole label of a stack -> its frames, innermost first, once cells() has told any by `stack`."""
        return self.of.past.causes.frames

    def _of_kinds(self, labels: Labels) -> Labels:
        """The labels, and one more of what is of no kind that is counted."""
        of, n = self.of, labels.n
        left_out = ~np.isin(of.inputs.runs["kind"][of.page_cells.run], self._kinds)
        of_pages = np.where(left_out, n, labels.of_pages)
        of_faults = np.where(np.isin(of.past.fault_cells.kind, self._kinds), labels.of_faults, n)
        return labels._replace(of_pages=of_pages, of_faults=of_faults, n=n + 1)

    def labels_of_faults(self, *views: str) -> tuple[NDArray[np.intp], list[BlameRow]]:
        """Of each fault the number of its label, in the order of the inputs, and the labels as empty rows."""
        found = self.labels(*views)
        return found.of_faults[self.of.past.fault_cells.of], found.joined()

    def labels_of_pages(self, view: str) -> tuple[NDArray[np.intp], list[BlameRow]]:
        """Of each resident page the number of its label, and the labels as empty rows."""
        found = self._labels(view)
        return found.of_pages[self.of.page_cells.of], found.joined()

    def labels(self, *views: str) -> Labels:
        """The labels by these views together."""
        if views in self._joined:
            return self._joined[views]
        found = self._labels(views[0])
        for view in views[1:]:
            more = self._labels(view)
            width = more.n
            codes = np.unique(np.concatenate([mine * width + others for mine, others in
                                              zip(found[:2], more[:2], strict=True)]))  # fmt: skip
            of_pages, of_faults = (
                codes.searchsorted(mine * width + others) for mine, others in zip(found[:2], more[:2], strict=True)
            )
            of = np.column_stack((found.of[codes // width], more.of[codes % width]))
            by_sample, samples = found.by_sample | more.by_sample, np.maximum(found.samples, more.samples)
            found = Labels(of_pages, of_faults, len(codes), [*found.views, *more.views], of, by_sample, samples)
        if len(views) > 1:  # the rows of one view alone are filled in place, and not those of several
            self._joined[views] = found
        return found

    def _labels(self, view: str) -> Labels:
        """The labels of a view."""
        if view in ("stack", "thread") and not self.of.past.whole_stacks:
            raise UsageError(f"no rows by {view} were asked for", "use trace.blame(threads=True)")
        if view in _CAUSES:
            return self._by_cause(view)
        of, faults = self.of, self.of.past.fault_cells
        run = of.page_cells.run
        if view == "process":
            page, fault = of.inputs.runs["space"][run], faults.space
            roles = {n: f", {role}" for n, role in of.inputs.roles.items()}
            names = [of.name_of(n) for n in range(len(of.inputs.pids))]
            rows = [BlameRow(name, name + roles.get(n, "")) for n, name in enumerate(names)]
        elif view == "kind":
            page, fault = of.inputs.runs["kind"][run].astype(np.intp), faults.kind
            n = max(int(page.max(initial=0)), int(fault.max(initial=0)), len(KINDS) - 1) + 1
            rows = [BlameRow(name := KINDS[i if i < len(KINDS) else 0], name, kind=name) for i in range(n)]
        else:
            runs, cgroups = of.inputs.runs, of.inputs.cgroups.astype(np.intp)
            by_file = view == "file"
            moved = cgroups[faults.space] if faults.cgroup is None else faults.cgroup
            page, fault = (runs["file"], faults.file) if by_file else (cgroups[runs["space"]], moved)
            codes, both = np.unique(np.concatenate((page[run], fault)), return_inverse=True)
            page, fault = both[: len(run)], both[len(run) :]
            names = [(of.strings[code] if code < len(of.strings) else "") or UNKNOWN for code in codes.tolist()]
            rows = [BlameRow(base_name(name), name, file=name) if by_file else BlameRow(name, name) for name in names]
        return _labels(page, fault, rows, np.zeros(len(page), np.bool_), np.zeros(len(fault), np.intp))

    def _by_cause(self, view: str) -> Labels:
        of = self.of
        label, causes = of.past.causes.numbered(view)  # type: ignore[arg-type]
        rows = [BlameRow(**cause._asdict()) for cause in causes]
        cells = of.page_cells
        known = cells.cause >= 0
        of_pages = len(rows) - cells.cause
        of_pages[known] = label[cells.cause[known]]
        for how in range(len(REASONS)):
            reason = of.reason(how)
            rows.append(BlameRow(f"({reason})", f"({reason})", reason=reason))
        estimated, samples = of.past.causes.estimated(view), of.samples(view)
        by_sample = np.zeros(len(known), np.bool_)
        by_sample[known] = estimated[cells.cause[known]]
        faults = of.past.fault_cells
        n = np.bincount(faults.of[samples], minlength=len(faults.cause))
        return _labels(of_pages, label[faults.cause], rows, by_sample, n)

    def _sums(self, told: Labels) -> dict[str, NDArray[Any]]:
        """The numbers of each label, but those that are not known."""
        of_pages, of_faults, n = told[:3]
        of, size = self.of, self.of.page_size
        pages, faults = of.page_cells, of.past.fault_cells

        def counted(amount: NDArray[Any]) -> NDArray[np.float64]:
            return np.bincount(of_pages, amount, n).astype(np.float64)

        def of_label(amount: NDArray[Any]) -> NDArray[np.float64]:
            return np.bincount(of_faults, amount, n).astype(np.float64)

        resident = counted(pages.pages) * size
        pss = None if of.pss is None else counted(of.pss[pages.run] * pages.pages)
        gone = of_label(of.gone) * size
        copier, _, copies = of.copies
        columns: dict[str, NDArray[Any]] = {
            "resident": resident,
            "private": counted(pages.pages * of.private[pages.run]) * size,
            "brought": resident + gone,
            "written": of_label(faults.written) * size,
            "from_disk": counted(pages.pages * pages.major) * size,
            "faults": of_label(faults.faults),
            "in_all": of_label(faults.in_all),
            "estimated": counted(pages.pages * (pages.estimated | told.by_sample)) * size,
            "copied": np.bincount(of_pages[copier], copies, n) * size,
            "again": of_label(faults.again) * size,
            "major": of_label(faults.major),
            "samples": of_label(told.samples),
            "first_ns": _earliest(of_faults, faults.first_ns, n),
        }
        return columns if pss is None else {**columns, "pss": pss}

    def _filled(self, told: Labels, rows: list[BlameRow]) -> list[BlameRow]:
        """The rows with their numbers; told may have one more label, of what they do not count."""
        columns = self._sums(told)
        pss = columns.pop("pss", None)
        for name, column in columns.items():
            for row, value in zip(rows, column.tolist(), strict=False):
                setattr(row, name, round(value))
        for number, row in enumerate(rows):
            row.shared = row.resident - row.private
            row.pss = None if pss is None else float(pss[number])
        copier, loader, copies = self.of.copies
        for number, most in _most(told.of_pages[copier], told.of_faults[loader], copies):
            if number < len(rows) > most:
                rows[number].loaded_by = rows[most].whole if most != number else ""
        return rows


class Labels(NamedTuple):
    """The labels of a view: of each cell of pages and of faults.

    n: how many labels there are. views: of each view that they join its labels as empty rows; of: of each label its
    number in each view, shape (n, views). by_sample: of each cell of pages, whether its label is that of a sample which
    stands for its fault. samples: of each cell of faults, how many of them stand for others.
    """

    of_pages: NDArray[np.intp]
    of_faults: NDArray[np.intp]
    n: int
    views: list[list[BlameRow]]
    of: NDArray[np.intp]
    by_sample: NDArray[np.bool_]
    samples: NDArray[np.intp]

    def joined(self) -> list[BlameRow]:
        """The labels as empty rows."""
        return [reduce(_joined, (labels[at] for labels, at in zip(self.views, whose, strict=True)))
                for whose in self.of.tolist()]  # fmt: skip


def _labels(of_pages: NDArray[np.intp], of_faults: NDArray[np.intp], rows: list[BlameRow],
            by_sample: NDArray[np.bool_], samples: NDArray[np.intp]) -> Labels:  # fmt: skip
    """The labels of one view, whose empty rows are given."""
    numbers = np.arange(len(rows))[:, None]
    return Labels(of_pages, of_faults, len(rows), [rows], numbers, by_sample, samples)


def _place(row: BlameRow, sort: str) -> float:
    """Where a row stands in an order: the most first, or the earliest; rows without a time last."""
    if sort == "time":
        return row.first_ns or float("inf")
    value: float | None = getattr(row, sort)
    return -(value or 0)


def _earliest(label: NDArray[np.intp], times: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """Of each label its earliest time; 0 = none."""
    found = np.full(n, _NEVER, np.uint64)
    np.minimum.at(found, label, times)
    found[found == _NEVER] = 0
    return found


def _most(groups: NDArray[np.intp], values: NDArray[np.intp], amounts: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Of each distinct group its most frequent value."""
    rows, which = distinct(groups, values)
    order = np.argsort(np.bincount(which, amounts, len(rows)), kind="stable")  # the last one of a group stays in a dict
    return list(dict(zip(groups[rows[order]].tolist(), values[rows[order]].tolist(), strict=True)).items())


def _joined(one: BlameRow, other: BlameRow) -> BlameRow:
    values = {name: getattr(one, name) or getattr(other, name) for name in ("file", "line", "function", "package",
                                                                            "kind", "reason")}  # fmt: skip
    return BlameRow(f"{one.label}  {other.label}", f"{one.whole}  {other.whole}", **values)


def as_dict(blame: Blame, by: Sequence[str], sort: str = "resident") -> dict[str, Any]:
    """The composition for JSON: `schema` 1; rows sum to the total in every column."""
    of = blame.of
    rows = blame.rows(*by, sort=sort)
    names = ("resident", "private", "shared", "brought", "written", "from_disk", "faults", "estimated", "copied",
             "again", "major")  # fmt: skip
    total: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) for name in names}
    sums = blame.sums
    total["pss"] = sums.pss
    total["swapped"] = of.inputs.swapped * of.page_size
    spaces = np.unique(of.inputs.runs["space"])
    return {
        "schema": 1,
        "at": {
            "moment": of.inputs.moment,
            "time_ns": of.inputs.time_ns,
            "of_peak": of.inputs.of_peak,
            "not_looked_at": of.inputs.pids[of.inputs.unseen].tolist(),
        },
        "pids": of.inputs.pids[spaces].tolist(),
        "complete": of.complete,
        "lost": of.lost,
        "stacks_lost": of.past.stacks_lost,
        "assumed": of.assumed,
        "by": list(by),
        "total": total,
        "sums": {"rss_sum": sums.rss_sum, "pss": sums.pss, "distinct": sums.distinct, "why": sums.why},
        "rows": [row.as_dict() for row in rows],
    }
