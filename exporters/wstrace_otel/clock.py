"""Wall time of a record: its monotonic time and the offset at the nearest mark of both clocks."""

from __future__ import annotations

import bisect
import time
from collections.abc import Mapping
from typing import Any


class WallClock:
    """Turns monotonic ns into ns since the epoch; re-read as time goes on, since wall clocks are set and slewed.

    A replay has marks of its own: facts["clock_marks"] = [(monotonic, realtime), ...].
    """

    EVERY = 60 * 10**9

    def __init__(self, facts: Mapping[str, Any]) -> None:
        marks = facts.get("clock_marks")
        self._live = not marks
        pairs = sorted((int(m), int(r)) for m, r in marks) if marks else [(time.monotonic_ns(), time.time_ns())]
        self._times = [m for m, _ in pairs]
        self._offsets = [r - m for m, r in pairs]

    def offset(self, monotonic_ns: int) -> int:
        """What to add to that time."""
        if self._live and monotonic_ns - self._times[-1] > self.EVERY and len(self._times) < 100_000:
            now = time.monotonic_ns()
            if now - self._times[-1] > self.EVERY:
                self._times.append(now)
                self._offsets.append(time.time_ns() - now)
        at = bisect.bisect_left(self._times, monotonic_ns)
        if at and (at == len(self._times) or monotonic_ns - self._times[at - 1] <= self._times[at] - monotonic_ns):
            at -= 1
        return self._offsets[at]

    def wall(self, monotonic_ns: int) -> int:
        """Ns since the epoch."""
        return max(0, monotonic_ns + self.offset(monotonic_ns))
