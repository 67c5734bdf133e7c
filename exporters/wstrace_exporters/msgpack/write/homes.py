"""Homes: to which of the watched cgroups rows belong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary
from wstrace.clock import now_ns
from wstrace.firing import Division
from wstrace.schema import PROCESS, PROCESS_EXIT, PROCESS_FORK

#: The most processes that are remembered; past it those that have ended are forgotten, then the older half.
_MOST = 1 << 16


class Home(NamedTuple):
    """The cgroup that a process is in, by its place in Homes.paths, and since when, in ns of the records' clock."""

    place: int
    since_ns: int


class Homes:
    """Divides rows by the cgroups that are watched: by their own cgroup, else by that of their process.

    A process is in the cgroup of its last row that names one; before the first such row it is in its parent's, else in
    that which the system tells.

    Args:
        division: which cgroup belongs to which watched one. strings: what the codes of cgroups are of.

    Attributes:
        paths: of the watched cgroups that had rows; the first, "", stands for none.
    """

    def __init__(self, division: Division, strings: Dictionary) -> None:
        self._division, self._strings = division, strings
        self.paths = [""]
        self._places = {"": 0}
        self._of_code: dict[int, int] = {}
        self._of_pid: dict[int, Home] = {}
        self._ended: set[int] = set()

    def split(self, batch: Batch) -> dict[str, Batch]:
        """The rows of each watched cgroup by its path; "" = those of none. What was lost may have been anyone's."""
        if batch.snapshot is not None:
            pid = batch.snapshot.pid
            if not self._home(pid, now_ns()).place:  # what is looked at may have come into a watched one since
                del self._of_pid[pid]
            return {self.paths[self._home(pid, now_ns()).place]: batch}
        if batch.schema is PROCESS:
            places = self._of_processes(batch)
        else:
            places = self._of_pids(batch["pid"])
            if "cgroup" in batch:
                told = batch["cgroup"] != 0
                places[told] = self._of_cgroups(batch["cgroup"][told])
                self._move(batch["pid"][told], places[told])
        found = distinct(places).tolist()
        if len(found) == 1:
            return {self.paths[found[0]]: batch}
        # Each column is taken once and then cut, as there may be more cgroups than rows of each.
        order = places.argsort(kind="stable")
        edges, ordered = [*places[order].searchsorted(found).tolist(), len(order)], batch.take(order)
        split = {self.paths[place]: ordered.take(slice(edges[i], edges[i + 1])) for i, place in enumerate(found)}
        for part in split.values():
            part.lost = batch.lost
        return split

    def since(self, path: str) -> Mapping[int, int]:
        """The processes of a watched cgroup, and since when each is in it, in ns."""
        place = self._places.get(path, -1)
        return {pid: home.since_ns for pid, home in self._of_pid.items() if home.place == place}

    def _of_cgroups(self, codes: NDArray[Any]) -> NDArray[Any]:
        known = distinct(codes)
        for code in known.tolist():
            if code not in self._of_code:
                self._of_code[code] = self._place(self._division.of_cgroup(self._strings[code]))
        places = np.array([self._of_code[code] for code in known.tolist()], "<u4")
        return places[known.searchsorted(codes)]

    def _move(self, pids: NDArray[Any], places: NDArray[Any]) -> None:
        """Notes where processes are by the rows that name a cgroup."""
        pairs = distinct(pids.astype("<u8") << np.uint64(32) | places)
        now = now_ns()
        for pid, place in zip((pairs >> np.uint64(32)).tolist(), (pairs & np.uint64(0xFFFFFFFF)).tolist(), strict=True):
            if self._of_pid.get(pid, _NOWHERE).place != place:
                self._set(pid, Home(place, now))

    def _of_pids(self, pids: NDArray[Any]) -> NDArray[Any]:
        known, now = distinct(pids), now_ns()
        places = np.array([self._home(pid, now).place for pid in known.tolist()], "<u4")
        return places[known.searchsorted(pids)]

    def _of_processes(self, batch: Batch) -> NDArray[Any]:
        columns = (batch[name].tolist() for name in ("time_ns", "pid", "ppid", "tid", "event"))
        places = np.zeros(len(batch), "<u4")
        for row, (time_ns, pid, ppid, tid, event) in enumerate(zip(*columns, strict=True)):
            begins = event == PROCESS_FORK and pid == tid and (pid not in self._of_pid or pid in self._ended)
            if begins and ppid in self._of_pid:
                self._ended.discard(pid)
                self._set(pid, Home(self._of_pid[ppid].place, time_ns))
            places[row] = self._home(pid, time_ns).place
            if event == PROCESS_EXIT and pid == tid:
                self._ended.add(pid)
        return places

    def _home(self, pid: int, time_ns: int) -> Home:
        """Where a process is; one that is first met in a row of that time, is there since then."""
        if (home := self._of_pid.get(pid)) is None:
            home = Home(self._place(self._division.of_process(pid)), time_ns)
            self._set(pid, home)
        return home

    def _set(self, pid: int, home: Home) -> None:
        if len(self._of_pid) >= _MOST:
            for one in self._ended or list(self._of_pid)[: _MOST // 2]:
                self._of_pid.pop(one, None)
            self._ended.clear()
        self._of_pid[pid] = home

    def _place(self, path: str) -> int:
        if path not in self._places:
            self._places[path] = len(self.paths)
            self.paths.append(path)
        return self._places[path]


_NOWHERE = Home(-1, 0)
