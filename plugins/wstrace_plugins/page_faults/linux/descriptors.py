"""Makes room for the events' descriptors by raising our own soft limit during a trace; a target keeps its limit."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from typing import Any

_SCM_MAX_FD = 253  # descriptors in a message (include/net/scm.h)
_SPARE = 64  # left for everything else in this process


def close_later(fds: list[int]) -> None:
    """Closes the descriptors that the list holds now, and removes them. The files whose last ones these were are ended
    by a thread of the kernel (Linux 6.9), for which nobody waits.

    They are put into a message in the queue of a socket that nothing but this queue itself refers to. The kernel's own
    collector (net/unix/garbage.c) frees such sockets with what their messages hold, and before Linux 6.9 does it here.
    """
    import _socket  # what else is in `socket` takes 7 ms to import

    n = len(fds)  # another thread may add some
    with contextlib.ExitStack() as sockets:  # closed after the descriptors, queue first: the other starts the collector
        with contextlib.suppress(OSError):  # no sockets here, or too many descriptors in messages
            sender, queue = _socket.socketpair()
            sockets.callback(sender.close)
            sockets.callback(queue.close)
            sender.setblocking(False)
            sent = [queue.fileno(), *fds[:n]]
            for start in range(0, len(sent), _SCM_MAX_FD):
                part = sent[start : start + _SCM_MAX_FD]
                message = struct.pack(f"{len(part)}i", *part)
                sender.sendmsg([b"\0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, message)])
        for _ in range(n):
            os.close(fds.pop(0))


class ClosedBeside:
    """Descriptors of tracepoints: the last event of each waits 20 to 50 ms for all CPUs
    (tracepoint_synchronize_unregister()), one after the other. The kernel does that, or where it is too old, a thread
    while the last records are read.
    """

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._thread: threading.Thread | None = None

    def take(self, fds: list[int]) -> None:
        """Begins to close them, and empties the list."""
        self._fds += fds
        fds.clear()
        if self._fds and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._close, name="wstrace-close")
            try:
                self._thread.start()
            except RuntimeError:  # no thread can be started now
                self._thread = None

    def _close(self) -> None:
        while self._fds:
            close_later(self._fds)

    def finish(self) -> None:
        """Waits until all are closed."""
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        self._close()

    def after_fork_in_child(self) -> None:
        """In a forked child, which has no such thread: closes what is left, which the parent has open."""
        self._thread = None
        while self._fds:
            os.close(self._fds.pop())


class Descriptors:
    """The limit RLIMIT_NOFILE of the calling process."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None
        self._left = 0  # how many can be opened without counting anew

    @staticmethod
    def _limits() -> Any:
        import resource

        return resource

    @property
    def hard(self) -> int:
        """The hard limit, in descriptors."""
        limits = self._limits()
        hard: int = limits.getrlimit(limits.RLIMIT_NOFILE)[1]
        return hard if hard != limits.RLIM_INFINITY else 1 << 30

    def room(self, more: int) -> bool:
        """Whether `more` descriptors can be opened now; raises the soft limit if needed."""
        if more <= self._left:
            self._left -= more
            return True
        limits = self._limits()
        soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
        need = len(os.listdir("/proc/self/fd")) + more + _SPARE  # noqa: PTH208 - a count
        if soft == limits.RLIM_INFINITY:
            soft = self.hard
        elif need > soft:
            if need > self.hard:
                return False
            self._before = self._before or (soft, hard)
            soft = min(max(need, 2 * soft), self.hard)  # counted again rarely, as it takes longer with each descriptor
            limits.setrlimit(limits.RLIMIT_NOFILE, (soft, hard))
        self._left = max(soft - need, 0)
        return True

    def restore(self) -> None:
        """Restores the soft limit."""
        if self._before is not None:
            limits = self._limits()
            limits.setrlimit(limits.RLIMIT_NOFILE, self._before)
            self._before = None
            self._left = 0
