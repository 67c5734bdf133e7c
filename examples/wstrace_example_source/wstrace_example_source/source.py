"""ResidentSize: samples the resident bytes of the target."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import psutil

from wstrace import Batch, Context, Source
from wstrace.clock import now_ns
from wstrace.schema import Column, Schema

RESIDENT_SIZE = Schema(
    "resident_size",
    (
        Column("time_ns", "u64", "ns", "monotonic clock"),
        Column("pid", "u32", "id"),
        Column("bytes", "u64", "count", "resident bytes"),
    ),
)


class ResidentSize(Source):
    """Samples resident bytes.

    Args:
        interval_ms: time between two samples.
    """

    name = "resident_size"
    streams = (RESIDENT_SIZE,)

    def __init__(self, *, interval_ms: int = 10) -> None:
        self._interval = interval_ms / 1000
        self._processes: list[psutil.Process] = []

    def start(self, context: Context) -> None:
        """Takes a handle on every target."""
        self._context = context
        self._processes = [psutil.Process(target.pid) for target in context.targets]

    def drain(self, timeout: float) -> Iterable[Batch]:
        """One batch: a sample of each target that still lives."""
        time.sleep(min(timeout, self._interval))
        rows = []
        for process in self._processes:
            try:
                rows.append((process.pid, process.memory_info().rss))
            except psutil.Error:  # it has ended
                continue
        if not rows:
            return ()
        pids, sizes = zip(*rows, strict=True)
        now = now_ns()
        columns = {
            "time_ns": np.full(len(rows), now, "<u8"),
            "pid": np.array(pids, "<u4"),
            "bytes": np.array(sizes, "<u8"),
        }
        return [Batch(RESIDENT_SIZE, columns, window=(now, now), source=self.name, strings=self._context.strings)]

    def stop(self) -> Iterable[Batch]:
        """Nothing is left over."""
        return ()
