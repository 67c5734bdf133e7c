"""Windows: on which pages of a file's mapping a fault may have mapped a page that had no fault of its own.

A read fault maps what is in the page cache around it: fault_around_bytes, which the trace tells; 64 KiB, which are 16
pages of 4 KiB, where it does not. They are aligned in memory but begin with the mapping where that begins within them;
none is beyond a page table. A large folio that begins or ends in these is mapped whole, as far as the mapping goes. Its
size is in no record: it is taken for the smallest block, aligned in the file, that reaches a fault's window and of
which every page is resident. A block that lies across two windows may have come with a fault in either, unless faults
on several of its pages say that it was not mapped whole.

Source: Linux mm/memory.c do_fault_around(), finish_fault(); mm/filemap.c filemap_map_pages(); measured on 6.18.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.losses import key_of, page_of, space_of

#: The bytes of a window where the trace does not tell, unless an administrator had changed it.
_AROUND = 1 << 16
#: The name under which TraceInfo.extra has the bytes of a window.
FAULT_AROUND = "fault_around_bytes"

Pages = NDArray[np.uint64]


class PageSize:
    """What follows from the size of a page.

    Args:
        size: bytes of a page. around: bytes that a read fault maps at most; 0 = not known.

    Attributes:
        size: bytes. window: the pages that a read fault maps at most; table: the pages of a page table, and of a huge
            page, the largest folio; both as powers of 2.
    """

    def __init__(self, size: int = 4096, around: int = 0) -> None:
        bits = size.bit_length() - 1
        self.size, self.table = size, max(bits - 3, 0)
        self.window = min(max((around or _AROUND).bit_length() - 1 - bits, 0), self.table)

    @classmethod
    def of(cls, size: int, told: Mapping[str, object]) -> PageSize:
        """As a trace tells it in TraceInfo.extra, which a file may have from anywhere."""
        around = told.get(FAULT_AROUND)
        return cls(size, around if isinstance(around, int) and 0 < around < 1 << 40 else 0)

    @property
    def powers(self) -> range:
        """What is tried, the likeliest first: the window alone, then folios of 2 pages and more."""
        return range(self.table + 1)


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


def reach(pages: Mapped, power: int, resident: Pages, size: PageSize) -> tuple[Pages, Pages, NDArray[np.bool_]]:
    """The pages on which a fault may have mapped each page, for a folio of 2**power pages; 0: in its window alone.

    Args:
        resident: the keys of all pages that are there, ascending. size: of a page.

    Returns:
        The keys of the first one and of the one past the last, and whether such a folio is resident as a whole.
    """
    page, space = page_of(pages.key), space_of(pages.key)
    if not power:
        return *_around(page, page, pages, space, size), np.ones(len(page), np.bool_)
    first, past = _block(pages, power)
    own, moved = space_of(pages.own), page_of(pages.own) - page
    there = resident.searchsorted(key_of(own, past + moved)) - resident.searchsorted(key_of(own, first + moved))
    return *_around(first, past - np.uint64(1), pages, space, size), there.astype(np.uint64) == past - first


def folio(pages: Mapped, power: int) -> tuple[Pages, Pages]:
    """The keys of the first page of the folio of 2**power pages that each page may lie in, and of the one past it."""
    space = space_of(pages.key)
    first, past = _block(pages, power)
    return key_of(space, first), key_of(space, past)


def _block(pages: Mapped, power: int) -> tuple[Pages, Pages]:
    """Of each page the block of the file that it lies in, as far as it is mapped."""
    shift, bits = pages.offset - pages.low, np.uint64(power)
    block = ((page_of(pages.key) + shift) >> bits << bits) - shift
    return np.maximum(block, pages.low), np.minimum(block + np.uint64(1 << power), pages.high)


def _around(first: Pages, last: Pages, pages: Mapped, space: Pages, of: PageSize) -> tuple[Pages, Pages]:
    """The faults whose windows touch the pages from `first` to `last`."""
    bits, size = np.uint64(of.window), np.uint64(1 << of.window)
    table = np.uint64(of.table)
    begin = np.where(first - pages.low < size, pages.low, first >> bits << bits)
    begin = np.maximum(np.maximum(begin, first >> table << table), pages.low)
    end = np.minimum((last >> bits << bits) + size, pages.high)
    return key_of(space, begin), key_of(space, end)
