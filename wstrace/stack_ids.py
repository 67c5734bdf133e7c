"""StackIds: the one counter that every part of a session takes ids of call sites from."""

from __future__ import annotations

import threading


class StackIds:
    """Gives out ids 1, 2, 3, ... up to a limit. Thread-safe, so that trees of several threads never share an id.

    Args:
        limit: the most ids that are given. A trace file holds as many call sites in each of its parts.
    """

    LIMIT = 1 << 20

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._given = 0
        self._lock = threading.Lock()

    def take(self, n: int) -> range:
        """The next n ids, or as many of them as are left."""
        with self._lock:
            first = self._given + 1
            self._given = min(self._given + n, self.limit)
            return range(first, self._given + 1)
