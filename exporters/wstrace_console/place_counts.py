"""Faults by section of the page or function of the instruction. Addresses are resolved batch by batch and not kept."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.summary import OTHER
from wstrace.batch import Batch
from wstrace.interfaces import Place
from wstrace.schema import FAULT_MAJOR, NOT_RESIDENT, PAGE_FAULT, RESIDENT_PAGES
from wstrace_console.places import Places

#: pages of one batch that are looked at one by one; of a larger one each run counts where it starts
_PAGES = 1 << 22


class PlaceCounts:
    """`module!section(n)` -> minor and major faults, and still resident pages; or `module!function` -> faults.

    What lies in no function counts for its section, what in no section for its module.

    Args:
        places: what resolves the addresses.
        by: "section" = that of the page, "function" = that of the instruction.
        limit: labels that are kept.

    Attributes:
        rows: label -> [minor, major, pages]; at most `limit` labels, the rest under `[other]`.
        page_size: bytes; what the pages of a run are apart.
    """

    def __init__(self, places: Places, by: Literal["section", "function"], limit: int = 65_536) -> None:
        self.rows: dict[str, list[int]] = {}
        self.page_size = 4096
        self.by = by
        self._places, self._limit = places, limit
        self._snapshots: dict[int, tuple[tuple[int, int], dict[str, int]]] = {}  # (time, number), counts

    def add(self, batch: Batch) -> None:
        """Counts a batch of page_fault or resident rows."""
        if batch.schema.name == PAGE_FAULT.name and len(batch):
            major = (batch["flags"] & FAULT_MAJOR).astype(np.intp)
            address = "va" if self.by == "section" else "pc"
            for label, counts in self._sums(batch, address, np.stack([1 - major, major], axis=1)):
                row = self._row(label)
                row[0] += counts[0]
                row[1] += counts[1]
        elif batch.schema.name == RESIDENT_PAGES.name and self.by == "section":
            self._resident(batch)

    def top(self, n: int) -> list[dict[str, Any]]:
        """The n with the most faults, then pages: section or function, total, minor, major, still_resident_pages."""
        order = sorted(self.rows.items(), key=lambda item: (-item[1][0] - item[1][1], -item[1][2], item[0]))
        fields = ("minor", "major", "still_resident_pages")[: 3 if self.by == "section" else 2]
        return [
            {self.by: label, "total": row[0] + row[1], **dict(zip(fields, row, strict=False))}
            for label, row in order[:n]
        ]

    def _resident(self, batch: Batch) -> None:
        pid, taken = int(batch.header.get("pid", 0)), (batch.header.get("t", 0), batch.header.get("snap", 0))
        before, held = self._snapshots.get(pid, (taken, {}))
        if taken < before:
            return
        if taken > before:
            for label, n in held.items():
                self._row(label)[2] -= n  # only the last snapshot of a process counts
            held = {}
        self._snapshots[pid] = taken, held
        if "flags" in batch:
            batch = batch.take((batch["flags"] & NOT_RESIDENT) == 0)
        pages = batch["pages"].astype(np.int64)
        if pages.sum() <= _PAGES:
            first = np.repeat(np.cumsum(pages) - pages, pages)
            within = (np.arange(len(first)) - first).astype(np.uint64)
            batch = batch.take(np.repeat(np.arange(len(batch)), pages))
            start = batch["start"] + within * np.uint64(self.page_size)
            columns: dict[str, NDArray[Any]] = {**batch.columns, "start": start}
            batch = Batch(batch.schema, columns, strings=batch.strings, header=batch.header)
            pages = np.ones(len(batch), np.int64)
        for label, counts in self._sums(batch, "start", pages[:, None]):
            self._row(label)[2] += counts[0]
            held[label] = held.get(label, 0) + counts[0]

    def _sums(self, batch: Batch, address: str, values: NDArray[Any]) -> list[tuple[str, list[int]]]:
        """Each distinct label with the sums of its rows of values."""
        names = ("pc_mapping", "pc_file") if address == "pc" else ("mapping", "file")
        index, places = self._places.coded(batch, address, *names)
        codes: dict[str, int] = {}
        label = np.fromiter((codes.setdefault(self._label(p), len(codes)) for p in places), np.intp, len(places))
        rows = label[index]
        sums = np.stack([np.bincount(rows, column, len(codes)) for column in values.T], axis=1).astype(np.int64)
        return list(zip(codes, sums.tolist(), strict=True))

    def _label(self, place: Place | str) -> str:
        if isinstance(place, str):
            return place
        if self.by == "function" and place.function:
            return f"{place.module}!{place.function}"
        return str(place) if place.number else place.module

    def _row(self, label: str) -> list[int]:
        if label not in self.rows and len(self.rows) >= self._limit:
            label = OTHER
        return self.rows.setdefault(label, [0, 0, 0])
