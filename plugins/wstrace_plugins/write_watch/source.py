"""The source `write_watch`: the pages that a process wrote between two reads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from wstrace.batch import Batch, address_space, snapshot_parts
from wstrace.clock import now_ns
from wstrace.errors import Unavailable, UsageError
from wstrace.interfaces import Context, Level, Source
from wstrace.schema import ADDRESS_SPACE, WRITTEN_PAGES
from wstrace_plugins.os.intervals import cut
from wstrace_plugins.write_watch.backend import backend


class WriteWatchSource(Source):
    """Runs of pages that the calling process has written since the last read.

    Its children are not watched: the system does not pass the watch on in a fork.

    Args:
        interval: seconds between two reads.
        max_cpu: at most this share of one CPU; the interval is stretched to stay below it.
    """

    name = "write_watch"
    streams = (WRITTEN_PAGES, ADDRESS_SPACE)

    def __init__(self, *, interval: float = 1.0, max_cpu: float = 0.05) -> None:
        if interval <= 0:
            raise UsageError(f"write_watch: interval is {interval}", "give seconds, more than 0")
        if not 0 < max_cpu <= 1:
            raise UsageError(f"write_watch: max_cpu is {max_cpu}", "give a part of one CPU, above 0 and up to 1")
        self._interval, self._max_cpu = interval, max_cpu
        self._watcher: Any = None
        self._snap = 0

    @classmethod
    def probe(cls) -> Level:
        """full, tried on pages of its own. Raises Unavailable."""
        backend().Watcher().close()
        return Level("full")

    def start(self, context: Context) -> None:
        """Proves that writes are seen, and starts the watch."""
        self._context, self._backend = context, backend()
        self.pid = os.getpid()
        if context.groups or any(target.pid != self.pid for target in context.targets):
            raise Unavailable(
                "write_watch watches the process in which the session runs",
                'in that process: wstrace.Session(sources=["write_watch"])',
            )
        self._watcher = self._backend.open_watcher()
        self._due = time.monotonic() + self._interval

    def drain(self, timeout: float) -> Iterable[Batch]:
        """What was written, when a read is due; waits at most timeout seconds."""
        wait = self._due - time.monotonic()
        time.sleep(max(min(wait, timeout), 0))
        if wait <= timeout:
            yield from self._read()

    def stop(self) -> Iterable[Batch]:
        """Reads a last time, and ends the watch."""
        if self._watcher is None:
            return
        yield from self._read()
        self._watcher.close()
        self._watcher = None

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied handles."""
        if self._watcher is not None:
            self._watcher.after_fork_in_child()

    def _read(self) -> Iterator[Batch]:
        """The mappings, then the runs written since the last read."""
        watcher = self._watcher
        if watcher is None:
            return
        started = time.thread_time()
        start, end = watcher.ranges()
        time_ns = now_ns()
        # after the read, so that every mapping with a written page is listed
        mappings = self._backend.mappings(self._context.strings)
        yield address_space(self.pid, time_ns, mappings, self._context.strings, self.name)
        # one scan joins adjacent pages, but a run must lie in one mapping
        borders = np.union1d(mappings["start"], mappings["end"])
        low, high, _ = cut(start, end, borders)
        runs = {"start": low, "pages": ((high - low) // np.uint64(watcher.page_size)).astype("<u4")}
        self._snap += 1
        yield from snapshot_parts(WRITTEN_PAGES, runs, snap=self._snap, pid=self.pid, time_ns=time_ns,
                         strings=self._context.strings, source=self.name)  # fmt: skip
        self._due = time.monotonic() + max(self._interval, (time.thread_time() - started) / self._max_cpu)
