"""The clock of all records, and its conversion to wall time."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable

#: Nanoseconds on the clock of the records: CLOCK_MONOTONIC on Linux, QueryPerformanceCounter on Windows.
#: `time.monotonic_ns` is another clock on Windows before Python 3.13 (GetTickCount64), so the two must not be mixed.
now_ns = time.perf_counter_ns

#: A live anchor reads both clocks again after this interval, because wall clocks are set and slewed.
_REREAD_NS = 60 * 10**9
#: The number of readings that are kept: two months of a live trace.
_MOST_MARKS = 100_000


class ClockAnchor:
    """Readings of the records' clock and the wall clock at the same moments; they convert record times to wall time.

    marks: (records' clock, wall clock) in ns, of a recorded trace. Without any, this machine's clocks are read now and
    again while the trace runs. name: the name of a recorded trace's clock, as its system calls it; "" = this machine's
    clock.
    """

    def __init__(self, marks: Iterable[tuple[int, int]] = (), name: str = "") -> None:
        self._offsets = sorted((at, wall - at) for at, wall in marks)  # (records' clock, what to add)
        self.name = name
        self.live = not self._offsets
        if self.live:
            self._offsets.append(_reading())

    def __repr__(self) -> str:
        return f"<ClockAnchor {'live' if self.live else self.name or 'recorded'} marks={len(self._offsets)}>"

    @property
    def marks(self) -> list[tuple[int, int]]:
        """(records' clock, wall clock) in ns, ascending."""
        return [(at, at + offset) for at, offset in self._offsets]

    def offset(self, time_ns: int) -> int:
        """The offset in ns from a record's time to its wall time, as measured at the nearest mark."""
        if self.live and len(self._offsets) < _MOST_MARKS and time_ns - self._offsets[-1][0] > _REREAD_NS:
            reading = _reading()
            if reading[0] - self._offsets[-1][0] > _REREAD_NS:
                self._offsets.append(reading)
        after = bisect.bisect_left(self._offsets, (time_ns,))
        nearest = self._offsets[max(after - 1, 0) : after + 1]
        return min(nearest, key=lambda mark: abs(mark[0] - time_ns))[1]

    def wall(self, time_ns: int) -> int:
        """The wall time of a record's time, in ns since the epoch, never less than 0."""
        return max(0, time_ns + self.offset(time_ns))


def _reading() -> tuple[int, int]:
    """(records' clock, wall clock minus it): the narrowest of three readings, as a preemption in between shifts one."""
    readings = []
    for _ in range(3):
        before, wall, after = now_ns(), time.time_ns(), now_ns()
        middle = (before + after) // 2
        readings.append((after - before, middle, wall - middle))
    return min(readings)[1:]
