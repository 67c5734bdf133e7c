"""The order: the place of each fault in its file by its time, as a grid of points; and what had arrived by then."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis import tally
from wstrace.analysis.blame.rows import Blame
from wstrace.analysis.losses import page_of
from wstrace.schema import FAULT_MAJOR, KIND_FILE, KIND_SHIFT, OFFSET_UNKNOWN
from wstrace.text import base_name, number, size
from wstrace_exporters.html.encode import array, name
from wstrace_exporters.html.pictures.timeline import Times

#: The files that have a band, and the points of each band: a fault is drawn where another one is, once.
BANDS, COLUMNS, ROWS = 8, 640, 48
#: A band is by offset where its pages fill this part of it, else by their rank among those that were touched.
_DENSE = 1 / 8
#: What lies behind is taken for an address: files are smaller.
_ADDRESSES = 1 << 44


def order(blame: Blame, times: Times) -> dict[str, Any]:
    """The picture: bands, and bits (the lowest first) by band, column and row."""
    of, cells = blame.of, blame.of.past.fault_cells
    per_file = np.bincount(cells.file, cells.faults) if len(cells.file) else np.zeros(0)
    files = np.argsort(-per_file, kind="stable")[:BANDS]
    files = files[per_file[files] > 0]
    if not times.n or not len(files):
        return {"bands": [], "note": ""}
    band, page, column, hard = _points(blame, times, files)
    bands, rows = [], np.zeros(len(page), np.int64)
    for at, file in enumerate(files.tolist()):
        mine = band == at
        text = (of.strings[file] if file < len(of.strings) else "") or "[unknown]"
        rows[mine], words = _rows(page[mine], of.page_size)
        bands.append({"name": name(base_name(text) or text), "range": words, "faults": int(mine.sum())})
    bit = (band * COLUMNS + column * COLUMNS // times.n) * ROWS + rows
    drawn, n = len(band), len(of.history.faults)
    note = f"{number(drawn)} of {number(n)} faults: those in the {len(files)} files with the most." if drawn < n else ""
    return {"bands": bands, "note": note, "columns": COLUMNS, "rows": ROWS, "points": _bits(bit, len(bands)),
            "disk": _bits(bit[hard], len(bands)) if hard.any() else ""}  # fmt: skip


def _points(blame: Blame, times: Times, files: NDArray[np.intp]) -> tuple[NDArray[Any], ...]:
    """Of each fault in these files: the number of the file, the page in it, the column, whether it read from disk."""
    past, faults, mappings = blame.of.past, blame.of.history.faults, blame.of.inputs.mappings
    number_of = np.full(int(files.max()) + 2, -1)
    number_of[files] = np.arange(len(files))
    band = number_of[np.minimum(past.file[faults.order], len(number_of) - 1)]
    rows = np.flatnonzero(band >= 0)
    # of each mapping of a file, how many pages lie between its addresses and their places in the file; last = not known
    start, offset = ((mappings[name] // np.uint64(blame.of.page_size)).astype(np.int64) for name in ("start", "offset"))
    in_file = (mappings["flags"] >> KIND_SHIFT & 15 == KIND_FILE) & (mappings["offset"] < np.uint64(OFFSET_UNKNOWN))
    apart = np.append(np.where(in_file, offset - start, 0), 0)[past.mapping[faults.order[rows]]]
    page = (page_of(faults.key[rows]).astype(np.int64) + apart).astype(np.uint64)
    column = np.clip(times.at(faults.time[rows]), 0, times.n - 1)
    return band[rows], page, column, (faults.flags[rows] & FAULT_MAJOR) != 0


def _rows(pages: NDArray[np.uint64], page_size: int) -> tuple[NDArray[np.int64], str]:
    """The row of each page of a band, from below, and what the band shows."""
    distinct = tally.distinct(pages)
    if not len(distinct):
        return np.zeros(0, np.int64), ""
    low, high = int(distinct[0]), int(distinct[-1])
    if len(distinct) >= _DENSE * (high - low + 1):
        words = f"{size(low * page_size)} to {size((high + 1) * page_size)}" if high * page_size < _ADDRESSES else \
            f"{size((high - low + 1) * page_size)} from {low * page_size:#x}"  # fmt: skip
        return (pages - np.uint64(low)).astype(np.int64) * ROWS // (high - low + 1), words
    rank = distinct.searchsorted(pages)
    return rank * ROWS // len(distinct), f"{number(len(distinct))} pages in order of their address"


def _bits(which: NDArray[np.intp], bands: int) -> str:
    found = np.zeros(bands * COLUMNS * ROWS, np.bool_)
    found[which] = True
    return array(np.packbits(found, bitorder="little"))
