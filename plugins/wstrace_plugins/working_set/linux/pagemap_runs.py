"""pagemap entries -> runs of pages with equal attributes, in columns only: no Python object per page.

Source: Linux Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

from collections.abc import Callable
from io import FileIO
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace import schema
from wstrace.analysis.tally import numbered
from wstrace.batch import Columns
from wstrace.errors import Unavailable
from wstrace_plugins.os.intervals import cut, within
from wstrace_plugins.os.linux.pagemap import (
    EXCLUSIVE_BIT,
    FILE_BIT,
    GUARD_BIT,
    IS_HUGE,
    IS_PFNZERO,
    MARKER_GUARD,
    MARKER_TYPE,
    PAGE,
    PFN_MASK,
    PRESENT_BIT,
    PROTECTED_BIT,
    SWAP_TYPE_BITS,
    SWAPPED_BIT,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Entries = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]  # as Pagemap.entries
_TOP = PRESENT_BIT | SWAPPED_BIT | FILE_BIT | EXCLUSIVE_BIT
_GAP = 256 * PAGE  # absent pages that are read rather than skipped: 8 ns each, while a call costs 2 us
_FRAMES_APART = 64  # page frames whose counts are read rather than skipped
_UNKNOWN = 255
CHUNK = 1 << 16  # pages per read: 512 KiB, which stays in the cache and is hardly visible in a snapshot of ourselves


def _spans(mappings: Columns, regions: NDArray[Any] | None) -> tuple[NDArray[Any], ...]:
    """The parts of pagemap to read: start, end and row (index into the mappings) of each, sorted."""
    start, end, row = mappings["start"], mappings["end"], np.arange(len(mappings["start"]))
    if regions is not None:
        apart = np.flatnonzero(regions["start"][1:] > regions["end"][:-1] + np.uint64(_GAP))
        first = np.r_[0, apart + 1][: len(regions)]
        low, high = regions["start"][first], regions["end"][np.r_[apart, len(regions) - 1][: len(regions)]]
        start, end, row = within(start, end, low, high)
    step = CHUNK * PAGE  # spans of at most that many bytes
    large = np.flatnonzero(end - start > np.uint64(step))
    ends = [np.arange(int(start[i]) + step, int(end[i]), step, dtype="<u8") for i in large.tolist()]
    start, end, part = cut(start, end, np.concatenate([*ends, np.empty(0, "<u8")]))
    return start, end, row.astype("<u4")[part]


def read(entries: Entries, mappings: Columns, regions: NDArray[Any] | None, *, shares: bool = False) -> Columns:
    """Runs of present, swapped or guard pages: start, pages, row (index into the mappings), top, and the shares.

    top is the masked top byte of the entries. A guard page has only GUARD_BIT, a swapped one SWAPPED_BIT.
    entries: Pagemap.entries. mappings: columns start and end, sorted. regions: REGION rows of all that is there, with
    what is huge or zero; None = the kernel cannot tell. shares: also count the mappings of each page. Raises EOFError:
    pagemap ended early: the address space has ended; Unavailable: share counts need a right that is missing.
    """
    start, end, row = _spans(mappings, regions)
    borders = np.empty(0, "<u8")
    if regions is not None:
        special = regions[regions["categories"] != 0]
        borders = np.sort(np.concatenate([special["start"], special["end"]]))
    parts = []
    pages = ((end - start) // np.uint64(PAGE)).astype(np.int64)
    upto, first = np.cumsum(pages), 0
    while first < len(start):
        base = int(upto[first - 1]) if first else 0
        last = max(int(np.searchsorted(upto, base + CHUNK, "right")), first + 1)
        some = slice(first, last)
        offsets = upto[some] - pages[some] - base
        held = entries(start[some], pages[some])
        if len(held) != int(upto[last - 1]) - base:
            raise EOFError
        cuts = borders[slice(*np.searchsorted(borders, (start[first], end[last - 1])))]
        parts.append(_runs(held, start[some], offsets, row[some], cuts, shares=shares))
        first = last
    if not parts:
        return {"start": np.empty(0, "<u8"), "pages": np.empty(0, "<u4"), "row": np.empty(0, "<u4"),
                "top": np.empty(0, "u1")}  # fmt: skip
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _runs(entries: NDArray[Any], start: NDArray[Any], offsets: NDArray[Any], row: NDArray[Any], borders: NDArray[Any],
          *, shares: bool) -> Columns:  # fmt: skip
    """The runs of the spans whose entries start at these offsets."""
    top = _tops(entries)
    known = {"top": top} | ({"shares": _shares(entries, top)} if shares else {})
    edge = np.zeros(len(top), bool)
    for column in known.values():
        edge[1:] |= column[1:] != column[:-1]
    edge[offsets] = True
    if len(borders):
        span = np.searchsorted(start, borders, "right") - 1
        index = ((borders - start[span]) // np.uint64(PAGE)).astype(np.int64) + offsets[span]
        ends = np.r_[offsets[1:], len(entries)]
        edge[index[(span >= 0) & (index < ends[span])]] = True
    at = np.flatnonzero(edge)
    pages = np.subtract(np.append(at[1:], len(entries)), at)
    kept = (top[at] & (PRESENT_BIT | SWAPPED_BIT | GUARD_BIT)) != 0
    at, pages = at[kept], pages[kept]
    span = np.searchsorted(offsets, at, "right") - 1
    columns = {
        "start": start[span] + (at - offsets[span]).astype("<u8") * np.uint64(PAGE),
        "pages": pages.astype("<u4"),
        "row": row[span],
    }
    return columns | {name: column[at] for name, column in known.items()}


def _tops(entries: NDArray[Any]) -> NDArray[Any]:
    """The masked top byte of each entry, corrected for entries that only look swapped.

    To a reader without privilege a page that a userfaultfd protects looks the same swapped out and never there: it
    counts as not there.
    """
    whole = entries.view("u1")[7::8]
    top: NDArray[Any] = whole & np.uint8(_TOP)
    rows = np.flatnonzero(top & SWAPPED_BIT)
    if len(rows):
        instead = entries[rows] & np.uint64(PFN_MASK)
        marker = (instead & np.uint64((1 << SWAP_TYPE_BITS) - 1)) == MARKER_TYPE
        guard = marker & ((instead >> np.uint64(SWAP_TYPE_BITS)) & np.uint64(MARKER_GUARD) != 0)
        guard |= (whole[rows] & GUARD_BIT) != 0
        hidden = (instead == 0) & ((whole[rows] & PROTECTED_BIT) != 0)
        top[rows] = np.select([guard, marker | hidden], [GUARD_BIT, 0], top[rows].astype("i2")).astype("u1")
    return top


def _shares(entries: NDArray[Any], top: NDArray[Any]) -> NDArray[Any]:
    """The number of mappings of each page as u8, by /proc/kpagecount; 254 = as many or more, 255 = not known."""
    counts = np.where(top & EXCLUSIVE_BIT, 1, _UNKNOWN).astype("u1")
    rows = np.flatnonzero((top & (PRESENT_BIT | EXCLUSIVE_BIT)) == PRESENT_BIT)
    frames, back = numbered(entries[rows] & np.uint64(PFN_MASK))
    found = []
    try:
        with FileIO("/proc/kpagecount") as file:
            for near in np.split(frames, np.flatnonzero(np.diff(frames) > _FRAMES_APART) + 1):
                place = (near - near[:1]).astype(np.int64)
                file.seek(int(near[0]) * 8 if len(near) else 0)
                numbers = np.frombuffer(file.read((int(place[-1]) + 1) * 8 if len(near) else 0), "<u8")
                known = place < len(numbers)
                found.append(np.where(known, np.minimum(numbers[np.where(known, place, 0)], 254), _UNKNOWN))
    except OSError as error:
        remedy = "run wstrace as root, or leave share counts out"
        raise Unavailable(f"share counts need /proc/kpagecount: {error.strerror}", remedy) from None
    counts[rows] = np.concatenate(found).astype("u1")[back]
    return counts


def attributes(
    found: Columns, mappings: Columns, regions: NDArray[Any] | None, locked: NDArray[Any], large: NDArray[Any]
) -> Columns:
    """The runs with their flags, without what is no memory of the process (vvar, device memory).

    found: the result of read(). mappings: column flags. regions: as in read(). locked: mask of the locked mappings;
    large: mask of the hugetlb mappings.
    """
    top, row = found["top"], found["row"]
    mapping = mappings["flags"][row]
    present, file = (top & PRESENT_BIT) != 0, (top & FILE_BIT) != 0
    exclusive, private = (top & EXCLUSIVE_BIT) != 0, (mapping & schema.MAP_SHARED) == 0
    # pages without a struct page: they are in no mm counter, and no page of a shared mapping is anonymous
    no_page = present & ~file & ~exclusive & (~private | ((mapping >> schema.KIND_SHIFT) & 15 == schema.KIND_VDSO))
    categories = _categories(found["start"], regions)
    huge, zero = (categories & IS_HUGE) != 0, (categories & IS_PFNZERO) != 0
    cow = present & private & ((mapping & schema.MAP_WRITE) != 0) & (file | ~exclusive | zero)
    bits = (
        (cow, schema.PAGE_COPY_ON_WRITE), (present & ~exclusive & ~zero, schema.PAGE_SHARED), (file, schema.PAGE_FILE),
        (exclusive, schema.PAGE_EXCLUSIVE), (huge & present & ~large[row], schema.PAGE_HUGE),
        (zero & present, schema.PAGE_ZERO), ((top & SWAPPED_BIT) != 0, schema.PAGE_SWAPPED),
        (locked[row] & present, schema.PAGE_LOCKED), ((top & GUARD_BIT) != 0, schema.PAGE_GUARD),
        (large[row] & present, schema.PAGE_LARGE),
    )  # fmt: skip
    flags = (mapping & 7).astype("<u2")  # PAGE_READ, PAGE_WRITE, PAGE_EXECUTE are MAP_READ, MAP_WRITE, MAP_EXECUTE
    for mask, bit in bits:
        flags |= mask.astype("<u2") * np.uint16(bit)
    columns = {"start": found["start"], "pages": found["pages"], "flags": flags, "row": row}
    if "shares" in found:
        columns["shares"] = found["shares"]
    return _join({name: column[~no_page] for name, column in columns.items()})


def _categories(start: NDArray[Any], regions: NDArray[Any] | None) -> NDArray[Any]:
    """The categories of the runs."""
    if regions is None or not len(regions):
        return np.zeros(len(start), "u1")
    return regions["categories"][np.searchsorted(regions["start"], start, "right") - 1]


def _join(columns: Columns) -> Columns:
    """Joins adjacent equal runs, which the chunks of reading had cut."""
    start, pages = columns["start"], columns["pages"]
    if len(start) < 2:
        return columns
    alike = start[1:] == start[:-1] + pages[:-1] * np.uint64(PAGE)
    for name in columns.keys() - {"start", "pages"}:
        alike &= columns[name][1:] == columns[name][:-1]
    first = np.flatnonzero(np.r_[True, ~alike])
    joined = {name: column[first] for name, column in columns.items()}
    joined["pages"] = np.add.reduceat(pages, first, dtype="<u4")
    return joined
