"""What is known of processes from rows that a file does not have any more, to be repeated in it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.schema import DTYPES, PROCESS, PROCESS_EXIT, PROCESS_SEEN, PROCESS_TITLE

#: The most names of threads and titles that are remembered; past it the older half is forgotten.
_MOST = 1 << 16


class _Named(NamedTuple):
    time_ns: int
    ppid: int
    event: int
    name: int


class KnownProcesses:
    """The last names of the processes and threads that run, and the titles of processes, from rows of PROCESS.

    Args:
        strings: what the codes of names are of.
    """

    def __init__(self, strings: Dictionary) -> None:
        self._strings = strings
        self._names: dict[tuple[int, int], _Named] = {}  # by pid and tid
        self._titles: dict[tuple[int, int], _Named] = {}
        self._ended: dict[int, int] = {}  # pid -> when

    def learn(self, batch: Batch) -> None:
        """Takes rows in order of time."""
        columns = (batch[name].tolist() for name in ("time_ns", "pid", "ppid", "tid", "event"))
        names = batch["name"].tolist() if "name" in batch else [0] * len(batch)
        for time, pid, ppid, tid, event, name in zip(*columns, names, strict=True):
            if event == PROCESS_EXIT:
                if pid == tid:
                    self._ended[pid] = time
                else:
                    self._names.pop((pid, tid), None)
                continue
            if pid == tid:
                self._ended.pop(pid, None)  # a new process of that id
            if event == PROCESS_TITLE:
                self._titles[pid, tid] = _Named(time, ppid, event, name)
            elif name:
                self._names[pid, tid] = _Named(time, ppid, PROCESS_SEEN, name)
        for table in (self._names, self._titles):
            if len(table) > _MOST:
                for key in list(islice(table, len(table) - _MOST // 2)):
                    del table[key]

    def forget(self, time_ns: int) -> None:
        """Forgets the processes that had ended by that time."""
        gone = {pid for pid, time in self._ended.items() if time < time_ns}
        for table in (self._names, self._titles):
            for key in [key for key in table if key[0] in gone]:
                del table[key]
        for pid in gone:
            del self._ended[pid]

    def before(self, time_ns: int, since: Mapping[int, int] | None = None) -> Batch | None:
        """The names and titles that processes had at a time, if they were told before it, as rows of that time.

        Args:
            time_ns: the time; of processes that had ended by then nothing is told.
            since: pid -> from when on its rows are had; what it was called before counts as told before. Of other
                processes nothing is told. None = rows of all processes are had.
        """
        rows = [*self._rows(self._names, time_ns, since), *self._rows(self._titles, time_ns, since)]
        if not rows:
            return None
        names = ("time_ns", "pid", "ppid", "tid", "event", "name", "code")
        columns = {name: np.array([row[at] for row in rows], DTYPES[PROCESS.column(name).type])  # type: ignore[union-attr]
                   for at, name in enumerate(names)}  # fmt: skip
        return Batch(PROCESS, columns, strings=self._strings, source="flight_recorder")

    def _rows(
        self, table: Mapping[tuple[int, int], _Named], time_ns: int, since: Mapping[int, int] | None
    ) -> list[tuple[int, ...]]:
        def told_before(pid: int) -> int:
            if self._ended.get(pid, time_ns) < time_ns:
                return 0
            return time_ns if since is None else max(time_ns, since[pid]) if pid in since else 0

        return [(max(time_ns, one.time_ns), pid, one.ppid, tid, one.event, one.name, -1)
                for (pid, tid), one in table.items() if one.time_ns < told_before(pid)]  # fmt: skip
