"""Names: what the ids and codes of a trace stand for, learned from its batches."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.instructions import Instructions
from wstrace.analysis.own import Origin, OwnRule
from wstrace.analysis.own_native import module_origin
from wstrace.analysis.process_names import ProcessNames
from wstrace.analysis.processes import Processes
from wstrace.analysis.symbols import UNKNOWN, Symbolizer
from wstrace.batch import Batch, Dictionary
from wstrace.interfaces import Context
from wstrace.plugins import default_plugins
from wstrace.schema import MAPPING, PROCESS, PROCESS_EXIT
from wstrace.trace_info import TraceInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.analysis.stack_views import StackViews

#: The most processes and threads that have a name.
_LIMIT = 1 << 16


class Names:
    """The call sites, mappings, instructions and processes of a trace, so far as its batches have told them.

    Args:
        context: has what resolves addresses; None = these have no names.
        rule: decides which source files are the program's own.

    Attributes:
        strings: the dictionary that codes point into: that of the first batch.
        exits: processes that ended. seen: the numbers of all that the trace names.
    """

    def __init__(self, context: Context | None = None, rule: OwnRule | None = None) -> None:
        self.strings: Dictionary | None = None
        self.rule = rule or OwnRule()
        self.tree, self.instructions = CallTree(), Instructions()
        context = context or Context()
        self.symbolizer = Symbolizer(context, live=False if context.info.recorded else None)
        self.processes, self.of_processes = Processes(_LIMIT), ProcessNames(_LIMIT)
        self.exits, self.seen = 0, set[int]()

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
        if batch.schema.name != PROCESS.name or not PROCESS.always - batch.columns.keys():
            self.symbolizer.learn(batch)
        if batch.schema.name == MAPPING.name:
            self.instructions.learn(batch)
        elif batch.schema.name == PROCESS.name and not PROCESS.always - batch.columns.keys():
            self._learn_processes(batch)

    def _learn_processes(self, batch: Batch) -> None:
        events, tids, own = batch["event"], batch["tid"], batch["tid"] == batch["pid"]
        hosts = batch.columns.get("host")
        processes, parents = (self.processes.numbers(hosts, batch[name]) for name in ("pid", "ppid"))
        self.exits += int(np.count_nonzero((events == PROCESS_EXIT) & own))
        self.seen.update(processes[own].tolist()[: max(_LIMIT - len(self.seen), 0)])
        names = batch.columns.get("name", np.zeros(len(batch), np.uint32))
        self.of_processes.learn(processes, parents, tids, own, events, names)

    @cached_property
    def views(self) -> StackViews:
        """Labels the stacks of the call sites so far."""
        from wstrace.analysis.stack_views import StackViews

        return StackViews(self.tree, self.rule, self.symbolizer)

    def text(self, code: int) -> str:
        """The text of a code; `[unknown]` for none."""
        return (self.strings[code] if self.strings is not None and code < len(self.strings) else "") or UNKNOWN

    def own_code(self, files: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each code is that of a file with the program's own native code."""
        codes, which = np.unique(files, return_inverse=True)
        own = [module_origin(self.text(code), self.rule)[0] == Origin.OWN for code in codes.tolist()]
        found: NDArray[np.bool_] = np.array(own, np.bool_)[which]
        return found

    def name(self, process: int, tid: int = 0) -> str:
        """The name of a process, by its number, or of one of its threads; `[unknown]`."""
        own = tid in (0, self.processes.pid(process))
        return self.text(self.of_processes.code(process, process if own else tid))


def names_of(info: TraceInfo, strings: Dictionary, rule: OwnRule | None = None) -> Names:
    """Names for a trace, with the resolvers that are installed."""
    found = Names(Context(resolvers=default_plugins().make_resolvers(), info=info), rule)
    found.strings = strings
    return found
