"""Drainer: a thread that empties the kernel's buffers of all watched processes, and meets their children.

A burst of faults fills a buffer of 1,024 records within 1 or 2 ms, so nothing that may take as long happens between two
drains: the session's thread takes the records, finds names, lists memory and publishes.

Windows reuses the pid of an ended process within seconds, so a process is identified by its pid and creation time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from wstrace.clock import now_ns
from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.job import Job
from wstrace_plugins.os.windows.process import FOREVER, Listed
from wstrace_plugins.page_faults.windows.watch import KERNEL_RECORDS, Changes, Watch

FASTEST_SECONDS = 0.001
_FILL = KERNEL_RECORDS // 4  # the number of records that a drain should find, well below the size of the buffer
_MAX_RECORDS = 1 << 20  # records held for the session's thread; past it, the kernel's buffer fills and counts the loss
_HIGHEST = 2  # THREAD_PRIORITY_HIGHEST: needs no privilege
_MAX_ENDED = 4096
_OPEN_RIGHTS = winapi.PROCESS_QUERY_INFORMATION | winapi.SYNCHRONIZE


class Drained(NamedTuple):
    """What one drain of one process found.

    process: the process. changes: its records. window: the times of the previous drain and of this one, in ns. last:
    whether the process has ended, so that no further records come. error: why the drain failed, or None.
    """

    process: Watch
    changes: Changes
    window: tuple[int, int]
    last: bool = False
    error: Unavailable | None = None


class Drainer:
    """Drains every process, on its own thread and at each call of drain(), and begins to watch their children.

    Args:
        api: wstrace_plugins.os.windows.api or a stand-in.
        slowest: the longest pause between two drains in seconds.
        exits_seconds: seconds between two checks of whether a process has ended.
        jobs: the jobs of launched targets, which report their children; [] = no children are wanted.
        hidden: whether the system omits records, so that the pause follows its counter of faults too.

    Attributes:
        processes: pid -> each watched process. new: those that nobody has introduced yet.
        refused: the pids of children that cannot be traced, with the reason, since this was read last.
        unseen: the number of children that had ended before they could be opened.
        orphans: (pid, created) of processes that began after the first listing, of a parent that is not known.
    """

    def __init__(
        self, api: WindowsApi, slowest: float, exits_seconds: float, jobs: Sequence[Job], *, hidden: bool = False
    ) -> None:
        self._api, self._slowest, self._exits_seconds = api, slowest, exits_seconds
        self._jobs, self._hidden = jobs, hidden
        self._lock = threading.RLock()
        self.processes: dict[int, Watch] = {}
        self.new: list[Watch] = []
        self.refused: list[tuple[int, str]] = []
        self.unseen = 0
        self.orphans: set[tuple[int, int]] = set()
        self._youngest = 0  # when the last process of the first listing was created
        self.pause = FASTEST_SECONDS
        self.window = now_ns()
        self._exits_read = 0
        self._found: list[Drained] = []
        self._records = 0
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None
        #: pid -> creation time of processes on which we hold a handle, so that their pid is not reused
        self._living: dict[int, int] = {}
        #: pid -> creation time (0 = not known) of processes that cannot be traced
        self._strangers: dict[int, int] = {}
        #: (pid, created, ended) of ended processes, whose children were created between the two times
        self._ended: deque[tuple[int, int, int]] = deque(maxlen=_MAX_ENDED)

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
        with self._lock:
            for job in self._jobs:  # at once: a child may end before the next listing
                for pid in job.news():
                    if pid not in self.processes:
                        self.unseen += not self._meet(pid, None, job=job)
            window = (self.window, now_ns())
            due = exits or window[1] - self._exits_read >= self._exits_seconds * 1e9
            if self._records >= _MAX_RECORDS and not due:
                return
            self._exits_read = window[1] if due else self._exits_read
            due = due and processes.any_exited(self._api, [process.handle for process in self.processes.values()])
            fullest = 0
            for process in list(self.processes.values()):
                fullest = max(fullest, self._drain(process, window, due))
            self.window = window[1]
            # the next pause: at the present rate, at most a quarter of the buffer fills
            if fullest > _FILL:
                self.pause = max(FASTEST_SECONDS, self.pause * _FILL / fullest / 2)
            elif fullest < _FILL // 2:
                self.pause = min(self._slowest, self.pause * 1.5)

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

    def take(self) -> list[Drained]:
        """What was found since the last call, in order; if nothing, raises the error that ended the thread."""
        with self._lock:
            found, self._found, self._records = self._found, [], 0
        if self._failed is not None and not found:
            failed, self._failed = self._failed, None
            raise failed
        return found

    def watch(self, pid: int, parent: int | None, *, launched: bool = False) -> Watch:
        """Begins to watch a process; `parent` is 0 for a target, and None where the system is to say it."""
        process = Watch(self._api, pid, parent, launched=launched)
        with self._lock:
            self.processes[pid], self._living[pid] = process, process.created
            self._strangers.pop(pid, None)
            self.new.append(process)
        return process

    def introduced(self) -> tuple[list[Watch], list[tuple[int, str]]]:
        """(the new processes, the children that cannot be traced with the reason) since the last call."""
        with self._lock:
            found = self.new, self.refused
            self.new, self.refused = [], []
        return found

    def ended(self, process: Watch, when: int) -> None:
        """Notes that a process has ended and its handle is closed; its children are still searched for."""
        with self._lock:
            self._ended.append((process.pid, self._living.pop(process.pid, 0), when or FOREVER))

    def failed(self, process: Watch) -> None:
        """Notes that the watch of a process failed: it is not tried again, but its children are."""
        with self._lock:
            self._living.pop(process.pid, None)
            self._strangers[process.pid] = process.created

    def list_children(self) -> None:
        """Watches processes in a job of which no message came, and descendants outside of all jobs.

        Raises Unavailable: the system refuses the listing.
        """
        with self._lock:
            for job in self._jobs:
                for pid in job.members():
                    if pid not in self.processes and pid not in self._strangers:
                        self._meet(pid, None, job=job)
        strangers = list(self._strangers)  # first: another thread may add one that this listing does not show
        present = {one.pid: one for one in processes.listed(self._api)}
        for pid in strangers:
            if pid not in present:
                self._strangers.pop(pid, None)
        lives = [(pid, created, FOREVER) for pid, created in {**self._strangers, **self._living}.items()]
        found = processes.descendants(present.values(), [*lives, *self._ended], known=self._living)
        gone = {(pid, created) for pid, created, _ in self._ended}
        for one in found:
            with self._lock:
                refused = self._strangers.get(one.pid, -1) in (0, one.created)
                if one.pid in self.processes or refused or (one.pid, one.created) in gone:
                    continue
                if not self._meet(one.pid, one.parent, created=one.created):
                    self.unseen += 1
                    self._ended.append((one.pid, one.created, FOREVER))
        self._count_orphans(present)

    def _count_orphans(self, present: Mapping[int, Listed]) -> None:
        """Notes the processes of a parent that nobody saw, as it may have been a descendant between two listings."""
        self._youngest = self._youngest or max((one.created for one in present.values()), default=0)
        for one in present.values():
            parent = present.get(one.parent)
            known = one.pid in self._strangers or one.pid in self._living
            known = known or (parent is not None and parent.created <= one.created)
            if one.created > self._youngest and not known and len(self.orphans) < _MAX_ENDED:
                self.orphans.add((one.pid, one.created))

    def _meet(self, pid: int, parent: int | None, *, created: int = 0, job: Job | None = None) -> bool:
        """Begins to watch a child; False if it has ended. The caller holds the lock."""
        born = created
        try:
            # While the process is open, its pid is not reused.
            with processes.opened(self._api, pid, _OPEN_RIGHTS) as handle:
                born = processes.times(self._api, handle)[0]
                stranger = (created and born != created) or (job is not None and not job.has(handle))
                if stranger or processes.exited(self._api, handle):
                    return False
                self.watch(pid, parent)
        except TargetExited:
            return False
        except Unavailable as no:
            with suppress(Unavailable):  # the right to know that is given sooner
                born = born or processes.created(self._api, pid)
            self._living.pop(pid, None)
            self._strangers[pid] = born
            self.refused.append((pid, no.why))
        return True
