"""The stack rows of a fault ring: told apart from the samples, and given to the samples that they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks.protocol import LOST, NO_ROW, STACK_ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADER, _ROW_IDS, _SAMPLE_IDS, _MARK, _HASH = 0, 1, 2, 3, 4
_TID = np.uint64(32)
_TYPE = np.uint64(0xFFFFFFFF)


class StackRows:
    """The pairing of one ring, by position: a sample has the stack of the last row before it, if that is its thread's.

    A row stands directly before its sample. Where a thread's next stack is the same, there is no further row. After a
    loss nothing is known until the next row: the program tells anew when a row of its own was lost.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._tid, self._hash = np.uint64(0), np.uint64(NO_ROW)

    @property
    def same(self) -> int | None:
        """The hash of all samples up to the next stack row or loss, whosever they are; None = it differs by thread."""
        return int(self._hash) if self._hash in (NO_ROW, LOST) else None

    def pair(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows without the stack rows, and the hash of each one's stack as a sixth column.

        Args:
            rows: u64, shape (n, 5), in the order of the ring; rows of other records than samples are kept.

        Returns:
            u64, shape (m, 6). The hash is a status alone (protocol.LOST, NO_ROW) where nothing is known.
        """
        lost = (rows[:, _HEADER] & _TYPE) == perf.PERF_RECORD_LOST
        stacks = (rows[:, _MARK] == STACK_ROW) & ~lost
        marked = stacks | lost
        marks = np.flatnonzero(marked)
        # of each row: the mark before it, and whose stack that tells; entry 0 is the last one of the call before
        tids = np.append(self._tid, np.where(lost[marks], np.uint64(0), rows[marks, _ROW_IDS] >> _TID))
        hashes = np.append(self._hash, np.where(lost[marks], np.uint64(LOST), rows[marks, _HASH]))
        self._tid, self._hash = tids[-1], hashes[-1]
        before: NDArray[np.intp] | int = 0
        if len(marks):
            self.rows += int(stacks.sum())
            kept = ~stacks
            before = np.cumsum(marked)[kept]
            rows = rows[kept]
        out = np.empty((len(rows), rows.shape[1] + 1), "<u8", order="F")
        out[:, :-1] = rows
        if not len(marks) and self._hash in (NO_ROW, LOST):  # as long as no program has told of a stack
            out[:, -1] = self._hash
        else:
            mine = tids[before] == rows[:, _SAMPLE_IDS] >> _TID
            unknown = np.where(hashes == LOST, np.uint64(LOST), np.uint64(NO_ROW))
            out[:, -1] = np.where(mine, hashes[before], unknown[before])
        return out
