"""Windows: on which pages of a file's mapping a fault may have mapped a page that had no fault of its own.

A read fault maps what is in the page cache around it: 16 pages (fault_around_bytes, 64 KiB unless an administrator has
changed it), aligned in memory but beginning with the mapping where that begins within them; none beyond a page table. A
large folio that begins or ends in these is mapped whole, as far as the mapping goes. Its size is in no record: it is
taken for the smallest block, aligned in the file, that reaches a fault's window and of which every page is resident.
What a smaller fault_around_bytes leaves out is not resident, so no fault is asked for it.

Source: Linux mm/memory.c do_fault_around(), finish_fault(); mm/filemap.c filemap_map_pages(); measured on 6.18.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.losses import key_of, page_of, space_of

#: as powers of 2: the pages of a window, the largest folio, the pages of a page table
_AROUND, _FOLIO, _TABLE = 4, 9, 9
#: what is tried, the likeliest first: the window alone, then folios of 2 pages and more
POWERS = range(_FOLIO + 1)

Pages = NDArray[np.uint64]


class Mapped(NamedTuple):
    """Pages in mappings of files, each an array of shape (n,).

    key: the page at the time that is asked of. low, high: the first page of its mapping and the one past it; offset: of
    the first, in pages of the file. own: the key that it has now.
    """

    key: Pages
    low: Pages
    high: Pages
    offset: Pages
    own: Pages


def reach(pages: Mapped, power: int, resident: Pages) -> tuple[Pages, Pages, NDArray[np.bool_]]:
    """The pages on which a fault may have mapped each page, for a folio of 2**power pages; 0: in its window alone.

    Args:
        resident: the keys of all pages that are there, ascending.

    Returns:
        The keys of the first one and of the one past the last, and whether such a folio is resident as a whole.
    """
    page, space = page_of(pages.key), space_of(pages.key)
    if not power:
        return *_around(page, page, pages, space), np.ones(len(page), np.bool_)
    shift, bits = pages.offset - pages.low, np.uint64(power)
    block = ((page + shift) >> bits << bits) - shift
    first = np.maximum(block, pages.low)
    past = np.minimum(block + np.uint64(1 << power), pages.high)
    own = space_of(pages.own)
    there = resident.searchsorted(key_of(own, past)) - resident.searchsorted(key_of(own, first))
    return *_around(first, past - np.uint64(1), pages, space), there.astype(np.uint64) == past - first


def _around(first: Pages, last: Pages, pages: Mapped, space: Pages) -> tuple[Pages, Pages]:
    """The faults whose windows touch the pages from `first` to `last`."""
    bits, size = np.uint64(_AROUND), np.uint64(1 << _AROUND)
    table = np.uint64(_TABLE)
    begin = np.where(first - pages.low < size, pages.low, first >> bits << bits)
    begin = np.maximum(np.maximum(begin, first >> table << table), pages.low)
    end = np.minimum((last >> bits << bits) + size, pages.high)
    return key_of(space, begin), key_of(space, end)
