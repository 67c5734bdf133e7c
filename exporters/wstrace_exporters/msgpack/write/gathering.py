"""Batches that the writer keeps, until they fill a frame or for later parts."""

from __future__ import annotations

import time

from wstrace.batch import Batch
from wstrace_exporters.msgpack.format.layout import FRAME_ROWS, LIMITS

#: A session's rows of a table may fill this fraction of a reader's limit, so that a part that repeats them has room.
_HELD_SHARE = 0.5


class Gathering:
    """Batches of one stream that wait to become a frame."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.rows = 0
        self.lost = 0
        self.since = 0.0

    def fits(self, batch: Batch) -> bool:
        """Whether a batch has the same columns and schema as those that wait."""
        first = self.batches[0]
        return set(first) == set(batch) and first.schema == batch.schema

    @property
    def enough(self) -> bool:
        """Whether to write them: half a frame, which is one batch mostly. To join batches is to copy all columns."""
        return self.rows >= FRAME_ROWS // 2

    def add(self, batch: Batch) -> None:
        """Adds a batch."""
        if not self.batches:
            self.since = time.monotonic()
        self.batches.append(batch)
        self.rows += len(batch)
        self.lost += batch.lost


class Held:
    """All rows of a table so far, which every part repeats; bounded, so that no part reaches a reader's limit."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._rows = 0

    def add(self, batch: Batch) -> bool:
        """Adds the rows of a batch; returns False when they do not fit."""
        if self._rows + len(batch) > _HELD_SHARE * LIMITS.table_rows:
            return False
        self._rows += len(batch)
        self.batches.append(batch.take(slice(None)))  # without its `lost`, which is written only once
        return True
