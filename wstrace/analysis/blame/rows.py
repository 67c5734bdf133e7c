"""Rows of a composition: who holds how many bytes, by line, function, file, package, kind or process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.bringers import OWN
from wstrace.analysis.blame.causes import Cause
from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.segments import begins
from wstrace.analysis.symbols import UNKNOWN
from wstrace.schema import FAULT_MAJOR, KINDS
from wstrace.text import base_name

_CAUSES = ("line", "function", "package")


@dataclass(slots=True)
class BlameRow:
    """A row; sizes in bytes.

    label as tables show it, whole with the full path. resident, private, shared: of the pages that are there now; pss:
    None where not known. brought: of all pages that arrived, those that are gone included; where one fault maps several
    pages, of those that are gone only its own. written: of pages that were there when a fault of this row wrote them.
    from_disk: of resident pages whose fault read from disk; a lower bound, as such a fault may have read more.
    estimated: the part of resident that may as well be another row's. reason: why no bringer is known, "" = it is.
    copied: the part of resident that this row's faults copied as a child wrote to it; loaded_by: the whole label of the
    row that had loaded most of that, "" = itself, or not known. again: of pages that this row's faults brought though
    they had been there before: churn. major: faults that read from disk; first_ns: time of the first fault, 0 = none.
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

    def as_dict(self) -> dict[str, Any]:
        """The keys of a row in JSON."""
        found = {name: getattr(self, name) for name in self.__slots__ if name not in ("label", "whole")}
        pss = None if self.pss is None else round(self.pss)
        return {"label": self.whole, **found, "pss": pss}


class Blame:
    """Tables of a composition."""

    def __init__(self, composition: Composition) -> None:
        self.of = composition
        faults = composition.history.faults
        self._first, self._second = composition.found.first, composition.found.second
        self._known = self._first >= 0
        self._order = faults.order

    @property
    def total(self) -> int:
        """Resident bytes: the sum of Rss of the processes."""
        return len(self.of.run) * self.of.page_size

    def rows(self, *views: str, sort: str = "resident") -> list[BlameRow]:
        """All rows by these views together, largest first. Each column sums to the same total in every view."""
        pages_a, pages_b, by_fault, labels = self._together(views)
        rows = self._sums(pages_a, pages_b, by_fault, labels)
        found = [row for row in rows if row.resident or row.faults or row.brought]
        same = Counter(row.label for row in found)
        for row in found:
            if same[row.label] > 1:
                row.label = row.whole
        return sorted(found, key=lambda row: (_place(row, sort), -row.resident, row.whole))

    def labels_of_faults(self, *views: str) -> tuple[NDArray[np.intp], list[BlameRow]]:
        """Of each fault the number of its label, in the order of the inputs, and the labels as empty rows."""
        _, _, by_fault, labels = self._together(views)
        return by_fault, labels

    def labels_of_pages(self, view: str) -> tuple[NDArray[np.intp], list[BlameRow]]:
        """Of each resident page the number of its label, by its first candidate, and the labels as empty rows."""
        pages, _, _, labels = self._labels(view)
        return pages, labels

    def _together(
        self, views: Sequence[str]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], list[BlameRow]]:
        """As _labels(), by several views."""
        pages_a, pages_b, by_fault, labels = self._labels(views[0])
        for view in views[1:]:
            more = self._labels(view)
            width = len(more[3])
            codes = np.unique(np.concatenate([mine * width + others for mine, others in
                                              zip((pages_a, pages_b, by_fault), more[:3], strict=True)]))  # fmt: skip
            pages_a, pages_b, by_fault = (
                codes.searchsorted(mine * width + others)
                for mine, others in zip((pages_a, pages_b, by_fault), more[:3], strict=True)
            )
            labels = [_joined(labels[code // width], more[3][code % width]) for code in codes.tolist()]
        return pages_a, pages_b, by_fault, labels

    def _labels(self, view: str) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], list[BlameRow]]:
        """Of each page the labels of its two candidates, of each fault its label, and the labels as empty rows."""
        if view in _CAUSES:
            return self._by_cause(view)
        of = self.of
        if view == "process":
            page, fault = of.column("space"), of.inputs.faults["space"]
            rows = [BlameRow(of.name_of(n), of.name_of(n)) for n in range(len(of.inputs.pids))]
        elif view == "kind":
            page, fault = of.column("kind").astype(np.intp), of.fault_kind.astype(np.intp)
            n = max(int(page.max(initial=0)), int(fault.max(initial=0)), len(KINDS) - 1) + 1
            rows = [BlameRow(name := KINDS[i if i < len(KINDS) else 0], name, kind=name) for i in range(n)]
        else:
            page, fault = of.column("file").astype(np.intp), of.fault_file.astype(np.intp)
            codes = np.unique(np.concatenate((page, fault)))
            page, fault = codes.searchsorted(page), codes.searchsorted(fault)
            names = [(of.strings[code] if code < len(of.strings) else "") or UNKNOWN for code in codes.tolist()]
            rows = [BlameRow(base_name(name), name, file=name) for name in names]
        return page, page, fault, rows

    def _by_cause(self, view: str) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], list[BlameRow]]:
        of = self.of
        causes: list[Cause] = of.causes.labels(view)  # type: ignore[arg-type]
        places: dict[str, int] = {}
        label = np.array([places.setdefault(cause.whole, len(places)) for cause in causes], np.intp)
        rows: list[BlameRow | None] = [None] * len(places)
        for cause, place in zip(causes, label.tolist(), strict=True):
            if rows[place] is None:
                rows[place] = BlameRow(*cause)
        by_fault = label[of.causes.of] if len(causes) else np.zeros(0, np.intp)
        reasons = len(rows)

        def of_pages(candidates: NDArray[np.intp]) -> NDArray[np.intp]:
            found = of.found.how.astype(np.intp)
            found += reasons
            found[self._known] = by_fault[self._order[candidates[self._known]]]
            return found

        first = of_pages(self._first)
        second = of_pages(self._second) if self._second is not self._first else first
        for how in range(int(of.found.how.max(initial=0)) + 1):
            reason = of.reason(how)
            rows.append(BlameRow(f"({reason})", f"({reason})", reason=reason))
        return first, second, by_fault, [row for row in rows if row is not None]

    def _sums(
        self, first: NDArray[np.intp], second: NDArray[np.intp], by_fault: NDArray[np.intp], labels: list[BlameRow]
    ) -> list[BlameRow]:
        of, n, size = self.of, len(labels), self.of.page_size

        def counted(mask: NDArray[np.bool_] | slice = slice(None)) -> NDArray[np.float64]:
            """Pages of each label; each of a page's two candidates has a half of it."""
            found = np.bincount(first[mask], minlength=n)
            return (found + (found if second is first else np.bincount(second[mask], minlength=n))) / 2

        faults = of.history.faults
        resident = counted() * size
        private = counted(of.private) * size
        pss = None if of.pss is None else (np.bincount(first, of.pss, n) + np.bincount(second, of.pss, n)) / 2
        major = np.zeros(len(first), np.bool_)
        major[self._known] = (faults.flags[self._first[self._known]] & FAULT_MAJOR) != 0
        from_disk = counted(major) * size
        unsure = ((first != second) & (self._first != self._second)) | (of.found.assumed & self._known)
        estimated = counted(unsure) * size
        label = by_fault[faults.order]
        counts = np.bincount(label, minlength=n)
        gone = faults.brings.copy()
        own = self._first[of.found.how == OWN]
        gone[own] = False
        brought = resident + np.bincount(label[gone], minlength=n) * size
        written = np.bincount(label[self._written()], minlength=n) * size
        copier, loader = first[of.loaded], label[of.loader]
        copied = np.bincount(copier, minlength=n) * size
        columns = {"resident": resident, "private": private, "brought": brought, "written": written,
                   "from_disk": from_disk, "faults": counts, "estimated": estimated, "copied": copied,
                   "again": np.bincount(label[faults.arrive_again()], minlength=n) * size,
                   "major": np.bincount(label[(faults.flags & FAULT_MAJOR) != 0], minlength=n),
                   "first_ns": _earliest(by_fault, of.inputs.faults["time_ns"], n)}  # fmt: skip
        for number, row in enumerate(labels):
            for name, column in columns.items():
                setattr(row, name, round(column[number].item()))
            row.shared = row.resident - row.private
            row.pss = None if pss is None else float(pss[number])
        for number, most in _most(copier, loader):
            labels[number].loaded_by = labels[most].whole if most != number else ""
        return labels

    def _written(self) -> NDArray[np.intp]:
        """Faults on pages that were there already, each page of a life once."""
        faults = self.of.history.faults
        later = np.flatnonzero(~faults.brings)
        return later[begins(faults.first.searchsorted(later, "right"))]


def _place(row: BlameRow, sort: str) -> float:
    """Where a row stands in an order: the most first, or the earliest; rows without a time last."""
    if sort == "time":
        return row.first_ns or float("inf")
    value: float = getattr(row, sort)
    return -value


def _earliest(label: NDArray[np.intp], times: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """Of each label its earliest time; 0 = none."""
    found = np.zeros(n, np.uint64)
    if len(times) and not (times[1:] >= times[:-1]).all():
        order = np.argsort(times)
        label, times = label[order], times[order]
    found[label[::-1]] = times[::-1]  # of an index that is repeated, the last value stays
    return found


def _most(groups: NDArray[np.intp], values: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Of each distinct group its most frequent value."""
    pairs, counts = np.unique(np.stack((groups, values)), axis=1, return_counts=True)
    order = np.argsort(counts, kind="stable")  # the last one of a group stays in a dict
    return list(dict(pairs[:, order].T.tolist()).items())


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
    total["pss"] = None if of.pss is None else round(float(of.pss.sum()))
    total["swapped"] = of.inputs.swapped * of.page_size
    spaces = np.unique(of.inputs.runs["space"])
    return {
        "schema": 1,
        "at": {"moment": of.inputs.moment, "time_ns": of.inputs.time_ns, "of_peak": of.inputs.of_peak},
        "pids": of.inputs.pids[spaces].tolist(),
        "complete": of.complete,
        "lost": of.lost,
        "assumed": of.assumed,
        "by": list(by),
        "total": total,
        "rows": [row.as_dict() for row in rows],
    }
