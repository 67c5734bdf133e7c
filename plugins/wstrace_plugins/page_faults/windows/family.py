"""Family: the traced processes, and how their descendants are found.

Windows reuses the pid of an ended process within seconds, so a process is identified by its pid and creation time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.job import Job
from wstrace_plugins.os.windows.process import FOREVER
from wstrace_plugins.page_faults.windows.drainer import Drainer
from wstrace_plugins.page_faults.windows.watch import Watch

_MAX_ENDED = 4096
_OPEN_RIGHTS = winapi.PROCESS_QUERY_INFORMATION | winapi.SYNCHRONIZE


class Family:
    """The traced processes, the ended ones, and those that cannot be traced; finds new descendants of all of them.

    It is used by the drainer's thread and by the session's.

    Args:
        api: wstrace_plugins.os.windows.api or a stand-in.
        drainer: the drainer, whose lock is held while a process is added.
        jobs: the jobs of launched targets.
        watch: begins to watch a process, by its pid and its parent's (None = not known yet).
        listing_seconds: seconds between two listings of all processes.

    Attributes:
        unseen: the number of children that had ended before they could be opened.
    """

    def __init__(
        self, api: WindowsApi, drainer: Drainer, jobs: Sequence[Job], watch: Callable[[int, int | None], Watch],
        listing_seconds: float,
    ) -> None:  # fmt: skip
        self._api, self._drainer, self._jobs, self._watch = api, drainer, jobs, watch
        self._pause_ns, self._listed = listing_seconds * 1e9, 0.0
        self.unseen = 0
        self._new: list[Watch] = []
        self._not_traced: list[tuple[int, str]] = []
        #: pid -> creation time of processes on which we hold a handle, so that their pid is not reused
        self._living: dict[int, int] = {}
        #: pid -> creation time (0 = not known) of processes that cannot be traced
        self._refused: dict[int, int] = {}
        #: (pid, created, ended) of ended processes, whose children were created between the two times
        self._ended: deque[tuple[int, int, int]] = deque(maxlen=_MAX_ENDED)

    def add(self, pid: int, created: int) -> None:
        """Adds a process on which a handle is held from now on."""
        self._living[pid] = created
        self._refused.pop(pid, None)

    def end(self, pid: int, ended: int = 0) -> None:
        """Notes that a process has ended and its handle is closed; its children are still searched for."""
        self._ended.append((pid, self._living.pop(pid, 0), ended or FOREVER))

    def refuse(self, pid: int, created: int) -> None:
        """Notes that a process cannot be traced: it is not tried again, but its children are."""
        self._living.pop(pid, None)
        self._refused[pid] = created

    def taken(self) -> tuple[list[Watch], list[tuple[int, str]]]:
        """The new processes, and the pids of children that cannot be traced with the reason, since the last call."""
        with self._drainer.lock:
            new, self._new = self._new, []
            not_traced, self._not_traced = self._not_traced, []
        return new, not_traced

    def reported(self) -> None:
        """Begins at once to watch each process that a job reports, as it may end before the next listing.

        The caller holds the drainer's lock.
        """
        for job in self._jobs:
            for pid in job.news():
                if pid not in self._drainer.processes:
                    self.unseen += not self._take(pid, None, job=job)

    def listed(self, now: int) -> bool:
        """Adds processes in a job of which no message came, and descendants outside of all jobs, when that is due.

        Args:
            now: the time in ns.

        Returns:
            Whether it was due.

        Raises:
            Unavailable: the system refuses the listing.
        """
        if now - self._listed < self._pause_ns:
            return False
        self._listed = now
        with self._drainer.lock:
            for job in self._jobs:
                for pid in job.members():
                    if pid not in self._drainer.processes and pid not in self._refused:
                        self._take(pid, None, job=job)
        refused = list(self._refused)  # copied first: another thread may add one that this listing does not show
        present = {one.pid: one for one in processes.listed(self._api)}
        for pid in refused:
            if pid not in present:
                self._refused.pop(pid, None)
        lives = [(pid, created, FOREVER) for pid, created in {**self._refused, **self._living}.items()]
        found = processes.descendants(self._api, present.values(), [*lives, *self._ended], known=self._living)
        for pid, parent, created in found:
            with self._drainer.lock:
                if pid not in self._drainer.processes and self._refused.get(pid) != created:
                    self._take(pid, parent, created=created)
        return True

    def _take(self, pid: int, parent: int | None, *, created: int = 0, job: Job | None = None) -> bool:
        """Begins to watch a new process, and counts its earlier faults in the ledger; False if it has ended."""
        born = created
        try:
            # While the process is open, its pid is not reused.
            with processes.opened(self._api, pid, _OPEN_RIGHTS) as handle:
                born = processes.times(self._api, handle)[0]
                stranger = (created and born != created) or (job is not None and not job.has(handle))
                if stranger or processes.exited(self._api, handle):
                    return False
                self._new.append(self._watch(pid, parent))
        except TargetExited:
            return False
        except Unavailable as no:
            with suppress(Unavailable):  # the right to know that is given sooner
                born = born or processes.created(self._api, pid)
            self.refuse(pid, born)
            self._not_traced.append((pid, no.why))
        return True
