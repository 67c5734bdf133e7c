"""The tree of the imports of a trace, and the module that each fault belongs to.

A stack shows at which line a module is imported, and the module's own code while that runs; what finds and reads a
module comes before that, without a name. So the faults of a thread at one importing line are taken in order of time: an
import is found and read, then it runs, and the next one begins where it is being found again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.import_chains import CUT_SITE, ImportChains
from wstrace.analysis.module_names import ModuleNames
from wstrace.analysis.segments import begins

NOT_IMPORTING, CUT = "(not importing)", "(imports that the stack lacks)"


class Node(NamedTuple):
    """A module within those that imported it; parent: the number of that one, -1 = none."""

    parent: int
    label: str


class ImportRows(NamedTuple):
    """Faults with a Python stack in any order, each an array of shape (n,).

    stack: the number of the stack's leaf in the chains. thread: a number for each thread. extension: the code of the
    file of an extension module whose first page this is, 0 = it is not.
    """

    stack: NDArray[np.intp]
    thread: NDArray[np.intp]
    time: NDArray[np.uint64]
    extension: NDArray[np.intp]


class ImportTree:
    """The tree of the imports.

    Args:
        chains: of the stacks. rows: the faults. names: of modules. texts: file -> its path, of all of both.

    Attributes:
        nodes: that at 0 is what imports nothing. A node's parent stands before it.
        of: of each fault its node.
    """

    def __init__(self, chains: ImportChains, rows: ImportRows, names: ModuleNames, texts: dict[int, str]) -> None:
        self._chains, self._rows = chains, rows
        self._labels: list[str] = [""]
        self._codes: dict[str, int] = {"": 0}
        self.nodes = [Node(-1, NOT_IMPORTING)]
        self.of = np.zeros(len(rows.stack), np.intp)
        imports = chains.imports
        self._depth = np.array([one.depth for one in imports])
        self._site = np.array([one.site for one in imports])
        self._running = np.array([one.running for one in imports])
        self._package = np.array([one.package for one in imports])
        self._name = np.array([self._code(CUT if one.site == CUT_SITE else names.of(texts[one.file]) if one.file
                                          else "") for one in imports])  # fmt: skip
        self._extension = np.zeros(len(rows.stack), np.intp)
        for file in np.unique(rows.extension[rows.extension != 0]).tolist():
            self._extension[rows.extension == file] = self._code(names.of(texts[file]))
        above = np.zeros((int(self._depth.max()) + 1, len(imports)), np.intp)  # by depth, the import of each import
        for number, one in enumerate(imports):
            above[:, number] = above[:, one.outer]
            above[one.depth, number] = number
        innermost = chains.of[rows.stack]
        for depth in range(1, len(above)):
            self._level(np.flatnonzero(self._depth[innermost] >= depth), above[depth], innermost)

    def _code(self, label: str) -> int:
        if label not in self._codes:
            self._codes[label] = len(self._labels)
            self._labels.append(label)
        return self._codes[label]

    def _level(self, faults: NDArray[np.intp], above: NDArray[np.intp], innermost: NDArray[np.intp]) -> None:
        """Takes the faults within so many imports to the node of the innermost one of these."""
        thread, time = self._rows.thread[faults], self._rows.time[faults]
        site = self._site[above[innermost[faults]]]
        order = np.lexsort((time, site, thread))
        faults, thread, site = faults[order], thread[order], site[order]
        one = above[innermost[faults]]
        name, running = self._name[one], self._running[one]
        made = (name == 0) & running & (one == innermost[faults])
        name = np.where(made, self._extension[faults], name)
        name = self._told(begins(thread, site), name, running)
        unknown = np.flatnonzero(name == 0)
        name[unknown] = self._otherwise(unknown, site, name, faults, self._package[one])
        pairs, which = np.unique(self.of[faults] << 32 | name, return_inverse=True)
        first = len(self.nodes)
        self.nodes += [Node((pair >> 32) or -1, self._labels[pair & 0xFFFFFFFF]) for pair in pairs.tolist()]
        self.of[faults] = first + which

    def _told(self, new: NDArray[np.bool_], name: NDArray[np.intp], running: NDArray[np.bool_]) -> NDArray[np.intp]:
        """The names, also of what came before a module ran, of faults in order of thread, place and time."""
        if not len(new):
            return name
        again = ~running & np.concatenate(([False], running[:-1]))
        number = np.arange(len(new))
        begin = np.maximum.accumulate(np.where(new | again, number, 0))
        last = np.maximum.accumulate(np.where(name != 0, number, -1))
        before = np.concatenate(([-1], last[:-1]))
        other = (name != 0) & (before >= begin) & (name[before] != name)
        which = np.cumsum(new | again | other) - 1
        found = np.zeros(int(which[-1]) + 1, np.intp)
        np.maximum.at(found, which, name)
        named: NDArray[np.intp] = found[which]
        return named

    def _otherwise(
        self, unknown: NDArray[np.intp], site: NDArray[np.intp], name: NDArray[np.intp], faults: NDArray[np.intp],
        package: NDArray[np.bool_],
    ) -> NDArray[np.intp]:  # fmt: skip
        """Names of faults whose module did not run: by the module that it holds, or the only one of its line."""
        sites, at = np.unique(site, return_inverse=True)
        least, most = np.full(len(sites), np.iinfo(np.intp).max), np.zeros(len(sites), np.intp)
        known = name != 0
        np.minimum.at(least, at[known], name[known])
        np.maximum.at(most, at[known], name[known])
        found = []
        told: dict[tuple[int, int], int] = {}
        for n, number, node in zip(unknown.tolist(), at[unknown].tolist(), self.of[faults[unknown]].tolist(),
                                   strict=True):  # fmt: skip
            key = number, node
            if key not in told:
                holds = self.nodes[node].label.rpartition(".")[0] if node and package[n] else ""
                if holds and not holds.startswith("("):
                    told[key] = self._code(holds)
                elif least[number] == most[number]:
                    told[key] = int(most[number])
                else:
                    place = self._chains.place(int(sites[number]))
                    told[key] = self._code(f"(imported at {place})" if place else "(imported by the interpreter)")
            found.append(told[key])
        return np.array(found, np.intp)
