"""Ring buffers between the kernel and us, per CPU: minor and major faults, side band, stacks; when they are read."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import select
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.errors import Unavailable
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux import perf_event as perf

if TYPE_CHECKING:
    from numpy.typing import NDArray

MINOR, MAJOR, SIDE = "minor", "major", "side"
#: The kind of the rings for sampled faults with a copy of their stack, which exist where stacks were wanted.
STACKS = "stacks"
#: The divisor of each ring's size: major faults are rarer, as each takes a disk read, and one mapping serves many
#: faults. A ring of mappings is no larger than what can be decoded in between: 12,000 records, 0.2 s.
_PARTS = {MINOR: 1, MAJOR: 8, SIDE: 4, STACKS: 1}
_LARGEST_SIDE = 1 << 20
_LARGEST, _ALL_CPUS, _SMALLEST = 16 << 20, 128 << 20, 64 << 10
_PAGE = mmap.PAGESIZE


class Ring:
    """A buffer into which events write once SET_OUTPUT points them to `fd`.

    It belongs to an event of our own that records nothing. So the buffer exists before any traced thread and outlives
    all of them, and its descriptor becomes readable only when a quarter is full, never because a thread has ended.
    A forked child inherits the descriptor, but not the mapping (VM_DONTCOPY).
    """

    def __init__(self, kind: str, cpu: int, size: int) -> None:
        self.kind, self.cpu, self.size, self._pid = kind, cpu, size, os.getpid()
        owner = perf.attr(perf.PERF_TYPE_SOFTWARE, perf.PERF_COUNT_SW_DUMMY, "watermark", "exclude_kernel",
                          wakeup_watermark=size // 4)  # fmt: skip
        self.fd = perf.perf_event_open(owner, self._pid, cpu)
        try:
            self._address = perf.map_ring(self.fd, size + _PAGE)
        except OSError:
            os.close(self.fd)
            raise
        memory: Any = (ctypes.c_uint8 * (size + _PAGE)).from_address(self._address)
        # aligned u64 loads and stores: a copy by bytes (struct) could read a partly written cursor
        self._cursors: NDArray[Any] = np.frombuffer(memory, "<u8", _PAGE // 8)
        self._data: NDArray[Any] = np.frombuffer(memory, np.uint8, size, _PAGE)
        self._head = self._tail = 0

    @property
    def filled(self) -> bool:
        """True when there is something to read."""
        return bool(self._cursors[perf.DATA_HEAD] != self._tail)

    @property
    def waiting(self) -> int:
        """The bytes that can be read."""
        return int(self._cursors[perf.DATA_HEAD]) - self._tail

    def view(self) -> NDArray[Any]:
        """The bytes since the last free(), u8, shape (n,): where they lie, so what is kept of them is to be copied."""
        head = self._head = int(self._cursors[perf.DATA_HEAD])
        n = head - self._tail
        if n == 0:
            return _NOTHING
        perf.memory_barrier()
        start = self._tail % self.size
        first = min(n, self.size - start)
        if first == n:
            return self._data[start : start + n]
        return np.concatenate((self._data[start:], self._data[: n - first]))

    def free(self) -> None:
        """Frees the room of what the last view() gave."""
        if self._head != self._tail:
            perf.memory_barrier()
            self._cursors[perf.DATA_TAIL] = self._tail = self._head

    def read(self) -> NDArray[Any]:
        """A copy of the bytes since the last call, u8, shape (n,); frees their room in the ring."""
        out = self.view().copy()
        self.free()
        return out

    def close(self) -> None:
        """Unmaps the ring, where it is mapped, and closes its descriptor."""
        self._cursors = self._data = _NOTHING
        if os.getpid() == self._pid:
            perf.unmap_ring(self._address, self.size + _PAGE)
        perf.close_all([self.fd])


_NOTHING = np.zeros(0, np.uint8)


class Rings:
    """The rings of all CPUs.

    size: bytes of a minor ring, rounded down to a power of two; 0 = 16 MiB per CPU, at most 128 MiB in all. stacks:
    make the rings for stacks, too. Raises OSError: from perf_event_open; Unavailable: not even the smallest rings may
    be locked in memory.
    """

    def __init__(self, cpus: Sequence[int], size: int, *, stacks: bool) -> None:
        size = max(size or min(_LARGEST, _ALL_CPUS // len(cpus)), _PAGE)
        self.size = 1 << size.bit_length() - 1
        smallest = min(self.size, _SMALLEST)
        while not self._made(cpus, stacks):
            if self.size <= smallest:
                limit = procfs.setting("kernel/perf_event_mlock_kb")
                raise Unavailable(
                    f"no room for the kernel's buffers: kernel.perf_event_mlock_kb is {limit} and used up",
                    "end other tracers, or sudo sysctl kernel.perf_event_mlock_kb=4096",
                )
            self.size //= 2

    def _made(self, cpus: Sequence[int], stacks: bool) -> bool:
        """Makes all rings; False: they may not be locked in memory. Raises OSError."""
        self._by_place: dict[tuple[str, int], Ring] = {}
        try:
            for cpu, (kind, part) in product(cpus, _PARTS.items()):
                if stacks or kind != STACKS:
                    most = _LARGEST_SIDE if kind == SIDE else self.size
                    self._by_place[kind, cpu] = Ring(kind, cpu, max(min(self.size // part, most), _PAGE))
        except OSError as error:
            self.close()
            # EPERM from mmap: over kernel.perf_event_mlock_kb per CPU and RLIMIT_MEMLOCK
            if error.errno not in (errno.EPERM, errno.ENOMEM) or error.filename != "mmap":
                raise
            return False
        return True

    def __iter__(self) -> Iterator[Ring]:
        return iter(self._by_place.values())

    def fd(self, kind: str, cpu: int) -> int:
        """The descriptor to which events of that kind on that CPU write."""
        return self._by_place[kind, cpu].fd

    def close(self) -> None:
        """Unmaps and closes all rings."""
        for ring in self:
            ring.close()


_os: Any = os  # When mypy checks for Windows, the POSIX half has no types.
#: The pause grows up to this while nothing comes: a wake-up takes as long as several faults, and there is nothing to
#: read. A process that begins to fault again is read that much later, once.
_IDLE_SECONDS = 0.4
_NICE = -10


class Pace:
    """Waits for what is to be read. seconds: the time between two reads."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._pause = seconds, seconds
        self._due, self._bell = 0.0, -1
        self._poll: Any = None
        self._before_others = False  # whether its thread runs before those of other programs
        self._closing = threading.Lock()

    def watch(self, fds: Iterable[int]) -> None:
        """Begins; fds: what is readable when there is much to read."""
        self._bell = _os.eventfd(0, _os.EFD_NONBLOCK | _os.EFD_CLOEXEC)
        self._poll = getattr(select, "poll")()  # noqa: B009  Windows lacks it
        for fd in (*fds, self._bell):
            self._poll.register(fd, 1)  # POLLIN

    @property
    def rest(self) -> float:
        """The seconds until the next read."""
        return max(self._due - time.monotonic(), 0.0)

    def wait(self, seconds: float) -> bool:
        """Waits at most so long; returns whether there is much to read, or the session stops."""
        if not self._before_others:
            self._before_others = True
            _run_before_others()
        return bool(self._poll.poll(seconds * 1000))

    def has_read(self, *, news: bool) -> None:
        """There was something to read, or nothing."""
        self._pause = self.seconds if news else max(self.seconds, min(2 * self._pause, _IDLE_SECONDS))
        self._due = time.monotonic() + self._pause

    def wake(self) -> None:
        """Ends this wait and each later one: the session stops. Called by another thread."""
        with self._closing:  # else its number may be another file's by now
            if self._bell >= 0:
                _os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Closes what woke it."""
        with self._closing:
            bell, self._bell = self._bell, -1
            perf.close_all([bell])

    def forked(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._closing = threading.Lock()


def _run_before_others() -> None:
    """Has the calling thread run before others where that is permitted and it is not the program's main thread.

    On a busy machine rings overflow while their reader waits for a CPU: with rings of 8 KiB it loses a quarter less.
    """
    if threading.current_thread() is not threading.main_thread():
        with contextlib.suppress(OSError):
            _os.setpriority(_os.PRIO_PROCESS, threading.get_native_id(), _NICE)
