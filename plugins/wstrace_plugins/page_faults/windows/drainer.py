"""Drainer: a thread that empties the kernel's buffers of all watched processes, and does nothing else.

A burst of faults fills a buffer of 1,024 records within 1 or 2 ms, so nothing that may take as long happens between two
drains: the session's thread takes the records, finds names, lists memory and publishes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.page_faults.windows.watch import KERNEL_RECORDS, Changes, Watch

FASTEST_SECONDS = 0.001
_FILL = KERNEL_RECORDS // 4  # the number of records that a drain should find, well below the size of the buffer
_MAX_RECORDS = 1 << 20  # records held for the session's thread; past it, the kernel's buffer fills and counts the loss
_HIGHEST = 2  # THREAD_PRIORITY_HIGHEST: needs no privilege


class Drained(NamedTuple):
    """What one drain of one process found.

    Attributes:
        process: the process.
        changes: its records.
        window: the times of the previous drain and of this one, in ns.
        last: whether the process has ended, so that no further records come.
        error: why the drain failed, or None.
    """

    process: Watch
    changes: Changes
    window: tuple[int, int]
    last: bool = False
    error: Unavailable | None = None


class Drainer:
    """Drains every process, on its own thread and at each call of drain().

    Args:
        api: wstrace_plugins.os.windows.api or a stand-in.
        slowest: the longest pause between two drains in seconds.
        exits_seconds: seconds between two checks of whether a process has ended.
        births: called at each drain, under the lock, to add the children that jobs report.
        hidden: whether the system omits records, so that the pause follows its counter of faults too.
    """

    def __init__(
        self, api: WindowsApi, slowest: float, exits_seconds: float, births: Callable[[], None], *, hidden: bool = False
    ) -> None:
        self._api, self._slowest, self._exits_seconds = api, slowest, exits_seconds
        self._births, self._hidden = births, hidden
        self.lock = threading.RLock()
        self.processes: dict[int, Watch] = {}
        self.pause = FASTEST_SECONDS
        self.window = now_ns()
        self._exits_looked = 0
        self._found: list[Drained] = []
        self._records = 0
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    @property
    def holds(self) -> bool:
        """Whether take() has something to return or to raise."""
        return bool(self._found) or self._failed is not None

    def start(self) -> int | None:
        """Starts the thread and returns its id."""
        self._thread = threading.Thread(target=self._run, name="wstrace-drain", daemon=True)
        self._thread.start()
        return self._thread.native_id

    def stop(self) -> None:
        """Ends the thread."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        with suppress(Unavailable):
            self._api.SetThreadPriority(self._api.GetCurrentThread(), _HIGHEST)
        try:
            while not self._ending.is_set():
                self.drain()
                time.sleep(self.pause)  # has a finer timer than a wait on an event
        except BaseException as error:  # take() raises it on the session's thread
            self._failed = error

    def drain(self, *, exits: bool = False) -> None:
        """Drains every buffer; with `exits`, also checks which processes have ended, even if that is not due."""
        with self.lock:
            self._births()
            window = (self.window, now_ns())
            due = exits or window[1] - self._exits_looked >= self._exits_seconds * 1e9
            if self._records >= _MAX_RECORDS and not due:
                return
            self._exits_looked = window[1] if due else self._exits_looked
            fullest = 0
            for process in list(self.processes.values()):
                fullest = max(fullest, self._drain(process, window, due))
            self.window = window[1]
            self._adapt(fullest)

    def _drain(self, process: Watch, window: tuple[int, int], due: bool) -> int:
        """Drains one process; returns how many records its buffer held or lost.

        The end of a process is checked before the drain, so that the last drain has its last records.
        """
        last = due and process.exited()
        try:
            changes = process.drain()
        except Unavailable as error:
            del self.processes[process.pid]
            self._found.append(Drained(process, process.nothing, window, last=last, error=error))
            return 0
        found = len(changes) + changes.lost
        if found or last:
            self._found.append(Drained(process, changes, window, last))
            self._records += len(changes)
        if last:
            del self.processes[process.pid]
        return max(found, process.grown()) if self._hidden else found

    def _adapt(self, fullest: int) -> None:
        """Sets the next pause such that, at the present rate, at most a quarter of the buffer fills."""
        if fullest > _FILL:
            self.pause = max(FASTEST_SECONDS, self.pause * _FILL / fullest / 2)
        elif fullest < _FILL // 2:
            self.pause = min(self._slowest, self.pause * 1.5)

    def take(self) -> list[Drained]:
        """What was found since the last call, in order; if nothing, raises the error that ended the thread."""
        with self.lock:
            found, self._found, self._records = self._found, [], 0
        if self._failed is not None and not found:
            failed, self._failed = self._failed, None
            raise failed
        return found
