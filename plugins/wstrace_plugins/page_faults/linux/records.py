"""Finds where the records of a ring begin, from the sizes in their headers, without a Python step for each record.

Our own records have 40 bytes. Another tracer's event on the same thread and of the same config makes ours longer: the
kernel shares one perf_sample_data among all events that a fault triggers, and adds what the others requested (`perf
record -g`: a call chain, `--call-graph dwarf`: a copy of the stack) to the size of the records that it writes after
them (perf_prepare_sample() in kernel/events/core.c). Such a record begins with the right 40 bytes; the rest is old
content of the ring, which may look like records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace_plugins.page_faults.linux import perf_event as perf

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of u64 in one of our SAMPLE records.
WORDS = perf.SAMPLE.itemsize // 8
#: The position of the size in a header, which is read as one u64: type, misc, size.
SIZE_SHIFT = 48
_TYPE_AND_MISC = np.uint64((1 << SIZE_SHIFT) - 1)
_LENGTH_SHIFT = np.uint64(SIZE_SHIFT + 3)  # the size in u64
_OWN_SIZE = np.uint64(perf.SAMPLE.itemsize << SIZE_SHIFT)
#: The number of u64 that are split at once, which stay in the cache: a third of the time. A record has 8,191 at most.
_AT_ONCE = 1 << 14
_HEADERS = (
    np.uint64(perf.PERF_RECORD_SAMPLE | perf.PERF_RECORD_MISC_USER << 32),
    np.uint64(perf.PERF_RECORD_SAMPLE | perf.PERF_RECORD_MISC_KERNEL << 32),
    np.uint64(perf.PERF_RECORD_LOST),
)


def rows(raw: NDArray[Any], further: int = 0) -> tuple[NDArray[Any], int]:
    """The records of a ring as rows of five u64, and the number of bytes at the end that form no whole record.

    A row is the header (type, misc, and size, which is set to 40 for longer records) and the 32 bytes that follow it.

    Args:
        raw: u8, shape (n,): what the kernel wrote, starting at the beginning of a record.
        further: u64 that our samples have behind these and that rows are to have, too; 0 in a record without them.
    """
    words: NDArray[Any] = raw[: len(raw) - len(raw) % 8].view("<u8")
    width = WORDS + further
    if len(words) % width == 0:
        table: NDArray[Any] = words.reshape(-1, width)
        # by induction: if every 40th byte begins a header with size 40, these are the records
        if (table[:, 0] >> _LENGTH_SHIFT == width).all():
            if further:
                table = table.copy()
                table[:, 0] = (table[:, 0] & _TYPE_AND_MISC) | _OWN_SIZE
            return table, len(raw) - words.nbytes
    begins, end = starts(words)
    table = words.take(begins[:, None] + np.arange(width), mode="clip")
    length = table[:, 0] >> _LENGTH_SHIFT
    for column in range(WORDS, width):
        table[length <= column, column] = 0
    longer = length > WORDS
    table[longer, 0] = (table[longer, 0] & _TYPE_AND_MISC) | _OWN_SIZE
    return table, len(raw) - end * 8


def starts(words: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """The indices of the u64 at which records begin, and the index behind the last whole record.

    Everything that looks like a header is a candidate, but a record begins there only if the record before it ends
    there. Therefore the chain of sizes is followed from the first word on, in a table of each candidate's successor.
    Records that are no candidates are skipped one by one; the kernel writes none here.

    Args:
        words: u64, shape (n,).
    """
    parts, at = [np.zeros(0, "<i8")], 0
    while True:
        begins, end = _starts(words[at : at + _AT_ONCE])
        if not len(begins):
            return np.concatenate(parts), at
        parts.append(begins + at)
        at += end


def _starts(words: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    n = len(words)
    kind = words & _TYPE_AND_MISC
    candidates = np.flatnonzero((kind == _HEADERS[0]) | (kind == _HEADERS[1]) | (kind == _HEADERS[2]))
    ends = candidates + (words[candidates] >> _LENGTH_SHIFT).astype("<i8")
    whole = (ends <= n) & (ends > candidates)
    candidates, ends = candidates[whole], ends[whole]
    number = np.full(n + 1, len(candidates), "<i8")
    number[candidates] = np.arange(len(candidates))
    successor = np.append(number[ends], len(candidates))
    parts = [candidates[:0]]
    at = 0
    while at < n:
        if number[at] < len(candidates):
            chain = _chain(int(number[at]), successor)
            parts.append(candidates[chain])
            at = int(ends[chain[-1]])
            continue
        size = int(words[at] >> _LENGTH_SHIFT)
        if not size or at + size > n:
            break
        parts.append(np.array([at]))
        at += size
    return np.concatenate(parts), at


def _chain(first: int, successor: NDArray[np.int64]) -> NDArray[np.int64]:
    """The chain of successors from `first` on, found by doubling its length at each step."""
    end = len(successor) - 1
    chain, jump = np.array([first]), successor
    while True:
        more = jump[chain]
        more = more[: np.searchsorted(more, end)]
        if len(more) < len(chain):
            return np.concatenate((chain, more))
        chain, jump = np.concatenate((chain, more)), jump[jump]
