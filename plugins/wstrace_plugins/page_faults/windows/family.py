"""The traced processes and their descendants.

Windows reuses the pid of an ended process within seconds, so a process is identified by its pid and creation time.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.interface import WindowsApi

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
        for pid, parent in processes.parents(self._api):
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
