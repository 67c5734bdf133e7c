"""pagemap entries -> runs of pages with equal attributes, in columns only: no Python object per page.

Source: Linux Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.schema import (
    KIND_SHIFT,
    KIND_VDSO,
    MAP_SHARED,
    MAP_WRITE,
    PAGE_COPY_ON_WRITE,
    PAGE_EXCLUSIVE,
    PAGE_FILE,
    PAGE_GUARD,
    PAGE_HUGE,
    PAGE_LARGE,
    PAGE_LOCKED,
    PAGE_SHARED,
    PAGE_SWAPPED,
    PAGE_ZERO,
)
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
from wstrace_plugins.working_set.linux.page_frames import FrameKinds, MapCounts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Columns = dict[str, NDArray[Any]]
    Entries = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]  # as Pagemap.entries
_TOP = PRESENT_BIT | SWAPPED_BIT | FILE_BIT | EXCLUSIVE_BIT
_GAP = 256 * PAGE  # absent pages that are read rather than skipped: 8 ns each, while a call costs 2 us
CHUNK = 1 << 16  # pages per read: 512 KiB, which stays in the cache and is hardly visible in a snapshot of ourselves


class Spans:
    """The parts of pagemap to read: start, end and row (index into the mappings) of each span, sorted.

    Args:
        mappings: columns start and end, sorted.
        wanted: mask of the mappings to read.
        windows: REGION rows outside of which nothing is present; None = read whole mappings.
    """

    def __init__(self, mappings: Columns, wanted: NDArray[Any], windows: NDArray[Any] | None) -> None:
        rows = np.flatnonzero(wanted).astype("<u4")
        start, end = mappings["start"][rows], mappings["end"][rows]
        if windows is not None:
            start, end, rows = _clip(start, end, rows, windows)
        self.start, self.end, self.row = _cut(start, end, rows)

    def __len__(self) -> int:
        return len(self.start)


def _clip(
    start: NDArray[Any], end: NDArray[Any], rows: NDArray[Any], windows: NDArray[Any]
) -> tuple[NDArray[Any], ...]:
    """The windows, joined where they are close, and cut at the mappings' borders."""
    if not len(windows) or not len(rows):
        return start[:0], end[:0], rows[:0]
    apart = np.flatnonzero(windows["start"][1:] > windows["end"][:-1] + np.uint64(_GAP))
    low = windows["start"][np.r_[0, apart + 1]]
    high = windows["end"][np.r_[apart, len(windows) - 1]]
    first = np.searchsorted(high, start, "right")  # the windows that overlap each mapping
    count = np.maximum(np.searchsorted(low, end, "left") - first, 0)
    each = np.repeat(np.arange(len(rows)), count)
    window = np.arange(len(each)) - np.repeat(np.cumsum(count) - count, count) + first[each]
    return np.maximum(low[window], start[each]), np.minimum(high[window], end[each]), rows[each]


def _cut(start: NDArray[Any], end: NDArray[Any], row: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Spans of at most CHUNK pages."""
    step = np.uint64(CHUNK * PAGE)
    count = ((end - start + step - np.uint64(1)) // step).astype(np.int64)
    if (count == 1).all():
        return start, end, row
    each = np.repeat(np.arange(len(start)), count)
    part = (np.arange(len(each)) - np.repeat(np.cumsum(count) - count, count)).astype("<u8")
    low = start[each] + part * step
    return low, np.minimum(low + step, end[each]), row[each]


def read(
    entries: Entries,
    spans: Spans,
    special: NDArray[Any] | None,
    counter: MapCounts | None,
    kinds: FrameKinds | None = None,
) -> Columns:
    """Runs of present, swapped or guard pages: start, pages, row, top; with a counter shares, with kinds categories.

    top is the masked top byte of the entries. A guard page has only GUARD_BIT, a swapped one SWAPPED_BIT, plus
    PROTECTED_BIT where it is uncertain whether anything is swapped out there: see settle().

    Args:
        entries: Pagemap.entries.
        special: REGION rows at whose borders a run ends.
        counter: counts the sharers. kinds: tells huge and zero pages, where there is no `special`.

    Raises:
        EOFError: pagemap ended early: the address space has ended.
    """
    borders = np.empty(0, "<u8") if special is None else np.concatenate([special["start"], special["end"]])
    borders.sort()
    parts = []
    pages = ((spans.end - spans.start) // np.uint64(PAGE)).astype(np.int64)
    upto, first = np.cumsum(pages), 0
    while first < len(spans):
        base = int(upto[first - 1]) if first else 0
        last = max(int(np.searchsorted(upto, base + CHUNK, "right")), first + 1)
        some = slice(first, last)
        offsets = upto[some] - pages[some] - base
        held = _fill(entries, spans.start[some], spans.end[some], offsets, int(upto[last - 1]) - base)
        within = borders[slice(*np.searchsorted(borders, (spans.start[first], spans.end[last - 1])))]
        parts.append(_runs(held, spans.start[some], offsets, spans.row[some], within, counter, kinds))
        first = last
    if not parts:
        return {"start": np.empty(0, "<u8"), "pages": np.empty(0, "<u4"), "row": np.empty(0, "<u4"),
                "top": np.empty(0, "u1")}  # fmt: skip
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _fill(entries: Entries, start: NDArray[Any], end: NDArray[Any], offsets: NDArray[Any], pages: int) -> NDArray[Any]:
    """The entries of all spans, concatenated; adjacent spans are read with one call."""
    if len(start) > 1:
        first = np.flatnonzero(np.r_[True, start[1:] != end[:-1]])
        held = entries(start[first], np.diff(offsets[first], append=pages))
    else:  # most of a large process
        held = entries(start, np.array([pages]))
    if len(held) != pages:
        raise EOFError
    return held


def _runs(entries: NDArray[Any], start: NDArray[Any], offsets: NDArray[Any], row: NDArray[Any], borders: NDArray[Any],
          counter: MapCounts | None, kinds: FrameKinds | None) -> Columns:  # fmt: skip
    """The runs of the spans whose entries start at these offsets."""
    top = _tops(entries)
    edge = np.empty(len(top), bool)
    edge[1:] = top[1:] != top[:-1]
    told: Columns = {}
    if counter is not None:
        told["shares"] = counter.counts(entries, top)
    if kinds is not None:
        shift = start // np.uint64(PAGE) - offsets.astype("<u8")
        number = shift.repeat(np.diff(offsets, append=len(top))) + np.arange(len(top), dtype="<u8")
        told["categories"] = kinds.categories(entries, top, number)
    for column in told.values():
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
        "top": top[at],
    }
    return columns | {name: column[at] for name, column in told.items()}


def _tops(entries: NDArray[Any]) -> NDArray[Any]:
    """The masked top byte of each entry, corrected for entries that only look swapped: see read()."""
    whole = entries.view("u1")[7::8]
    top: NDArray[Any] = whole & np.uint8(_TOP)
    rows = np.flatnonzero(top & SWAPPED_BIT)
    if len(rows):
        instead = entries[rows] & np.uint64(PFN_MASK)
        marker = (instead & np.uint64((1 << SWAP_TYPE_BITS) - 1)) == MARKER_TYPE
        guard = marker & ((instead >> np.uint64(SWAP_TYPE_BITS)) & np.uint64(MARKER_GUARD) != 0)
        guard |= (whole[rows] & GUARD_BIT) != 0
        open_ = (instead == 0) & ((whole[rows] & PROTECTED_BIT) != 0)
        found = np.select([guard, marker, open_], [GUARD_BIT, 0, SWAPPED_BIT | PROTECTED_BIT], top[rows].astype("i2"))
        top[rows] = found.astype("u1")
    return top


def settle(found: Columns, mappings: Columns, swapped: Callable[[], Mapping[int, int]]) -> Columns:
    """The runs without those that look swapped out to an unprivileged reader and are not.

    Such a reader cannot distinguish a swapped-out page from one that was never present and that a userfaultfd protects.
    The number of bytes swapped out in the whole mapping decides, unless a mapping has both kinds: then all of them
    count as swapped.

    Args:
        found: the result of read().
        mappings: column start.
        swapped: returns the bytes swapped out per mapping, by its start; only called where it is uncertain.
    """
    top, row, pages = found["top"], found["row"], found["pages"].astype(np.float64)
    open_ = (top & PROTECTED_BIT) != 0
    if not open_.any():
        return found
    of_mapping = swapped()
    known = np.bincount(row, np.where((top & SWAPPED_BIT != 0) & ~open_, pages, 0), len(mappings["start"])) * PAGE
    more = np.array([of_mapping.get(start, 0) for start in mappings["start"].tolist()], np.float64) > known
    kept = ~open_ | more[row]
    return {name: column[kept] for name, column in found.items()}


def attributes(
    found: Columns, mappings: Columns, special: NDArray[Any] | None, locked: NDArray[Any], large: NDArray[Any]
) -> Columns:
    """The runs with their flags, without what is no memory of the process (vvar, device memory).

    Args:
        found: the result of read().
        mappings: column flags.
        special: REGION rows of huge and zero pages; None = `categories` tell them, or nothing does.
        locked: mask of the locked mappings; large: mask of the hugetlb mappings.
    """
    top, row = found["top"], found["row"]
    mapping = mappings["flags"][row]
    present, file = (top & PRESENT_BIT) != 0, (top & FILE_BIT) != 0
    exclusive, private = (top & EXCLUSIVE_BIT) != 0, (mapping & MAP_SHARED) == 0
    # pages without a struct page: they are in no mm counter, and no page of a shared mapping is anonymous
    no_page = present & ~file & ~exclusive & (~private | ((mapping >> KIND_SHIFT) & 15 == KIND_VDSO))
    categories = found.get("categories", _special(found["start"], special))
    huge, zero = (categories & IS_HUGE) != 0, (categories & IS_PFNZERO) != 0
    cow = present & private & ((mapping & MAP_WRITE) != 0) & (file | ~exclusive | zero)
    bits = (
        (cow, PAGE_COPY_ON_WRITE), (present & ~exclusive & ~zero, PAGE_SHARED), (file, PAGE_FILE),
        (exclusive, PAGE_EXCLUSIVE), (huge & present & ~large[row], PAGE_HUGE), (zero & present, PAGE_ZERO),
        ((top & SWAPPED_BIT) != 0, PAGE_SWAPPED), (locked[row] & present, PAGE_LOCKED),
        ((top & GUARD_BIT) != 0, PAGE_GUARD), (large[row] & present, PAGE_LARGE),
    )  # fmt: skip
    flags = (mapping & 7).astype("<u2")  # PAGE_READ, PAGE_WRITE, PAGE_EXECUTE are MAP_READ, MAP_WRITE, MAP_EXECUTE
    for mask, bit in bits:
        flags |= mask.astype("<u2") * np.uint16(bit)
    columns = {"start": found["start"], "pages": found["pages"], "flags": flags, "row": row}
    if "shares" in found:
        columns["shares"] = found["shares"]
    return _join({name: column[~no_page] for name, column in columns.items()})


def _special(start: NDArray[Any], special: NDArray[Any] | None) -> NDArray[Any]:
    """The categories of the runs."""
    if special is None or not len(special):
        return np.zeros(len(start), "u1")
    at = np.searchsorted(special["start"], start, "right") - 1
    inside = (at >= 0) & (start < special["end"][at])
    return np.where(inside, special["categories"][at], 0)


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
