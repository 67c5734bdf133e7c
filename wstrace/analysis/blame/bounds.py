"""Bounds: faults for which `brought` and `again` count fewer pages, or more, than may have arrived with them.

One fault can map several pages: those around it in a file (fault_around_bytes, or a large folio) and a huge page. Where
these are resident they are counted; once they are gone, nothing tells how many there were, and the fault counts for its
own page. A fault on anonymous memory may have mapped the page of zeros, which is in no resident set: a second fault on
the page tells that it probably did.

Source: Linux mm/memory.c do_fault_around(), finish_fault(), do_huge_pmd_anonymous_page(), do_anonymous_page().
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.faults import Faults
from wstrace.analysis.segments import begins, distinct
from wstrace.schema import KIND_FILE, KIND_SHARED, KIND_STACK

_OF_FILES = np.isin(np.arange(256), (KIND_FILE, KIND_SHARED))


def with_others(faults: Faults, table: int) -> NDArray[np.bool_]:
    """Whether each fault brought a page and may have brought others with it.

    Of anonymous memory these are the faults that are alone on the 2 MiB of a huge page in their life: had small pages
    been mapped there, the next one touched would have faulted, too. The kernel makes no huge page of a stack.

    Args:
        faults: in their order. table: the pages of a huge page, as a power of 2.
    """
    found: NDArray[np.bool_] = faults.brings & _OF_FILES[faults.kind]
    at = np.flatnonzero(faults.brings & faults.anonymous & (faults.kind != KIND_STACK))
    block, life = faults.key[at] >> np.uint64(table), faults.life[at]
    apart = begins(block, life)  # most have a neighbour, which is found without sorting
    apart[:-1] &= apart[1:]
    near = _around(faults.key[at], np.flatnonzero(apart), table)
    lives = np.cumsum(begins(block[near])).astype(np.uint64) << np.uint64(32) | life[near].astype(np.uint64)
    ordered = np.sort(lives)
    alone = begins(ordered)
    alone[:-1] &= alone[1:]
    if alone.any():
        found[at[near[np.isin(lives, ordered[alone])]]] = True
    return found


def perhaps_again(
    faults: Faults, several: NDArray[np.bool_], file: NDArray[np.uint32], table: int
) -> NDArray[np.bool_]:
    """Whether each fault may have brought again pages that another one had brought before they were lost.

    It may where a fault on the same file, or on anonymous memory, was in the same 2 MiB before its life began: 2 MiB
    is the most that one fault maps.

    Args:
        faults: in their order. several: see with_others(). file: of the page of each fault, in the order of their rows.
        table: see there.
    """
    found = np.zeros(len(faults), np.bool_)
    asked = np.flatnonzero(several & (faults.life > 0))
    near = _around(faults.key, asked, table)
    near = near[faults.brings[near]]
    blocks, which = distinct(faults.key[near] >> np.uint64(table), file[faults.order[near]])
    earliest = np.full(len(blocks), np.iinfo(np.uint64).max)
    np.minimum.at(earliest, which, faults.time[near])
    began = faults.losses.time[faults.life[near]]
    found[near] = earliest[which] < began
    found &= several & (faults.life > 0)
    return found


def _around(keys: NDArray[np.uint64], rows: NDArray[np.intp], table: int) -> NDArray[np.intp]:
    """The places of all keys, which are ascending, that lie in the same 2 MiB as one of those of these rows."""
    bits = np.uint64(table)
    blocks = keys[rows] >> bits
    blocks = blocks[begins(blocks)]
    low, high = keys.searchsorted(blocks << bits), keys.searchsorted(blocks + np.uint64(1) << bits)
    count = high - low
    found: NDArray[np.intp] = np.arange(count.sum()) + np.repeat(low - np.cumsum(count) + count, count)
    return found


def perhaps_zeros(faults: Faults) -> NDArray[np.bool_]:
    """Whether each fault brought a page, or mapped the page of zeros, which the next one on it replaced."""
    found = np.zeros(len(faults), np.bool_)
    first = faults.first[(faults.maybe >= 0) & ~faults.parted]
    found[first] = faults.anonymous[first] & faults.brings[first]
    return found
