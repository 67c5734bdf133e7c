"""Counts faults and pages by section of the page or function of the instruction, resolving addresses per batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.snapshots import LastSnapshots
from wstrace.analysis.symbols import PlaceBy, Symbolizer, label_of
from wstrace.analysis.tally import NO_SAMPLE
from wstrace.batch import Batch
from wstrace.places import Place
from wstrace.schema import FAULT_MAJOR, PAGE_FAULT, RESIDENT_PAGES

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of pages of one batch that are resolved singly; in a larger batch, each run counts where it starts.
_PAGES = 1 << 22
OTHER = "[other]"


class PlaceCounts:
    """`module!section(n)` -> minor and major faults, and still resident pages; or `module!function` -> faults.

    An address in no function counts for its section, and one in no section for its module.

    Args:
        symbolizer: resolves addresses to names.
        by: "section" = the section of the page, "function" = the function of the instruction.
        limit: the number of labels that are kept; the rest counts under `[other]`.

    Attributes:
        page_size: bytes in a page, which is the distance between the pages of a run.
        unnamed: (module, why) -> faults whose section or readable function cannot be known for that reason.
    """

    def __init__(self, symbolizer: Symbolizer, by: PlaceBy, limit: int = 65_536) -> None:
        self.page_size = 4096
        self.by = by
        self._symbolizer, self._limit = symbolizer, limit
        self._faults: dict[str, list[int]] = {}
        self.unnamed: dict[tuple[str, str], int] = {}
        self._snapshots: LastSnapshots[dict[str, int]] = LastSnapshots(dict, self._resident)

    def add(self, batch: Batch) -> None:
        """Counts a batch of page_fault or resident rows."""
        if batch.schema.name == PAGE_FAULT.name and len(batch):
            major = (batch["flags"] & FAULT_MAJOR).astype(np.intp)
            each = batch.columns.get("sampled")
            more = np.zeros(len(batch), np.int64) if each is None else each.astype(np.int64) - 1
            address = "va" if self.by == "section" else "pc"
            values = np.stack([1 - major, major, more], axis=1)
            for label, sums in self._sums(batch, address, values, explain=True):
                counts = self._faults.setdefault(self._bounded(label, self._faults), [0, 0, 0])
                for i, n in enumerate(sums):
                    counts[i] += n
        elif batch.schema.name == RESIDENT_PAGES.name and self.by == "section":
            self._snapshots.add(batch)

    def faults(self) -> dict[str, tuple[int, int]]:
        """label -> (minor, major) faults."""
        return {label: (counts[0], counts[1]) for label, counts in self._faults.items()}

    def in_all(self) -> dict[str, int]:
        """label -> the faults for which its own stand: more than these where only samples were recorded."""
        return {label: sum(counts) for label, counts in self._faults.items()}

    def resident(self) -> dict[str, int]:
        """label -> pages of the last whole snapshot of each process; empty by function."""
        pages: dict[str, int] = {}
        for _, counted in self._snapshots:
            for label, n in counted.items():
                pages[label] = pages.get(label, 0) + n
        return pages

    def top(self, n: int | None, estimated: Mapping[str, tuple[int, int, int]] | None = None) -> list[dict[str, Any]]:
        """The n with the most faults, then pages: section or function, total, minor, major, still_resident_pages.

        Args:
            n: the number of rows.
            estimated: label -> minor, major and samples of rows of samples, instead of the counts.
        """
        faults, pages = self.faults(), self.resident()
        faults = faults if estimated is None else {label: row[:2] for label, row in estimated.items()}
        rows = {label: (*faults.get(label, (0, 0)), pages.get(label, 0)) for label in {**faults, **pages}}
        rest = [(NO_SAMPLE, rows.pop(NO_SAMPLE))] if NO_SAMPLE in rows else []
        order = sorted(rows.items(), key=lambda item: (-item[1][0] - item[1][1], -item[1][2], item[0]))
        fields = ("minor", "major", "still_resident_pages")[: 3 if self.by == "section" else 2]
        return [
            {self.by: label, "total": row[0] + row[1], **dict(zip(fields, row, strict=False))}
            | ({"samples": estimated[label][2]} if estimated and label in estimated else {})
            for label, row in [*order[:n], *rest]
        ]

    def _resident(self, held: dict[str, int], batch: Batch) -> None:
        pages = batch["pages"].astype(np.int64)
        if pages.sum() <= _PAGES:
            first = np.repeat(np.cumsum(pages) - pages, pages)
            within = (np.arange(len(first)) - first).astype(np.uint64)
            batch = batch.take(np.repeat(np.arange(len(batch)), pages))
            start = batch["start"] + within * np.uint64(self.page_size)
            columns: dict[str, NDArray[Any]] = {**batch.columns, "start": start}
            batch = Batch(batch.schema, columns, strings=batch.strings, snapshot=batch.snapshot)
            pages = np.ones(len(batch), np.int64)
        for label, (n,) in self._sums(batch, "start", pages[:, None]):
            label = self._bounded(label, held)
            held[label] = held.get(label, 0) + n

    def _sums(
        self, batch: Batch, address: str, values: NDArray[Any], *, explain: bool = False
    ) -> list[tuple[str, list[int]]]:
        """Sums the rows of `values` by distinct label; `explain` also counts the rows whose name is missing."""
        names = ("pc_mapping", "pc_file") if address == "pc" else ("mapping", "file")
        index, places = self._symbolizer.coded(batch, address, *names)
        if explain:
            self._explain(index, places)
        codes: dict[str, int] = {}
        label = np.fromiter(
            (codes.setdefault(label_of(place, self.by), len(codes)) for place in places), np.intp, len(places)
        )
        rows = label[index]
        sums = np.stack([np.bincount(rows, column, len(codes)) for column in values.T], axis=1).astype(np.int64)
        return list(zip(codes, sums.tolist(), strict=True))

    def _explain(self, index: NDArray[np.intp], places: Sequence[Place | str]) -> None:
        rows: NDArray[np.intp] | None = None
        for number, place in enumerate(places):
            if isinstance(place, str) or not place.why or (self.by == "section" and place.number):
                continue
            rows = np.bincount(index, minlength=len(places)) if rows is None else rows
            key = place.module, place.why
            if key not in self.unnamed and len(self.unnamed) >= self._limit:
                key = OTHER, place.why
            self.unnamed[key] = self.unnamed.get(key, 0) + int(rows[number])

    def _bounded(self, label: str, labels: dict[str, Any]) -> str:
        return label if label in labels or len(labels) < self._limit else OTHER
