"""When the kernel's buffers are read: at a pace, when one is a quarter full, and at once when the session stops."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterable
from typing import Any

_os: Any = os  # When mypy checks for Windows, the POSIX half has no types.
#: The pause grows up to this while nothing comes: a wake-up takes as long as several faults, and there is nothing to
#: read. A process that begins to fault again is read that much later, once.
_IDLE_SECONDS = 0.4


class Pace:
    """Waits for what is to be read.

    Args:
        seconds: the time between two reads.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._pause = seconds, seconds
        self._due, self._bell = 0.0, -1
        self._poll: Any = None
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
            self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """In a forked child: the same without the lock, which another thread of the parent may have held."""
        bell, self._bell = self._bell, -1
        if bell >= 0:
            os.close(bell)
