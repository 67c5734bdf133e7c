"""Decodes the results of QueryWorkingSet and QueryWorkingSetEx, one word per page, into columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.schema import (
    PAGE_COPY_ON_WRITE,
    PAGE_EXCLUSIVE,
    PAGE_EXECUTE,
    PAGE_GUARD,
    PAGE_HUGE,
    PAGE_LOCKED,
    PAGE_READ,
    PAGE_SHARED,
    PAGE_WRITE,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE = 4096
ADDRESS, _PROTECTION, SHARED = ~np.uint64(PAGE - 1), np.uint64(0x1F), np.uint64(1 << 8)
SHARES = np.uint64(7 << 5)
#: Bits 9-11 of a block are the NUMA node (the kernel's MEMORY_WORKING_SET_BLOCK); Microsoft's page calls them reserved.
NODE = np.uint64(7 << 9)
#: Bits for results of QueryWorkingSetEx, stored in place of the node, so that one comparison splits runs.
LOCKED, LARGE = np.uint64(1 << 9), np.uint64(1 << 10)


def _flags_of_protection() -> NDArray[np.uint16]:
    """A table of PAGE_* bits by protection 0-31: +8 is no-cache, +16 guard, +24 write-combined.

    Microsoft's page says no-cache and guard for 24 and above, but the kernel has MM_WRITECOMBINE = 0x18.
    """
    meaning = {
        1: PAGE_READ,
        2: PAGE_EXECUTE,
        3: PAGE_READ | PAGE_EXECUTE,
        4: PAGE_READ | PAGE_WRITE,
        5: PAGE_READ | PAGE_WRITE | PAGE_COPY_ON_WRITE,
        6: PAGE_READ | PAGE_WRITE | PAGE_EXECUTE,
        7: PAGE_READ | PAGE_WRITE | PAGE_EXECUTE | PAGE_COPY_ON_WRITE,
    }
    table = [meaning.get(value & 7, 0) | (PAGE_GUARD if value & 24 == 16 else 0) for value in range(32)]
    return np.array(table, "<u2")


_FLAGS = _flags_of_protection()


def flags(blocks: NDArray[Any]) -> NDArray[Any]:
    """PAGE_* bits of PSAPI_WORKING_SET_BLOCKs (u64): sharable pages are PAGE_SHARED, all others PAGE_EXCLUSIVE.

    Their sums are Shared ("could theoretically be shared") and Private in the article of 1996 (docs/compatibility.md).
    """
    found: NDArray[Any] = _FLAGS[(blocks & _PROTECTION).astype(np.intp)]
    found |= np.where(blocks & SHARED, np.uint16(PAGE_SHARED), np.uint16(PAGE_EXCLUSIVE))
    for bit, flag in ((LOCKED, PAGE_LOCKED), (LARGE, PAGE_HUGE)):
        found |= (blocks & bit != 0) * np.uint16(flag)
    return found


def runs(blocks: NDArray[Any], starts: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.uint32]]:
    """Runs of adjacent pages with equal attributes.

    blocks: the blocks, sorted, shape (n,). starts: the start addresses of mappings, sorted, at which a run ends.
    Returns the index of each run's first block, and the number of its pages.
    """
    # the block of the next page with the same low bits is greater by exactly the page size
    first = np.r_[True, blocks[1:] - blocks[:-1] != PAGE][: len(blocks)]
    border = np.searchsorted(blocks, starts)
    first[border[border < len(blocks)]] = True
    index = np.flatnonzero(first)
    return index, np.diff(index, append=len(blocks)).astype("<u4")
