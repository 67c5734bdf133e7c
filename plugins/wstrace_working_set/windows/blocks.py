"""What QueryWorkingSet and QueryWorkingSetEx give, as columns: one word a page, decoded without a Python loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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

_PROTECTION = 0x1F
_SHARE_COUNT_SHIFT, _SHARE_COUNT = 5, 7
_SHARED = 1 << 8
#: bits 9-11 of a block: the NUMA node, though the page calls them reserved (MEMORY_WORKING_SET_BLOCK of the kernel)
_NODE = 7 << 9
#: what QueryWorkingSetEx adds is kept in place of the node, so that one comparison splits runs
LOCKED, LARGE = 1 << 9, 1 << 10


def _flags_of_protection() -> NDArray[np.uint16]:
    """Protection 0-31 -> PAGE_* bits. +8 is no-cache, +24 write-combined, which nothing here tells apart; +16 is guard.

    The page has no-cache and guard for 24 and above; the kernel has MM_WRITECOMBINE = 0x18 there.
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
    """PAGE_* bits of PSAPI_WORKING_SET_BLOCKs: sharable pages are PAGE_SHARED, all others PAGE_EXCLUSIVE.

    So the sums are the article's Shared ("could theoretically be shared") and Private.
    """
    found: NDArray[Any] = _FLAGS[(blocks & blocks.dtype.type(_PROTECTION)).astype(np.intp)]
    shared = blocks & blocks.dtype.type(_SHARED) != 0
    found |= np.where(shared, np.uint16(PAGE_SHARED), np.uint16(PAGE_EXCLUSIVE))
    for bit, flag in ((LOCKED, PAGE_LOCKED), (LARGE, PAGE_HUGE)):
        found |= (blocks & blocks.dtype.type(bit) != 0) * np.uint16(flag)
    return found


def without_nodes(blocks: NDArray[Any]) -> NDArray[Any]:
    """The blocks with the bits of the NUMA node cleared."""
    found: NDArray[Any] = blocks & blocks.dtype.type(~_NODE & ((1 << 8 * blocks.itemsize) - 1))
    return found


def without_shares(blocks: NDArray[Any]) -> NDArray[Any]:
    """The blocks with their share counts cleared, as in 1996: pages that are shared differently make one run."""
    mask = ~(_SHARE_COUNT << _SHARE_COUNT_SHIFT) & ((1 << 8 * blocks.itemsize) - 1)
    found: NDArray[Any] = blocks & blocks.dtype.type(mask)
    return found


def below(blocks: NDArray[Any], kernel_base: int) -> NDArray[np.bool_]:
    """Mask of the pages that are not the kernel's."""
    found: NDArray[np.bool_] = blocks <= blocks.dtype.type(min(kernel_base, 1 << 8 * blocks.itemsize) - 1)
    return found


def private(blocks: NDArray[Any], kernel_base: int) -> int:
    """How many pages no other process could have, without the kernel's."""
    return int(((blocks & blocks.dtype.type(_SHARED) == 0) & below(blocks, kernel_base)).sum())


def shares(blocks: NDArray[Any]) -> NDArray[Any]:
    """Processes that share a page: 1 for a private page, up to 7, which means 7 or more."""
    count = (blocks >> blocks.dtype.type(_SHARE_COUNT_SHIFT)) & blocks.dtype.type(_SHARE_COUNT)
    found: NDArray[Any] = np.maximum(count, 1).astype("|u1")
    return found


def addresses(blocks: NDArray[Any], page_size: int) -> NDArray[Any]:
    """Page addresses: the block without its low bits (12 of them, 13 on Alpha with its pages of 8 KiB)."""
    found: NDArray[Any] = blocks & blocks.dtype.type(~(page_size - 1) & ((1 << 8 * blocks.itemsize) - 1))
    return found


def in_order(blocks: NDArray[Any]) -> NDArray[Any]:
    """The blocks by address: Windows does not sort them. The address stands in the high bits, so the word sorts."""
    sorted_already = len(blocks) < 2 or bool((blocks[1:] > blocks[:-1]).all())
    return blocks if sorted_already else np.sort(blocks, kind="stable")


def runs(blocks: NDArray[Any], page_size: int, starts: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.uint32]]:
    """Runs of adjacent pages with equal attributes.

    Args:
        blocks: sorted, shape (n,).
        page_size: in bytes.
        starts: addresses (sorted) where a run must not go on: the borders of mappings.

    Returns:
        The index of each run's first block and its number of pages.
    """
    if not len(blocks):
        return np.zeros(0, np.intp), np.zeros(0, "<u4")
    first = np.empty(len(blocks), bool)
    first[0] = True
    # the next page with the same low bits differs by exactly one page
    np.not_equal(blocks[1:] - blocks[:-1], blocks.dtype.type(page_size), out=first[1:])
    border = np.searchsorted(blocks, starts.astype(blocks.dtype))
    first[border[border < len(blocks)]] = True
    index = np.flatnonzero(first)
    return index, np.diff(index, append=len(blocks)).astype("<u4")


class Attributes(NamedTuple):
    """PSAPI_WORKING_SET_EX_BLOCKs as columns, shape (n,). Without valid, only shared and bad mean something."""

    valid: NDArray[np.bool_]
    shares: NDArray[np.uint8]
    protection: NDArray[np.uint16]
    shared: NDArray[np.bool_]
    node: NDArray[np.uint8]
    locked: NDArray[np.bool_]
    large: NDArray[np.bool_]
    bad: NDArray[np.bool_]


def attributes(values: NDArray[Any]) -> Attributes:
    """VirtualAttributes of QueryWorkingSetEx, u64 or u32.

    Valid 0, ShareCount 1-3, Win32Protection 4-14, Shared 15, Node 16-21, Locked 22, LargePage 23, Bad 31; of an invalid
    page only Shared and Bad.
    """
    word = values.astype("<u8")

    def bits(low: int, count: int = 1) -> NDArray[Any]:
        found: NDArray[Any] = (word >> np.uint64(low)) & np.uint64((1 << count) - 1)
        return found

    valid = bits(0) != 0
    return Attributes(
        valid,
        np.where(valid, bits(1, 3), 0).astype("|u1"),
        np.where(valid, bits(4, 11), 0).astype("<u2"),
        bits(15) != 0,
        np.where(valid, bits(16, 6), 0).astype("|u1"),
        valid & (bits(22) != 0),
        valid & (bits(23) != 0),
        bits(31) != 0,
    )
