"""The rows with service times in a fault ring: told apart from the samples, and given to those behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.service_time.programs import SERVICE_ROW

_HEADER, _ROW_IDS, _SAMPLE_IDS, _MARK, _VALUE = 0, 1, 2, 3, 4
_TID, _TYPE = np.uint64(32), np.uint64(0xFFFFFFFF)

#: What a sample has instead of its time, plus 1: no row stood before it; its row says that the entry was not seen.
NO_ROW, NO_ENTRY = 0, 1


class ServiceRows:
    """The pairing of one ring, by position: a sample's row stands directly before it, and is of its thread.

    The program and the sample's writer run one after the other on their CPU, so that nothing comes between. Where one
    of the two found no room, a LOST record does, or the next one's row: so no time goes to another fault.
    """

    def __init__(self) -> None:
        self._last: NDArray[Any] | None = None  # the row that the call before ended with, if its sample comes now

    def pair(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows without those of times, and each one's time in ns plus 1 (NO_ROW, NO_ENTRY) as a last column.

        Args:
            rows: u64, shape (n, k), in the order of the ring, stack rows taken out; rows of other records are kept.

        Returns:
            u64, shape (m, k + 1).
        """
        times = (rows[:, _MARK] == SERVICE_ROW) & ((rows[:, _HEADER] & _TYPE) != perf.PERF_RECORD_LOST)
        kept = np.flatnonzero(~times)
        before, last = kept - 1, self._last
        out = np.empty((len(kept), rows.shape[1] + 1), "<u8", order="F")
        out[:, :-1] = rows.take(kept, axis=0)
        mine = times.take(before) & (rows[:, _ROW_IDS].take(before) >> _TID == out[:, _SAMPLE_IDS] >> _TID)
        out[:, -1] = np.where(mine, rows[:, _VALUE].take(before) + np.uint64(1), np.uint64(NO_ROW))
        if len(kept) and not kept[0]:  # what stands before it came with the call before
            out[0, -1] = NO_ROW
            if last is not None and last[_ROW_IDS] >> _TID == out[0, _SAMPLE_IDS] >> _TID:
                out[0, -1] = last[_VALUE] + np.uint64(1)
        if len(rows):
            self._last = rows[-1].copy() if times[-1] else None
        return out
