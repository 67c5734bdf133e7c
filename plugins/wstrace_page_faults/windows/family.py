"""Who descends from the traced processes. Windows gives the number of an ended process to another one within seconds,
so a process is its number *and* the time of its creation."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from wstrace.errors import TargetExited, Unavailable
from wstrace_os.windows import process as processes
from wstrace_os.windows.interface import WindowsApi

_MAX_ENDED = 4096
_FOREVER = 1 << 64


class Birth(NamedTuple):
    """A process that a listing shows: its number, its parent's, when it was created (0: not told)."""

    pid: int
    parent: int
    created: int


class Family:
    """The traced processes, those that ended, and those that refused to be traced; by number and creation.

    Times are in 100 ns since 1601.
    """

    def __init__(self, api: WindowsApi) -> None:
        self._api = api
        #: number -> created, of those whose handle we hold: their number is not given anew
        self._living: dict[int, int] = {}
        #: number -> created (0: not told), of those that cannot be traced
        self.refused: dict[int, int] = {}
        #: (number, created, ended): the children of an ended one were born between the two
        self._ended: deque[tuple[int, int, int]] = deque(maxlen=_MAX_ENDED)

    def add(self, pid: int, created: int) -> None:
        """A process whose handle is held from now on."""
        self._living[pid] = created
        self.refused.pop(pid, None)

    def end(self, pid: int, ended: int = 0) -> None:
        """Its handle is closed; its children are still looked for."""
        created = self._living.pop(pid, 0)
        self._ended.append((pid, created, ended or _FOREVER))

    def refuse(self, pid: int, created: int) -> None:
        """It cannot be traced: it is not asked again, but its children are."""
        self._living.pop(pid, None)
        self.refused[pid] = created

    def listed(self) -> list[Birth]:
        """The descendants that a listing of all processes shows and that are not known yet, parents first.

        Raises:
            Unavailable: the system gives no listing.
        """
        refused = list(self.refused)  # first: another thread may refuse one that this listing does not show
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
        for parent, born, ended in lives:  # it grows below: grandchildren
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
                if created and not born <= created <= ended:  # its parent was another process of that number
                    continue
                found[pid] = Birth(pid, parent, created)
                lives.append((pid, created, _FOREVER))
        return list(found.values())
