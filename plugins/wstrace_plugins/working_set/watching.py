"""What triggers ask of the processes or the cgroup that they are about; sizes over time; when one may fire."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from wstrace.firing import Firing
from wstrace_plugins.working_set.conditions import REARM, Condition

#: Sizes are remembered for ten minutes, one a second.
_REMEMBERED, _APART_NS = 600, 1_000_000_000


class Watched(Protocol):
    """What triggers are about.

    name: what tells it from others. ending: set before the last reading. gone: it will never come back.
    """

    name: str
    ending: bool
    gone: bool

    @property
    def seconds(self) -> float:
        """When the next reading is due at the latest; inf = by the source's interval."""

    def read(self) -> Sequence[Condition]:
        """Reads the size, if that is due, and says what has come true with it."""

    def look_is_due(self) -> bool:
        """Whether the memory is to be looked at although nothing fires."""

    def looked(self, time_ns: int, cpu_seconds: float, n_bytes: int = 0) -> None:
        """Notes a look at the memory that ended then, and how much was seen."""

    def pids(self) -> Sequence[int]:
        """The processes to look at."""

    def members(self) -> tuple[int, ...]:
        """The processes that were seen in it, the newest first, those that have ended included."""

    def firing(self, condition: Condition, time_ns: int, pids: tuple[int, ...]) -> Firing:
        """Describes a firing at a time. For pids see Firing."""

    def close(self) -> None:
        """Closes its descriptors."""


class Sizes:
    """A size over time, one a second, and the newest one."""

    def __init__(self) -> None:
        self._read: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        self.newest = (0, 0)

    def add(self, time_ns: int, n_bytes: int) -> None:
        """Adds a reading."""
        self.newest = time_ns, n_bytes
        if not self._read or time_ns - self._read[-1][0] >= _APART_NS:
            self._read.append(self.newest)

    def all(self) -> tuple[tuple[int, int], ...]:
        """What was read, in order of time."""
        last = () if self._read and self._read[-1] == self.newest else (self.newest,)
        return (*self._read, *last)

    def least(self, since_ns: int) -> int:
        """The smallest size since a time."""
        return min((n for at, n in self.all() if at >= since_ns), default=self.newest[1])


class Armed:
    """Which conditions on sizes may fire now.

    Args:
        pause: seconds for which one that has fired does not fire again.
    """

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._fired: dict[Condition, float] = {}  # by time.monotonic()
        self._waits: set[Condition] = set()  # for the size to fall
        self._grown_since: dict[Condition, int] = {}  # sizes before that are those of a growth that was told

    def rises(self, condition: Condition, n_bytes: float, limit: float) -> bool:
        """Whether a size has come to its limit, for the first time since it was clearly below it."""
        if n_bytes < REARM * limit:
            self._waits.discard(condition)
        if n_bytes < limit or condition in self._waits or not self.may(condition):
            return False
        self._waits.add(condition)
        return True

    def may(self, condition: Condition) -> bool:
        """Whether it has not fired within the pause; it counts as fired then."""
        now = time.monotonic()
        if now - self._fired.get(condition, -self._pause) < self._pause:
            return False
        self._fired[condition] = now
        return True

    def grown(self, condition: Condition, sizes: Sizes) -> bool:
        """Whether as much was gained as a condition names, in its time and since it fired last."""
        time_ns, n_bytes = sizes.newest
        since = max(time_ns - int(condition.seconds * 1e9), self._grown_since.get(condition, 0))
        if n_bytes - sizes.least(since) < condition.amount or not self.may(condition):
            return False
        self._grown_since[condition] = time_ns
        return True
