"""The traced processes and their descendants.

Windows reuses the pid of an ended process within seconds, so a process is identified by its pid and creation time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.job import Job
from wstrace_plugins.page_faults.windows.drainer import Drainer
from wstrace_plugins.page_faults.windows.watch import WatchedProcess

_MAX_ENDED = 4096
_FOREVER = 1 << 64


class Birth(NamedTuple):
    """A process in a listing: its pid, its parent's pid, and its creation time (0 = not known)."""

    pid: int
    parent: int
    created: int


class Family:
    """The traced processes, the ended ones, and those that cannot be traced, by pid and creation time.

    Times are in units of 100 ns since 1601.
    """

    def __init__(self, api: WindowsApi) -> None:
        self._api = api
        #: pid -> creation time of processes on which we hold a handle, so that their pid is not reused
        self._living: dict[int, int] = {}
        #: pid -> creation time (0 = not known) of processes that cannot be traced
        self.refused: dict[int, int] = {}
        #: (pid, created, ended) of ended processes, whose children were created between the two times
        self._ended: deque[tuple[int, int, int]] = deque(maxlen=_MAX_ENDED)

    def add(self, pid: int, created: int) -> None:
        """Adds a process on which a handle is held from now on."""
        self._living[pid] = created
        self.refused.pop(pid, None)

    def end(self, pid: int, ended: int = 0) -> None:
        """Notes that a process has ended and its handle is closed; its children are still searched for."""
        created = self._living.pop(pid, 0)
        self._ended.append((pid, created, ended or _FOREVER))

    def refuse(self, pid: int, created: int) -> None:
        """Notes that a process cannot be traced: it is not tried again, but its children are."""
        self._living.pop(pid, None)
        self.refused[pid] = created

    def listed(self) -> list[Birth]:
        """The descendants in a listing of all processes that are not known yet, parents before children.

        Raises:
            Unavailable: the system refuses the listing.
        """
        refused = list(self.refused)  # copied first: another thread may add one that this listing does not show
        children: dict[int, list[int]] = {}
        now = set()
        for pid, parent, *_ in processes.listed(self._api):
            now.add(pid)
            if pid != parent:
                children.setdefault(parent, []).append(pid)
        for pid in refused:
            if pid not in now:
                self.refused.pop(pid, None)
        lives: list[tuple[int, int, int]] = [
            *((pid, created, _FOREVER) for pid, created in {**self.refused, **self._living}.items()),
            *self._ended,
        ]
        found: dict[int, Birth] = {}
        for parent, born, ended in lives:  # grows in the loop by the children that are found
            for pid in children.get(parent, ()):
                if pid in self._living or pid in found:
                    continue
                try:
                    created = processes.created(self._api, pid)
                except TargetExited:
                    continue
                except Unavailable:
                    created = 0
                if pid in self.refused and self.refused[pid] == created:
                    continue
                if created and not born <= created <= ended:  # its parent was another process with this pid
                    continue
                found[pid] = Birth(pid, parent, created)
                lives.append((pid, created, _FOREVER))
        return list(found.values())


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
