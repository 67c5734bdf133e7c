"""Batches that the writer keeps: until they fill a frame, or for the parts to come."""

from __future__ import annotations

import time

from wstrace.batch import Batch
from wstrace_msgpack.format.layout import LIMITS

#: share of a reader's limit which a session's rows of a table may take: a part that begins with them is not full yet
_HELD_SHARE = 0.5


class Gathering:
    """Batches of one stream that wait to become a frame."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.rows = 0
        self.lost = 0
        self.since = 0.0

    def fits(self, batch: Batch) -> bool:
        """Whether it has the columns of those that wait, with the same meaning."""
        first = self.batches[0]
        return set(first) == set(batch) and first.schema == batch.schema

    def add(self, batch: Batch) -> None:
        """One more."""
        if not self.batches:
            self.since = time.monotonic()
        self.batches.append(batch)
        self.rows += len(batch)
        self.lost += batch.lost


class Held:
    """All rows of a table so far: every part needs them. Bounded, so that a part never reaches a reader's limit."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._rows = 0

    def add(self, batch: Batch) -> bool:
        """The rows of a batch; False when there is no room for them."""
        if self._rows + len(batch) > _HELD_SHARE * LIMITS.table_rows:
            return False
        self._rows += len(batch)
        self.batches.append(batch.take(slice(None)))  # without its loss, which is told once
        return True
