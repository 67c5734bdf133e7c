"""A working set as the cells of a table: strips of residency, protections, and one line per run of pages."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.schema import (
    PAGE_COPY_ON_WRITE,
    PAGE_EXECUTE,
    PAGE_GUARD,
    PAGE_HUGE,
    PAGE_LARGE,
    PAGE_LOCKED,
    PAGE_READ,
    PAGE_SHARED,
    PAGE_SWAPPED,
    PAGE_WRITE,
    PAGE_ZERO,
)
from wstrace.terminal.bar import shades
from wstrace_plugins.os.intervals import overlap
from wstrace_plugins.working_set.working_set import WorkingSet

STRIP = 24
#: the colour of each kind of memory
STYLES = {"file": "blue", "anon": "yellow", "heap": "red", "stack": "magenta", "shared memory": "cyan"}


def strips(taken: WorkingSet, *, unicode: bool) -> list[str]:
    """One strip per mapping: its addresses from left to right, dark where pages are resident."""
    start, end = taken.mappings["start"], taken.mappings["end"]
    low = taken.runs["start"][taken.resident]
    high = low + taken.runs["pages"][taken.resident].astype("<u8") * np.uint64(taken.page_size)
    steps = np.arange(STRIP + 1, dtype="<u8")
    cells = start[:, None] + (end - start)[:, None] // np.uint64(STRIP) * steps[None, :]
    cells[:, -1] = end
    lengths = (cells[:, 1:] - cells[:, :-1]).astype(np.int64).ravel()
    filled = overlap(cells[:, :-1].ravel(), cells[:, 1:].ravel(), low, high)
    shade = np.ceil(filled * 4 / np.maximum(lengths, 1)).astype(int).reshape(-1, STRIP)
    marks = shades(unicode=unicode)
    return ["".join(marks[cell] for cell in row) for row in shade.tolist()]


def protections(flags: NDArray[Any]) -> list[str]:
    """RO, RW or CW (copy on write) for each run; -- for pages that may be neither read nor written."""
    cow, write, read = (flags & PAGE_COPY_ON_WRITE) != 0, (flags & PAGE_WRITE) != 0, (flags & PAGE_READ) != 0
    names: list[str] = np.select([cow, write, read], ["CW", "RW", "RO"], "--").tolist()
    return names


def details(taken: WorkingSet, *, pages: bool = False) -> list[list[str]]:
    """The article's details list: address, size in KiB, S/P, RO/RW/CW, E, further attributes, owner; by address."""
    runs = taken.runs
    repeat = runs["pages"].astype(np.int64) if pages else np.ones(len(runs["start"]), np.int64)
    each = np.repeat(np.arange(len(repeat)), repeat)
    nth = (np.arange(len(each)) - np.repeat(np.cumsum(repeat) - repeat, repeat)).astype("<u8")
    start = runs["start"][each] + nth * np.uint64(taken.page_size)
    n_pages = np.ones(len(each), np.int64) if pages else runs["pages"].astype(np.int64)
    flags = runs["flags"][each]
    more = (
        (PAGE_HUGE, "huge"), (PAGE_ZERO, "zero"), (PAGE_SWAPPED, "swapped"), (PAGE_LOCKED, "locked"),
        (PAGE_GUARD, "guard"), (PAGE_LARGE, "large"),
    )  # fmt: skip
    words = {f: " ".join(word for bit, word in more if f & bit) for f in np.unique(flags).tolist()}
    names = {row: taken.owner(row) for row in np.unique(runs["row"]).tolist()}
    shares = runs["shares"][each].tolist() if "shares" in runs else None
    rows = [
        [f"{at:x}", f"{kib:,}", "S" if f & PAGE_SHARED else "P", p, "E" if f & PAGE_EXECUTE else "", words[f], names[r]]
        for at, kib, f, p, r in zip(
            start.tolist(), (n_pages * taken.page_size // 1024).tolist(), flags.tolist(), protections(flags),
            runs["row"][each].tolist(), strict=True,
        )
    ]  # fmt: skip
    if shares is not None:
        for row, count in zip(rows, shares, strict=True):
            row.insert(5, "" if count == 255 else str(count))
    return rows
