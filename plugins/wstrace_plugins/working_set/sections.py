"""The resident pages of a snapshot by image section: `module!section(n)`, the owner column of the 1996 article."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.symbols import label_of
from wstrace.schema import KIND_FILE, KIND_SHIFT, KINDS, MAP_EXECUTE, PAGE_EXCLUSIVE
from wstrace_plugins.working_set.places import places
from wstrace_plugins.working_set.working_set import Owner, WorkingSet

#: what is mapped of one image; beyond it its pages count for the module
_MAX_IMAGE_BYTES = 1 << 30


def by_section(taken: WorkingSet) -> list[Owner]:
    """Who has the pages, most resident first: a page belongs to the section that it begins in.

    Pages of an image outside of its sections (headers) and of files that no process executes belong to the module,
    all others to `[heap]`, `[anon]` ..., as in `WorkingSet.by("module")`.
    """
    page, mappings = np.uint64(taken.page_size), taken.mappings
    kinds = (mappings["flags"] >> KIND_SHIFT) & 15
    rows = np.flatnonzero(_images(taken))
    counts = ((mappings["end"][rows] - mappings["start"][rows]) // page).astype(np.int64)
    #: where the pages of each mapping begin in the list of all pages; one place for a mapping that is not split
    sizes = np.ones(len(kinds), np.int64)
    sizes[rows] = counts
    first = np.cumsum(sizes) - sizes

    labels = np.array([taken.owner(row) for row in range(len(kinds))], object)
    label = np.repeat(labels, sizes)
    at = np.repeat(first[rows] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    nth = at - np.repeat(first[rows], counts)
    addresses = np.repeat(mappings["start"][rows], counts) + nth.astype("<u8") * page
    found = [label_of(place, "section") for place in places(addresses, [taken])] if len(addresses) else []
    label[at] = found
    names, group = np.unique(label.astype(str), return_inverse=True)

    mapped = np.repeat((mappings["end"] - mappings["start"]).astype(np.float64) / sizes, sizes)
    exclusive = taken.runs["flags"] & PAGE_EXCLUSIVE != 0
    resident, private, tables = (
        _pages(taken, taken.resident & mask, sizes, first) for mask in (True, exclusive, taken.tables)
    )
    kind = np.zeros(len(names), np.intp)
    kind[group] = np.repeat(kinds, sizes)
    sums = [np.bincount(group, column, len(names)) for column in (resident, private, mapped, tables)]
    owners = [
        Owner(str(name), KINDS[min(int(kind[i]), len(KINDS) - 1)], *(int(column[i]) for column in sums))
        for i, name in enumerate(names)
    ]
    return sorted(owners, key=lambda owner: (-owner.resident, owner.name))


def _images(taken: WorkingSet) -> NDArray[np.bool_]:
    """Mask of the mappings of files that are executed somewhere in the process, and are not too large to ask about."""
    mappings = taken.mappings
    is_file = (mappings["flags"] >> KIND_SHIFT) & 15 == KIND_FILE
    executed = np.unique(mappings["file"][is_file & (mappings["flags"] & MAP_EXECUTE != 0)])
    small = mappings["end"] - mappings["start"] <= _MAX_IMAGE_BYTES
    found: NDArray[np.bool_] = is_file & np.isin(mappings["file"], executed) & small
    return found


def _pages(
    taken: WorkingSet, mask: NDArray[np.bool_], sizes: NDArray[np.int64], first: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Bytes of those runs on each page of a mapping that is split, and of each other mapping as a whole."""
    runs, page = taken.runs, taken.page_size
    row, pages = runs["row"][mask].astype(np.int64), runs["pages"][mask].astype(np.int64)
    split = sizes[row] > 1
    found = np.bincount(first[row[~split]], pages[~split].astype(np.float64), int(sizes.sum()))
    start = (runs["start"][mask][split] - taken.mappings["start"][row[split]]) // np.uint64(page)
    count = pages[split]
    nth = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    found = found + np.bincount(
        np.repeat(first[row[split]] + start.astype(np.int64), count) + nth, minlength=len(found)
    )
    return np.asarray(found * page, np.float64)
