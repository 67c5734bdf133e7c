"""ProcessNames: what processes and threads are called, and which of them are workers of which."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.schema import PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK, PROCESS_TITLE

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A fork that never named itself has the name of its parent, over so many generations.
_GENERATIONS = 8


class ProcessNames:
    """The last names, titles and parents of processes, by number (see Processes), from rows of PROCESS in time order.

    A title (`postgres: checkpointer`) holds until its process executes another program, and goes before its name.

    Args:
        limit: the most names, titles and parents that are kept; past it the older half of them is forgotten.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: dict[int, int] = {}  # process << 32 | tid -> code of its last name
        self._titles: dict[int, int] = {}  # process -> code of its title
        self._parents: dict[int, int] = {}  # process -> the one that forked it
        self._workers: dict[int, int] = {}  # the same, of those that still execute the program of their parent
        self._ended: dict[int, int] = {}  # process -> 1, of those whose pid may be given out again
        self._earlier: dict[int, int] = {}  # process -> how many had its pid before, which share its number

    def learn(
        self,
        processes: NDArray[np.uint64],
        parents: NDArray[np.uint64],
        tids: NDArray[Any],
        own: NDArray[np.bool_],
        events: NDArray[Any],
        names: NDArray[Any],
    ) -> None:
        """Takes rows of PROCESS, with the numbers of their processes.

        Args:
            own: whether a row is of the process, not of one of its further threads.
        """
        # An exit row has the name that the thread was born with, not the one that it has given itself since.
        named = (names != 0) & (events != PROCESS_EXIT) & (events != PROCESS_TITLE)
        keys = processes << np.uint64(32) | np.where(own, processes, tids.astype(np.uint64))
        self._remember(self._names, keys[named], names[named])
        forked = own & (events == PROCESS_FORK) & (parents != processes)
        self._remember(self._parents, processes[forked], parents[forked])
        turns = np.flatnonzero(forked | (own & np.isin(events, (PROCESS_EXEC, PROCESS_EXIT, PROCESS_TITLE))))
        columns = (processes[turns], parents[turns], events[turns], names[turns])
        for process, parent, event, name in zip(*(column.tolist() for column in columns), strict=True):
            if event == PROCESS_TITLE:
                self._titles[process] = name
                continue
            if event == PROCESS_EXIT:
                self._ended[process] = 1
                continue
            self._titles.pop(process, None)
            self._workers.pop(process, None)
            if event == PROCESS_FORK:
                self._workers[process] = parent
                if again := self._ended.pop(process, 0):
                    self._earlier[process] = self._earlier.get(process, 0) + again
        for table in (self._titles, self._workers, self._ended, self._earlier):
            self._bound(table)

    def code(self, process: int, tid: int = 0) -> int:
        """The code of the last name of a thread, else of its process, else of what that was forked from; 0 = none.

        Args:
            tid: the thread; 0, or the process itself = its first one.
        """
        if tid and tid != process and (found := self._names.get(process << 32 | tid)):
            return found
        for _ in range(_GENERATIONS):
            if found := self._titles.get(process) or self._names.get(process << 32 | process, 0):
                return found
            process = self._parents.get(process, 0)
        return 0

    def roles(self, pid_of: Callable[[int], int]) -> dict[int, str]:
        """process -> `worker 2 of 4711`, the second fork that executes the program of its parent, or `main`, that one.

        Of a pid that was given out again it says with how many earlier processes this one shares its row.

        Args:
            pid_of: gives the pid of a number.
        """
        counts: dict[int, int] = {}
        found = {}
        for process, parent in self._workers.items():
            counts[parent] = counts.get(parent, 0) + 1
            found[process] = f"worker {counts[parent]} of {pid_of(parent)}"
        found = {**dict.fromkeys(counts, "main"), **found}
        for process, n in self._earlier.items():
            shared = f"with {n:,} earlier process{'es' * (n > 1)} of this pid"
            found[process] = f"{found[process]}, {shared}" if process in found else shared
        return found

    def _remember(self, table: dict[int, int], keys: NDArray[Any], values: NDArray[Any]) -> None:
        """Sets keys to values; of equal keys the last one wins."""
        table.update(zip(keys.tolist(), values.tolist(), strict=True))
        self._bound(table)

    def _bound(self, table: dict[int, int]) -> None:
        if len(table) > self._limit:
            for key in list(islice(table, len(table) - self._limit // 2)):
                del table[key]
