"""The strips: the pages of the largest mappings as they are at the counted moment, and who brought them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Composition, keys_of
from wstrace.analysis.inputs import mapping_rows, of_mapping
from wstrace.analysis.losses import page_of
from wstrace.analysis.segments import begins
from wstrace.schema import PAGE_EXCLUSIVE, PAGE_FILE
from wstrace.text import base_name, number
from wstrace_exporters.html.document import name, varints
from wstrace_exporters.html.pictures.timeline import Times

#: The mappings that are shown, the cells of each, and the owners that are named.
ROWS, CELLS, OWNERS = 40, 400, 250
_ABSENT, _SHARED, _FILE, _OWN = range(4)
#: A cell that is full, as the share of its pages that are there.
_FULL = 15


class _Pages:
    """The resident pages: of each its run, page number, owner and column of the timeline (0 = none, from 1 on)."""

    def __init__(self, blame: Composition, times: Times) -> None:
        of, self.runs = blame, blame.inputs.runs
        self.run, keys = keys_of(self.runs, of.page_size)
        self.page = page_of(keys)
        labels = of.past.labels("line")
        self.owner, self.labels = labels.of[of.page_cells], labels.labels
        first, faults = of.found.fault, of.history.faults
        self.column = np.zeros(len(first), np.int64)
        if times.n:
            known = first >= 0
            self.column[known] = np.clip(times.at(faults.time[first[known]]), 0, times.n - 1) + 1
        flags = self.runs["flags"]
        private, file = (flags & PAGE_EXCLUSIVE) != 0, (flags & PAGE_FILE) != 0
        self.state = np.where(~private, _SHARED, np.where(file, _FILE, _OWN))
        #: of each run its first page among all
        self.begin = np.cumsum(self.runs["pages"], dtype=np.int64) - self.runs["pages"]


def strips(blame: Composition, times: Times) -> dict[str, Any]:
    """The strips of the mappings with the most resident pages."""
    of, runs = blame, blame.inputs.runs
    known, row = mapping_rows(of.inputs.mappings, runs["mapping"])
    if not known.any():  # no pages, or in mappings that a damaged file lacks
        return {"rows": [], "owners": [], "more": ""}
    pages = _Pages(blame, times)
    new = begins(runs["space"], runs["mapping"])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(new))
    held = np.add.reduceat(runs["pages"].astype(np.int64), first)
    there = np.flatnonzero(known[first])
    chosen = there[np.argsort(-held[there], kind="stable")][:ROWS]
    drawn = [_cells(blame, pages, int(first[at]), int(last[at]), int(row[first[at]])) for at in chosen.tolist()]
    owners, names = _owners(pages, [cells for _, cells in drawn])
    found = [{**about, "cells": _packed(cells, owners)} for about, cells in drawn]
    rest = len(first) - len(chosen)
    more = f"{number(len(chosen))} of {number(len(first))} mappings, those with the most pages." if rest else ""
    return {"rows": found, "owners": names, "more": more, "page": of.page_size}


def _cells(
    blame: Composition, pages: _Pages, first: int, last: int, row: int
) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """What is known of a mapping, and (state and share, owner, column) of its cells; first, last: its runs."""
    of = blame
    size, runs, mappings = of.page_size, pages.runs, of.inputs.mappings
    start, end = (int(of_mapping(mappings, column, np.array([row]))[0]) for column in ("start", "end"))
    whole = max((end - start) // size, 1)
    n = min(CELLS, whole)
    begin = int(pages.begin[first])
    rows = np.arange(begin, int(pages.begin[last - 1] + runs["pages"][last - 1]))
    place = np.clip(pages.page[rows].astype(np.int64) - start // size, 0, whole - 1)
    cell = place * n // whole
    states = np.bincount(cell * 4 + pages.state[pages.run[rows]], minlength=4 * n).reshape(n, 4)
    size_of = np.maximum(np.diff(-(-np.arange(n + 1) * whole // n)), 1)  # pages of each cell
    full = np.clip(np.ceil(_FULL * states.sum(axis=1) / size_of), 0, _FULL).astype(np.int64)
    found = np.zeros((n, 3), np.int64)
    found[:, 0] = states.argmax(axis=1) | full << 2
    found[states.sum(axis=1) == 0] = 0
    new = begins(cell)
    found[cell[new], 1], found[cell[new], 2] = pages.owner[rows][new], pages.column[rows][new]
    code = int(of_mapping(mappings, "file", np.array([row]))[0])
    file = (of.strings[code] if code < len(of.strings) else "") or "[unknown]"
    about = {"name": name(base_name(file) or file), "process": name(of.name_of(int(runs["space"][first]))),
            "start": str(start), "size": whole * size, "resident": len(rows) * size}  # fmt: skip
    return about, found


def _owners(pages: _Pages, drawn: list[NDArray[np.int64]]) -> tuple[dict[int, int], list[str]]:
    """The numbers of the owners in the page, and their names; the last one stands for those that are not named."""
    present, counts = np.unique(np.concatenate([cells[cells[:, 0] > 0, 1] for cells in drawn]), return_counts=True)
    chosen = present[np.argsort(-counts, kind="stable")][:OWNERS].tolist()
    return {owner: at for at, owner in enumerate(chosen)}, [
        *(name(pages.labels[at][0].text) for at in chosen),
        "(another)",
    ]


def _packed(cells: NDArray[np.int64], owners: dict[int, int]) -> str:
    """Runs of equal cells: how many, and what each is."""
    cells = cells.copy()
    distinct, which = np.unique(cells[:, 1], return_inverse=True)
    cells[:, 1] = np.array([owners.get(owner, len(owners)) for owner in distinct.tolist()], np.int64)[which]
    first = np.flatnonzero(begins(*cells.T))
    return varints(np.column_stack((np.diff(first, append=len(cells)), cells[first])).ravel())
