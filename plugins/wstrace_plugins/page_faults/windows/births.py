"""Begins to watch descendants of the traced processes, which jobs report or listings show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.interface import WindowsApi
from wstrace_plugins.os.windows.job import Job
from wstrace_plugins.page_faults.windows.drainer import Drainer
from wstrace_plugins.page_faults.windows.family import Family
from wstrace_plugins.page_faults.windows.process import WatchedProcess

# Seconds between two listings of all processes: without jobs that report the children, and beside such jobs.
_FAMILY_SECONDS, _STRAYS_SECONDS = 0.05, 0.5
_LOOK_RIGHTS = winapi.PROCESS_QUERY_INFORMATION | winapi.SYNCHRONIZE


class Refused(NamedTuple):
    """A child that cannot be traced."""

    pid: int
    why: str


class Births:
    """Finds new descendants, on the drainer's thread and on the session's.

    Args:
        api: wstrace_plugins.os.windows.api or a stand-in.
        family: the known processes.
        drainer: the drainer, whose lock is held while a process is added.
        jobs: the jobs of launched targets.
        add: begins to watch a process, by its pid and its parent's (None = not known yet).
        all_in_jobs: whether every target is in one of the jobs.
    """

    def __init__(
        self, api: WindowsApi, family: Family, drainer: Drainer, jobs: Sequence[Job],
        add: Callable[[int, int | None], WatchedProcess], *, all_in_jobs: bool,
    ) -> None:  # fmt: skip
        self._api, self._family, self._drainer, self._jobs, self._add = api, family, drainer, jobs, add
        self._pause_ns = (_STRAYS_SECONDS if all_in_jobs else _FAMILY_SECONDS) * 1e9
        self._looked = 0  # the time of the last listing in ns
        #: The number of children that had ended before they could be opened.
        self.unseen = 0
        self._new: list[WatchedProcess] = []
        self._refused: list[Refused] = []

    def taken(self) -> tuple[list[WatchedProcess], list[Refused]]:
        """The new processes, and the children that could not be traced, since the last call."""
        with self._drainer.lock:
            new, self._new = self._new, []
            refused, self._refused = self._refused, []
        return new, refused

    def told_by_jobs(self) -> None:
        """Begins at once to watch each process that a job reports, as it may end before the next listing.

        The caller holds the drainer's lock.
        """
        for job in self._jobs:
            for pid in job.news():
                if pid not in self._drainer.processes:
                    self.unseen += not self._take(pid, None, job=job)

    def due(self, now: int) -> bool:
        """Whether the next listing is due at the time `now` in ns."""
        if now - self._looked < self._pause_ns:
            return False
        self._looked = now
        return True

    def listed(self) -> None:
        """Adds processes in a job of which no message came, and descendants outside of all jobs.

        Raises:
            Unavailable: the system refuses the listing.
        """
        with self._drainer.lock:
            for job in self._jobs:
                for pid in job.members():
                    if pid not in self._drainer.processes and pid not in self._family.refused:
                        self._take(pid, None, job=job)
        for birth in self._family.listed():
            with self._drainer.lock:
                if birth.pid not in self._drainer.processes:
                    self._take(birth.pid, birth.parent, created=birth.created)

    def _take(self, pid: int, parent: int | None, *, created: int = 0, job: Job | None = None) -> bool:
        """Begins to watch a new process, and counts its earlier faults in the ledger; False if it has ended."""
        born = created
        try:
            # While the process is open, its pid is not reused.
            with processes.opened(self._api, pid, _LOOK_RIGHTS) as handle:
                born = processes.times(self._api, handle)[0]
                stranger = (created and born != created) or (job is not None and not job.has(handle))
                if stranger or processes.exited(self._api, handle):
                    return False
                process = self._add(pid, parent)
        except TargetExited:
            return False
        except Unavailable as refused:
            self._family.refuse(pid, born)
            self._refused.append(Refused(pid, refused.why))
            return True
        self._new.append(process)
        return True
