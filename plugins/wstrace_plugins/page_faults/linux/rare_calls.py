"""The tracepoints of rare calls, and of what leaves the page cache, which are seen of all processes, and their rings.

The rings are apart from the side band's: another process that calls all the time can cost what calls take away, but no
mapping. Its threads are left out in the kernel as soon as they are seen. Where many others call more than MOST_A_SECOND
times in the long run, the tracepoints are switched off; the trace says that these kinds of losses are not told.
"""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from wstrace.clock import now_ns
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux import tracepoints
from wstrace_plugins.page_faults.linux.calls_of_all import samples
from wstrace_plugins.page_faults.linux.descriptors import ClosedBeside
from wstrace_plugins.page_faults.linux.live import Live
from wstrace_plugins.page_faults.linux.rings import Ring
from wstrace_plugins.page_faults.linux.side_band import SideBand

#: Of each CPU; of all; and the least of one. All are powers of two.
_RING_BYTES, _RINGS_BYTES, _LEAST_RING = 1 << 20, 32 << 20, 1 << 16
_RECORD = 256  # no record of a call is as long
#: Records of others, at 0.4 us of our CPU each: so many at once, and so many a second.
_AT_ONCE, MOST_A_SECOND = 100_000, 10_000
#: A thread with so many records in a quarter of a ring is left out; the number of threads, as a filter is a text.
_NOISY, _MOST_LEFT_OUT = 500, 32
#: For so many seconds after threads were left out, what they had done is still read, and how much of it was lost.
_SETTLES = 1.0
#: A record's type and size, its process, and the thread's id in the first namespace (common_pid of the raw data).
_HEADER, _PROCESS, _THREAD = struct.Struct("<I2xH"), struct.Struct("<I"), struct.Struct("<i")
_AT_PROCESS, _AT_THREAD = 8, 32

#: Opens the events of all CPUs, but for some threads: their numbers, and (CPU, descriptor) of each.
Watch = Callable[..., tuple[dict[str, tuple[int, int]], list[tuple[int, int]]]]


class RareCalls:
    """The events and rings of all CPUs; none where that is not permitted.

    Args:
        cpus: the CPUs.
        wanted: whether to open them at all.
        watch: opens them; None = tracepoints.watch_calls().
        ring_bytes: of each CPU, a power of two; less where there are many.

    Attributes:
        complete: whether none was left out or switched off.
    """

    def __init__(
        self, cpus: Sequence[int], *, wanted: bool, watch: Watch | None = None, ring_bytes: int = _RING_BYTES
    ) -> None:
        self._watch: Watch = watch or tracepoints.watch_calls
        self.complete = wanted
        self.numbers: dict[str, tuple[int, int]] = {}
        self._rings: list[Ring] = []
        self._fds: list[int] = []
        self._closing = ClosedBeside()
        self._began, self._cpus = time.monotonic(), cpus
        self._left_out: frozenset[int] = frozenset()
        self._callers: Counter[tuple[int, int]] = Counter()
        self._forgiven, self._settled = 0, 0.0
        if not wanted:
            return
        share = 1 << (_RINGS_BYTES // max(len(cpus), 1)).bit_length() - 1
        ring_bytes = max(min(ring_bytes, share), _LEAST_RING)
        self.numbers, opened = self._watch(cpus)
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

    def read(self) -> Iterator[tuple[bytes, bool]]:
        """What each ring holds, and whether it was full: the kernel tells a loss only with the next record.

        It may have become full while it was read: what was written since then counts, too.
        """
        for ring in self._rings:
            if len(raw := ring.read()):
                full = len(raw) + ring.waiting > ring.size - _RECORD
                if len(raw) > ring.size // 4:
                    self._callers.update(_callers(raw.tobytes()))
                yield raw.tobytes(), full

    def tell(self, side: SideBand) -> None:
        """Gives what the rings hold to the side band."""
        for calls, full in self.read():
            side.take(calls, rare=True, full_ns=now_ns() if full else 0)
        if self.leave_out(side.live):
            side.take(b"", rare=True, full_ns=now_ns())
        if self.too_many(side.others):
            side.rare_calls_end()

    def leave_out(self, traced: Mapping[int, Live]) -> bool:
        """Leaves out threads of other processes that call all the time, for as long as none that is traced has the id.

        Args:
            traced: the processes that are traced.

        Returns:
            Whether what a traced thread did until now may be missing, as it has got the id of one that was left out.
        """
        callers, self._callers = self._callers, Counter()
        noisy = {thread for (pid, thread), n in callers.items() if n >= _NOISY and pid not in traced}
        if not self._fds or not (noisy or self._left_out):
            return False
        ours = {thread for live in traced.values() for thread in self._left_out & live.threads}
        wanted = frozenset(sorted((self._left_out | noisy) - ours)[:_MOST_LEFT_OUT])
        if wanted != self._left_out:
            self._open_again(wanted)
            self._settled = time.monotonic() + _SETTLES
        return bool(ours)

    def _open_again(self, without: frozenset[int]) -> None:
        """An event's filter cannot be changed: new events take the place of the old ones, which end after them."""
        _, opened = self._watch(self._cpus, without)
        new = [fd for _, fd in opened]
        try:
            self._enable(opened)
        except OSError:
            self._closing.take(new)
            return
        if not new:
            return
        for fd in self._fds:
            perf.ioctl(fd, perf.PERF_EVENT_IOC_DISABLE)
        self._closing.take(self._fds)
        self._fds, self._left_out, self.complete = new, without, False

    def too_many(self, others: int) -> bool:
        """Whether to switch off, after so many records of other processes. True once, and it is done."""
        if time.monotonic() < self._settled:
            self._forgiven = others
        others -= self._forgiven
        if not self._fds or others <= _AT_ONCE + MOST_A_SECOND * (time.monotonic() - self._began):
            return False
        self.disarm()
        self.complete = False
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


def _callers(raw: bytes) -> Counter[tuple[int, int]]:
    """How many records of a call there are of each process and thread."""
    if (found := samples(raw)) is None:
        return Counter(_each_caller(raw))
    threads = np.sort(found.threads())
    first = np.flatnonzero(np.append(True, threads[1:] != threads[:-1]))
    counts = np.diff(np.append(first, len(threads))).tolist()
    return Counter({(one >> 32, one & 0xFFFF_FFFF): n for one, n in zip(threads[first].tolist(), counts, strict=True)})


def _each_caller(raw: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + _HEADER.size <= len(raw):
        kind, size = _HEADER.unpack_from(raw, at)
        if size < _HEADER.size or at + size > len(raw):
            return
        if kind == perf.PERF_RECORD_SAMPLE and size >= _AT_THREAD + _THREAD.size:
            yield _PROCESS.unpack_from(raw, at + _AT_PROCESS)[0], _THREAD.unpack_from(raw, at + _AT_THREAD)[0]
        at += size
