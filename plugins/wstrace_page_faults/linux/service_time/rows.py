"""The rows with service times in a fault ring: told apart from the samples, and given to those behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace_page_faults.linux import perf_event as perf
from wstrace_page_faults.linux.service_time.programs import SERVICE_ROW

_HEADER, _ROW_IDS, _SAMPLE_IDS, _MARK, _VALUE = 0, 1, 2, 3, 4
_TID, _TYPE = np.uint64(32), np.uint64(0xFFFFFFFF)
_NOBODY = np.uint64((1 << 64) - 1)

#: What a sample has instead of its time, plus 1: no row stood before it; its row says that the entry was not seen.
NO_ROW, NO_ENTRY = 0, 1


class ServiceRows:
    """The pairing of one ring, by position: a sample's row stands directly before it, and is of its thread.

    The program and the sample's writer run one after the other on their CPU, so that nothing comes between. Where one
    of the two found no room, a LOST record does, or the next one's row: so no time goes to another fault.
    """

    def __init__(self) -> None:
        self._tid, self._value = _NOBODY, np.uint64(0)  # of the last row of the call before

    def pair(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows without those of times, and each one's time in ns plus 1 (NO_ROW, NO_ENTRY) as a last column.

        Args:
            rows: u64, shape (n, k), in the order of the ring, stack rows taken out; rows of other records are kept.

        Returns:
            u64, shape (m, k + 1).
        """
        lost = (rows[:, _HEADER] & _TYPE) == perf.PERF_RECORD_LOST
        times = (rows[:, _MARK] == SERVICE_ROW) & ~lost
        # of each row: the thread and the time that the row before it tells
        tids = np.append(self._tid, np.where(times, rows[:, _ROW_IDS] >> _TID, _NOBODY))
        values = np.append(self._value, rows[:, _VALUE])
        self._tid, self._value = tids[-1], values[-1]
        kept = ~times
        samples = rows[kept]
        out = np.empty((len(samples), rows.shape[1] + 1), "<u8")
        out[:, :-1] = samples
        mine = tids[:-1][kept] == samples[:, _SAMPLE_IDS] >> _TID
        out[:, -1] = np.where(mine, values[:-1][kept] + np.uint64(1), np.uint64(NO_ROW))
        return out
