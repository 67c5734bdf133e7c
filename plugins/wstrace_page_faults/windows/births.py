"""Takes in the descendants of the traced processes: those that a job tells of, and those that a listing shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from wstrace.errors import TargetExited, Unavailable
from wstrace_os.windows import api as winapi
from wstrace_os.windows import process as processes
from wstrace_os.windows.interface import WindowsApi
from wstrace_os.windows.job import Job
from wstrace_page_faults.windows.drainer import Drainer
from wstrace_page_faults.windows.family import Family
from wstrace_page_faults.windows.process import WatchedProcess

# how often new children are looked for, by a listing of all processes: where no job tells of them, and beside one
_FAMILY_SECONDS, _STRAYS_SECONDS = 0.05, 0.5
_LOOK_RIGHTS = winapi.PROCESS_QUERY_INFORMATION | winapi.SYNCHRONIZE


class Refused(NamedTuple):
    """A child that cannot be traced."""

    pid: int
    why: str


class Births:
    """New members of the family, from the drainer's thread and from the session's.

    Args:
        api: wstrace_os.windows.api or a stand-in.
        family: who is known.
        drainer: whose lock is held while a process is taken in.
        jobs: the jobs of launched targets.
        add: watches a process, by its number and its parent's (None: not known yet).
        all_in_jobs: every target is in one of the jobs.
    """

    def __init__(
        self, api: WindowsApi, family: Family, drainer: Drainer, jobs: Sequence[Job],
        add: Callable[[int, int | None], WatchedProcess], *, all_in_jobs: bool,
    ) -> None:  # fmt: skip
        self._api, self._family, self._drainer, self._jobs, self._add = api, family, drainer, jobs, add
        self._pause_ns = (_STRAYS_SECONDS if all_in_jobs else _FAMILY_SECONDS) * 1e9
        self._looked = 0  # when, in ns
        #: children that had ended before they could be opened
        self.unseen = 0
        self._new: list[WatchedProcess] = []
        self._refused: list[Refused] = []

    def taken(self) -> tuple[list[WatchedProcess], list[Refused]]:
        """Who was taken in, and who was refused, since the last call."""
        with self._drainer.lock:
            new, self._new = self._new, []
            refused, self._refused = self._refused, []
        return new, refused

    def told_by_jobs(self) -> None:
        """Opens each process that a job tells of at once: a short-lived one has no time to wait for a listing.

        The caller holds the drainer's lock.
        """
        for job in self._jobs:
            for pid in job.news():
                if pid not in self._drainer.processes:
                    self.unseen += not self._take(pid, None, job=job)

    def due(self, now: int) -> bool:
        """True when the next listing is due; now in ns."""
        if now - self._looked < self._pause_ns:
            return False
        self._looked = now
        return True

    def listed(self) -> None:
        """Who is in a job though no message told of it, and who descends from a traced process outside of all jobs.

        Raises:
            Unavailable: the system gives no listing.
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
        """Watches a new member of the family; what it faulted before stands in the ledger. False: it has ended."""
        born = created
        try:
            # while it is open the number is nobody else's
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
