"""Names: what the ids and codes of a trace stand for, learned from its batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.own import Origin, OwnRule, is_own, module_origin
from wstrace.analysis.stack_views import StackViews
from wstrace.analysis.symbols import UNKNOWN, Instructions, Symbolizer
from wstrace.analysis.tally import distinct, numbered, rows_of_each
from wstrace.batch import Batch, Dictionary
from wstrace.interfaces import Context, Place
from wstrace.plugins import default_plugins
from wstrace.schema import PROCESS, PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK, PROCESS_TITLE
from wstrace.trace_info import TraceInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number for all processes past the limit.
UNNUMBERED = (1 << 32) - 1


class Processes:
    """Assigns 32-bit numbers to processes: the pid itself for one host, and for the first host of a merged trace.

    The column `host` of a merged trace distinguishes its hosts. Processes of the further hosts are numbered downwards
    from 2**32 - 2, where no system has pids: Linux ends at 2**22 (PID_MAX_LIMIT), and Windows gives out the smallest
    free ones.
    limit: processes of further hosts that get a number; those past it share UNNUMBERED.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._numbers: dict[tuple[int, int], int] = {}  # (host, pid) -> number
        self._given: dict[int, tuple[int, int]] = {}

    def numbers(self, hosts: NDArray[Any] | None, pids: NDArray[Any]) -> NDArray[np.uint64]:
        """The number of each process, shape (n,); hosts: None = all belong to the first one."""
        found = pids.astype(np.uint64)
        if hosts is not None:
            for row in np.flatnonzero(hosts).tolist():
                found[row] = self.number(int(hosts[row]), int(pids[row]))
        return found

    def number(self, host: int, pid: int) -> int:
        """The number of one process."""
        if not host:
            return pid
        known = self._numbers.get((host, pid))
        if known is None:
            if len(self._numbers) >= self._limit:
                return UNNUMBERED
            known = self._numbers[host, pid] = UNNUMBERED - 1 - len(self._numbers)
            self._given[known] = host, pid
        return known

    def host_and_pid(self, number: int) -> tuple[int, int]:
        """The host and the pid of the process with that number."""
        return self._given.get(number, (0, number))

    def pid(self, number: int) -> int:
        """The pid of the process with that number."""
        return self.host_and_pid(number)[1]

    def is_shared(self, number: int) -> bool:
        """Whether the number stands for several processes, namely those past the limit."""
        return number == UNNUMBERED and len(self._numbers) >= self._limit


#: A fork that never named itself has the name of its parent, over so many generations.
_GENERATIONS = 8
#: The last programs of a process that are kept apart.
_PROGRAMS = 64


class ProcessNames:
    """The last names, titles and parents of processes, by number (see Processes), from rows of PROCESS in time order.

    A title (`postgres: checkpointer`) holds until its process executes another program, and goes before its name.
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
        self._executed: dict[int, list[int]] = {}  # process -> when it executed its last programs, in ns

    def learn(
        self,
        processes: NDArray[np.uint64],
        parents: NDArray[np.uint64],
        tids: NDArray[Any],
        own: NDArray[np.bool_],
        events: NDArray[Any],
        names: NDArray[Any],
        times: NDArray[Any],
    ) -> None:
        """Takes rows of PROCESS, with the numbers of their processes.

        own: whether a row is of the process, not of one of its further threads.
        """
        # An exit row has the name that the thread was born with, not the one that it has given itself since.
        named = (names != 0) & (events != PROCESS_EXIT) & (events != PROCESS_TITLE)
        keys = processes << np.uint64(32) | np.where(own, processes, tids.astype(np.uint64))
        self._remember(self._names, keys[named], names[named])
        forked = own & (events == PROCESS_FORK) & (parents != processes)
        self._remember(self._parents, processes[forked], parents[forked])
        turns = np.flatnonzero(forked | (own & np.isin(events, (PROCESS_EXEC, PROCESS_EXIT, PROCESS_TITLE))))
        columns = (column[turns].tolist() for column in (processes, parents, events, names, times))
        for process, parent, event, name, time in zip(*columns, strict=True):
            if event == PROCESS_TITLE:
                self._titles[process] = name
                continue
            if event == PROCESS_EXIT:
                self._ended[process] = 1
                continue
            if event == PROCESS_EXEC:
                self._executed[process] = [*self._executed.get(process, ()), time][-_PROGRAMS:]
            self._titles.pop(process, None)
            self._workers.pop(process, None)
            if event == PROCESS_FORK:
                self._workers[process] = parent
                if again := self._ended.pop(process, 0):
                    self._earlier[process] = self._earlier.get(process, 0) + again
        for table in (self._titles, self._workers, self._ended, self._earlier, self._executed):
            self._bound(table)

    def code(self, process: int, tid: int = 0) -> int:
        """The code of the last name of a thread, else of its process, else of what that was forked from; 0 = none.

        tid: the thread; 0, or the process itself = its first one.
        """
        if tid and tid != process and (found := self._names.get(process << 32 | tid)):
            return found
        for _ in range(_GENERATIONS):
            if found := self._titles.get(process) or self._names.get(process << 32 | process, 0):
                return found
            process = self._parents.get(process, 0)
        return 0

    def programs(self, processes: NDArray[np.uint64], times: NDArray[Any]) -> NDArray[np.uint64]:
        """Which of its programs each process runs at a time: how many it has executed by then, shape (n,)."""
        found = np.zeros(len(processes), np.uint64)
        for process, rows in rows_of_each(processes):
            executed = np.array(self._executed.get(process, ()), np.uint64)
            found[rows] = executed.searchsorted(times[rows], side="right")
        return found

    def roles(self, pid_of: Callable[[int], int]) -> dict[int, str]:
        """process -> `worker 2 of 4711`, the second fork that executes the program of its parent, or `main`, that one.

        Of a pid that was given out again it says with how many earlier processes this one shares its row.
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

    def _bound(self, table: dict[int, Any]) -> None:
        if len(table) > self._limit:
            for key in list(islice(table, len(table) - self._limit // 2)):
                del table[key]


#: The most processes and threads that have a name.
_LIMIT = 1 << 16


class Names:
    """The call sites, mappings, instructions and processes of a trace, so far as its batches have named them.

    context: has what resolves addresses; None = these have no names. rule: decides which source files are the program's
    own. strings: the dictionary that codes point into: that of the first batch. seen: the numbers of all that the trace
    names.
    """

    def __init__(self, context: Context | None = None, rule: OwnRule | None = None) -> None:
        self.strings: Dictionary | None = None
        self.rule = rule or OwnRule()
        self.tree, self.instructions = CallTree(), Instructions()
        context = context or Context()
        self.symbolizer = Symbolizer(context, live=False if context.info.recorded else None)
        self.processes, self.of_processes = Processes(_LIMIT), ProcessNames(_LIMIT)
        self.seen = set[int]()
        self._own: dict[int, bool] = {}  # code of a file -> whether it has the program's own native code
        self._library = np.zeros(0, np.uint64)  # places in such files that are not: see meet()

    def recoded(self, batch: Batch) -> Batch:
        """The batch with the codes of `strings`."""
        if self.strings is None:
            self.strings = batch.strings
        return batch.recode(self.strings)

    def learn(self, batch: Batch) -> None:
        """Takes call sites, mappings and processes; other streams are ignored."""
        if self.tree.learn(batch):
            self.__dict__.pop("views", None)
            return
        if self.symbolizer.learn(batch):
            self.instructions.learn(batch)
        elif batch.schema.name == PROCESS.name and not PROCESS.always - batch.columns.keys():
            self._learn_processes(batch)

    def _learn_processes(self, batch: Batch) -> None:
        events, tids, own = batch["event"], batch["tid"], batch["tid"] == batch["pid"]
        hosts = batch.columns.get("host")
        processes, parents = (self.processes.numbers(hosts, batch[name]) for name in ("pid", "ppid"))
        self.seen.update(processes[own].tolist()[: max(_LIMIT - len(self.seen), 0)])
        names = batch.columns.get("name", np.zeros(len(batch), np.uint32))
        self.of_processes.learn(processes, parents, tids, own, events, names, batch["time_ns"])

    @cached_property
    def views(self) -> StackViews:
        """Labels the stacks of the call sites so far."""
        return StackViews(self.tree, self.rule, self.symbolizer)

    def text(self, code: int) -> str:
        """The text of a code; `[unknown]` for none."""
        return (self.strings[code] if self.strings is not None and code < len(self.strings) else "") or UNKNOWN

    def meet(self, samples: Batch) -> None:
        """Finds out which instructions are of a standard library that is linked into the program; see own_code()."""
        index, found = self.symbolizer.coded(samples, "pc", "pc_mapping", "pc_file")
        library = np.array(
            [isinstance(one, Place) and not is_own("", self.rule, one.function) for one in found], np.bool_
        )
        self._library = distinct(np.append(self._library, self.instructions.of(samples)[0][library[index]]))

    def own_code(self, files: NDArray[Any], places: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each instruction is the program's own native code: the code of its file, and its place."""
        codes, which = numbered(files)
        new = set(codes.tolist()).difference(self._own)
        self._own.update((code, module_origin(self.text(code), self.rule)[0] >= Origin.PROGRAM) for code in new)
        own = [self._own[code] for code in codes.tolist()]
        found: NDArray[np.bool_] = np.array(own, np.bool_)[which]
        return found & ~np.isin(places, self._library) if len(self._library) else found

    def name(self, process: int, tid: int = 0) -> str:
        """The name of a process, by its number, or of one of its threads; `[unknown]`."""
        own = tid in (0, self.processes.pid(process))
        return self.text(self.of_processes.code(process, process if own else tid))


def names_of(info: TraceInfo, strings: Dictionary, rule: OwnRule | None = None) -> Names:
    """Names for a trace, with the resolvers that are installed."""
    found = Names(Context(resolvers=default_plugins().make_resolvers(), info=info), rule)
    found.strings = strings
    return found
