"""The tracepoints of rare calls, which are seen of all processes, and their rings.

The rings are apart from the side band's: another process that calls all the time can cost what calls take away, but no
mapping. Where others call more than MOST_A_SECOND times in the long run, the tracepoints are switched off; the trace
says that these kinds of losses are not told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from wstrace_page_faults.linux import perf_event as perf
from wstrace_page_faults.linux import tracepoints
from wstrace_page_faults.linux.descriptors import ClosedBeside
from wstrace_page_faults.linux.rings import Ring

_RING_BYTES = 1 << 20
_RECORD = 256  # no record of a call is as long
#: Records of others, at 2 us of our CPU each: so many at once, and so many a second.
_AT_ONCE, MOST_A_SECOND = 100_000, 10_000


class RareCalls:
    """The events and rings of all CPUs; none where that is not permitted.

    Args:
        cpus: the CPUs.
        wanted: whether to open them at all.
    """

    def __init__(self, cpus: Sequence[int], *, wanted: bool) -> None:
        self.numbers: dict[str, tuple[int, int]] = {}
        self._rings: list[Ring] = []
        self._fds: list[int] = []
        self._closing = ClosedBeside()
        self._began = time.monotonic()
        if not wanted:
            return
        self.numbers, opened = tracepoints.watch_calls(cpus)
        self._fds = [fd for _, fd in opened]
        try:
            for cpu in cpus if opened else ():
                self._rings.append(Ring("calls", cpu, _RING_BYTES))
            into = {ring.cpu: ring.fd for ring in self._rings}
            for cpu, fd in opened:
                perf.ioctl(fd, perf.PERF_EVENT_IOC_SET_OUTPUT, into[cpu])
                perf.ioctl(fd, perf.PERF_EVENT_IOC_ENABLE)
        except OSError:  # no room for them
            self.close()
            self.numbers = {}

    @property
    def filled(self) -> bool:
        """Whether it is time to read: a quarter of a ring is full."""
        return any(ring.waiting > ring.size // 4 for ring in self._rings)

    def read(self) -> Iterator[tuple[bytes, bool]]:
        """What each ring holds, and whether it was full: the kernel tells a loss only with the next record."""
        for ring in self._rings:
            if len(raw := ring.read()):
                yield raw.tobytes(), len(raw) > ring.size - _RECORD

    def too_many(self, others: int) -> bool:
        """Whether to switch off, after so many records of other processes. True once, and it is done."""
        if not self._fds or others <= _AT_ONCE + MOST_A_SECOND * (time.monotonic() - self._began):
            return False
        self.disarm()
        return True

    def disarm(self) -> None:
        """Ends the events; what the rings hold can still be read."""
        self._closing.take(self._fds)

    def close(self) -> None:
        """Ends the events and unmaps the rings."""
        self.disarm()
        self._closing.finish()
        for ring in self._rings:
            ring.close()
        self._rings = []

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied descriptors."""
        self._closing.after_fork_in_child()
        while self._fds:
            os.close(self._fds.pop())
        for ring in self._rings:
            ring.after_fork_in_child()
