"""The faults of processes that run no Python, by the program that each had executed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.processes import Processes
from wstrace.analysis.tally import distinct
from wstrace.batch import Batch
from wstrace.schema import PROCESS_EXEC, PROCESS_FORK, PROCESS_SEEN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    #: indices, or all rows: slice(None)
    Rows = NDArray[np.intp] | slice

_BEGINNINGS = (PROCESS_SEEN, PROCESS_FORK, PROCESS_EXEC)
_MOST_PROCESSES, _MOST_PROGRAMS = 1 << 16, 256


class OtherPrograms:
    """Counts faults by program; what is not known by name, and what exceeds the limits, is under ""."""

    def __init__(self) -> None:
        self._processes = Processes(_MOST_PROCESSES)
        #: Number of a process -> the times since when it has executed programs, and their names.
        self._programs: dict[int, tuple[list[int], list[str]]] = {}
        self._counts: dict[str, NDArray[np.int64]] = {}

    def learn(self, batch: Batch) -> None:
        """Takes rows of PROCESS, which come before the faults that they concern."""
        if "name" not in batch or "time_ns" not in batch:
            return
        rows = np.flatnonzero((batch["pid"] == batch["tid"]) & np.isin(batch["event"], _BEGINNINGS))
        hosts = batch.columns.get("host")
        processes = self._processes.numbers(None if hosts is None else hosts[rows], batch["pid"][rows])
        columns = (processes, batch["time_ns"][rows], batch["name"][rows])
        for process, time_ns, name in zip(*(column.tolist() for column in columns), strict=True):
            if len(self._programs) >= _MOST_PROCESSES:
                self._programs.clear()
            times, names = self._programs.setdefault(process, ([], []))
            times.append(time_ns)
            names.append(batch.strings[name])

    def count(self, batch: Batch, rows: Rows, *values: NDArray[Any], each: NDArray[Any] | None = None) -> None:
        """Counts these rows of PAGE_FAULT, and adds up values of the batch's faults: the same ones at each call.

        each: of each fault of the batch how many it counts; None = one.
        """
        hosts, processes = batch.columns.get("host"), batch["pid"][rows]
        if hosts is not None:
            processes = self._processes.numbers(hosts[rows], processes)
        since = batch["time_ns"] if "time_ns" in batch else np.full(len(batch), batch.window[0], "<u8")
        found = distinct(processes).tolist()
        for process in found:
            mine = rows if len(found) == 1 else _those(rows, processes == process)
            times, names = self._programs.get(process, ([], [""]))
            # A fault before the first row is of the first program: a launched process counts from its exec on.
            which = np.maximum(np.array(times, "<u8").searchsorted(_ends(since[mine]), side="right"), 1) - 1
            if which[0] != which[-1]:
                which = np.maximum(np.array(times, "<u8").searchsorted(since[mine], side="right"), 1) - 1
            programs = distinct(which).tolist()
            for i in programs:
                of_program = mine if len(programs) == 1 else _those(mine, which == i)
                name = names[i] if names[i] in self._counts or len(self._counts) < _MOST_PROGRAMS else ""
                counts = self._counts.setdefault(name, np.zeros(1 + len(values), np.int64))
                n = len(since[of_program]) if each is None else int(each[of_program].sum())
                counts += (n, *(int(value[of_program].sum()) for value in values))

    def rows(self) -> dict[str, tuple[int, ...]]:
        """Name of a program -> (faults, the sums of their values)."""
        return {name: tuple(int(n) for n in counts) for name, counts in self._counts.items()}


def _those(rows: Rows, mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Of these rows those where the mask is true."""
    return np.flatnonzero(mask) if isinstance(rows, slice) else rows[mask]


def _ends(times: NDArray[Any]) -> NDArray[Any]:
    """The first and the last of the times."""
    return np.array((times.min(), times.max()))
