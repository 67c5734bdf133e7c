"""The tracepoints of rare calls, which are seen of all processes, and their rings.

The rings are apart from the side band's: another process that calls all the time can cost what calls take away, but no
mapping. Where many others call more than MOST_A_SECOND times in the long run, the tracepoints are switched off; the
trace says that these kinds of losses are not told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from wstrace.clock import now_ns
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux import tracepoints
from wstrace_plugins.page_faults.linux.events import close_later
from wstrace_plugins.page_faults.linux.rings import Ring
from wstrace_plugins.page_faults.linux.side_band import SideBand

#: Of each CPU; of all; and the least of one. All are powers of two.
_RING_BYTES, _RINGS_BYTES, _LEAST_RING = 1 << 20, 32 << 20, 1 << 16
_RECORD = 256  # no record of a call is as long
#: Records of others, at 2 us of our CPU each: so many at once, and so many a second.
_AT_ONCE, MOST_A_SECOND = 100_000, 5_000


class RareCalls:
    """The events and rings of all CPUs; none where that is not permitted.

    Args:
        cpus: the CPUs.
        wanted: whether to open them at all.

    Attributes:
        complete: whether none was left out or switched off.
    """

    def __init__(self, cpus: Sequence[int], *, wanted: bool) -> None:
        self.complete = wanted
        self.numbers: dict[str, tuple[int, int]] = {}
        self._rings: list[Ring] = []
        self._fds: list[int] = []
        self._began = time.monotonic()
        if not wanted:
            return
        share = 1 << (_RINGS_BYTES // max(len(cpus), 1)).bit_length() - 1
        ring_bytes = max(min(_RING_BYTES, share), _LEAST_RING)
        self.numbers, opened = tracepoints.watch_calls(cpus)
        self.complete = bool(opened)
        self._fds = [fd for _, fd in opened]
        try:
            for cpu in cpus if opened else ():
                self._rings.append(Ring("calls", cpu, ring_bytes))
            self._enable(opened)
        except OSError:  # no room for them
            self.close()
            self.numbers, self.complete = {}, False

    def _enable(self, opened: Sequence[tuple[int, int]]) -> None:
        into = {ring.cpu: ring.fd for ring in self._rings}
        for cpu, fd in opened:
            perf.ioctl(fd, perf.PERF_EVENT_IOC_SET_OUTPUT, into[cpu])
            perf.ioctl(fd, perf.PERF_EVENT_IOC_ENABLE)

    @property
    def filled(self) -> bool:
        """Whether it is time to read: a quarter of a ring is full."""
        return any(ring.waiting > ring.size // 4 for ring in self._rings)

    def tell(self, side: SideBand) -> None:
        """Gives what the rings hold to the side band; of one that was full, that it lost the rest.

        The kernel tells a loss only with the next record. A ring may have become full while it was read.
        """
        for ring in self._rings:
            if len(raw := ring.read()):
                full = len(raw) + ring.waiting > ring.size - _RECORD
                side.take(raw.tobytes(), rare=True, full_ns=now_ns() if full else 0)
        if self.too_many(side.others):
            side.rare_calls_end()

    def too_many(self, others: int) -> bool:
        """Whether to switch off, after so many records of other processes. True once, and it is done."""
        if not self._fds or others <= _AT_ONCE + MOST_A_SECOND * (time.monotonic() - self._began):
            return False
        self.disarm()
        self.complete = False
        return True

    def disarm(self) -> None:
        """Ends the events; what the rings hold can still be read."""
        close_later(self._fds)

    def close(self) -> None:
        """Ends the events and unmaps the rings."""
        self.disarm()
        for ring in self._rings:
            ring.close()
        self._rings = []

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied descriptors."""
        while self._fds:
            os.close(self._fds.pop())
        for ring in self._rings:
            ring.after_fork_in_child()
