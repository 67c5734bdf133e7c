"""What the imports of a trace bring: resident bytes and page faults of each module, by itself and with its own imports.

The resident pages are those of blame, each told by the module that was being imported when its fault brought it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.import_tree import CUT, ImportRows, ImportTree
from wstrace.analysis.blame.rows import Blame
from wstrace.analysis.import_chains import ImportChains
from wstrace.analysis.module_names import ModuleNames, is_extension
from wstrace.analysis.moments import Recorded
from wstrace.analysis.stacks import reason
from wstrace.errors import Unavailable, UsageError
from wstrace.schema import FAULT_MAJOR, PAGE_FAULT
from wstrace.text import printable

#: The figures of a row; the first two in bytes.
FIGURES = ("resident", "private", "faults", "major")


@dataclass(slots=True)
class Figures:
    """Resident bytes, those of them that no other process has, page faults, and those of them that read from disk."""

    resident: int = 0
    private: int = 0
    faults: int = 0
    major: int = 0

    def add(self, other: Figures) -> None:
        """Adds those of another row."""
        for name in FIGURES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return {name: getattr(self, name) for name in FIGURES}


@dataclass(slots=True)
class ImportRow:
    """A module within those that imported it.

    path: their names and its own, the outermost first; a name in parentheses is that of no module. own: what came while
    it was the innermost module being imported; all: that and what came by its imports. children: most resident first.
    """

    path: tuple[str, ...]
    own: Figures = field(default_factory=Figures)
    all: Figures = field(default_factory=Figures)
    children: list[ImportRow] = field(default_factory=list)

    @property
    def module(self) -> str:
        """`pandas.core.frame`, or `(not importing)`."""
        return self.path[-1]

    @property
    def is_module(self) -> bool:
        """Whether it is an import, and not the rest of the run."""
        return not self.module.startswith("(") or self.module.startswith("(imported ") or self.module == CUT

    def walk(self) -> Iterator[ImportRow]:
        """The row, and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


class Imports:
    """The imports of a composition.

    Attributes:
        of: the tables of blame of the same pages, whose total is the sum of the rows' own figures.
        top: the rows that nothing imported, most resident first: imports, `(not importing)`, and what is not known.
        estimated: whether the figures of rows are, as only one of several faults was recorded. `faults` and `major` of
            all are, too: they count each for those that it stands for.
    """

    def __init__(self, composition: Composition) -> None:
        self.of = Blame(composition)
        self.estimated = composition.sampled > 1
        self._past = composition.past
        tree, of_faults, labels = self._of_faults()
        of_pages = self._of_pages(of_faults, labels)
        rows = [ImportRow((label,)) for label in labels]
        for row, values in zip(rows, self._figures(of_faults, of_pages, len(labels)), strict=True):
            row.own = Figures(*values)
        for node, row in zip(tree.nodes, rows, strict=False):
            if node.parent >= 0:
                row.path = (*rows[node.parent].path, node.label)
                rows[node.parent].children.append(row)
        for row in rows:
            row.all.add(row.own)
        for node, row in reversed(list(zip(tree.nodes, rows, strict=False))):
            row.children.sort(key=lambda child: (-child.all.resident, child.module))
            if node.parent >= 0:
                rows[node.parent].all.add(row.all)
        tops = [row for row in rows if len(row.path) == 1 and any(row.all.as_dict().values())]
        self.top = sorted(tops, key=lambda row: (-row.all.resident, row.module))

    @property
    def rows(self) -> list[ImportRow]:
        """All rows, each before those that it imported."""
        return [row for top in self.top for row in top.walk()]

    def modules(self) -> list[ImportRow]:
        """A row for each module, wherever it was imported; those of other names, too."""
        found: dict[str, ImportRow] = {}
        for row in self.rows:
            one = found.setdefault(row.module, ImportRow((row.module,)))
            one.own.add(row.own)
            if row.module not in row.path[:-1]:
                one.all.add(row.all)
        return list(found.values())

    def _of_faults(self) -> tuple[ImportTree, NDArray[np.intp], list[str]]:
        """The tree, of each fault the number of its label, and the labels: those of the nodes, then reasons."""
        inputs = self._past.inputs[0]
        others = _columns(self.of.of.trace, "tid", "stack_how")
        tree = inputs.tree
        stacks = tree.known(inputs.faults["stack"])
        has = np.flatnonzero(stacks)
        if not len(has):
            if lacks := self._past.incomplete:
                raise UsageError(f"no Python stacks are in what is there of the trace: {printable(lacks)}")
            level = self.of.of.trace.info.level
            if level is not None and level.counts_only:
                raise Unavailable(f"what is imported is told by page faults with stacks: {level.why}", level.remedy)
            raise UsageError("no Python stacks are in the trace, and they tell what is imported",
                             "wstrace doctor says what lifts that")  # fmt: skip
        leaves, which = np.unique(stacks[has], return_inverse=True)
        chains = ImportChains(tree, leaves)
        threads = inputs.faults["space"][has] << 32 | others["tid"][has]
        extension = self._extensions()
        texts = {code: self.of.of.trace.strings[code] for code in np.unique(extension).tolist()}
        texts |= {one.file: tree.text(one.file) for one in chains.imports}
        files = [tree.text(code) for code in np.unique(tree.column("file")).tolist()]
        names = ModuleNames(files, [tree.text(code) for code in chains.programs])
        rows = ImportRows(which, np.unique(threads, return_inverse=True)[1], inputs.faults["time_ns"][has],
                          extension[has])  # fmt: skip
        found = ImportTree(chains, rows, names, texts)
        hows, of_how = np.unique(others["stack_how"], return_inverse=True)
        of_faults = of_how + len(found.nodes)
        of_faults[has] = found.of
        return found, of_faults, [node.label for node in found.nodes] + [reason(how) for how in hows.tolist()]

    def _of_pages(self, of_faults: NDArray[np.intp], labels: list[str]) -> NDArray[np.intp]:
        """Of each resident page the number of its label; adds those of pages that no known fault brought."""
        of = self.of.of
        known = of.owner >= 0
        labels_of_pages = np.empty(len(known), np.intp)
        labels_of_pages[known] = of_faults[of.owner[known]]
        hows, of_how = np.unique(of.found.reason[~known], return_inverse=True)
        labels_of_pages[~known] = of_how + len(labels)
        labels += [f"({of.reason(how)})" for how in hows.tolist()]
        return labels_of_pages

    def _figures(self, of_faults: NDArray[np.intp], of_pages: NDArray[np.intp], n: int) -> Iterable[list[int]]:
        """The own figures of each label."""
        of = self.of.of
        recorded = self._past.inputs[0].faults
        major = (recorded["flags"] & FAULT_MAJOR) != 0
        each = recorded["sampled"] if self.estimated else np.ones(len(major), np.uint32)
        pages = [np.bincount(some, minlength=n) * of.page_size for some in (of_pages, of_pages[of.private[of.run]])]
        faults = [np.bincount(of_faults, each, n), np.bincount(of_faults[major], each[major], n)]
        return np.stack([*pages, *faults], axis=1).astype(np.int64).tolist()  # type: ignore[no-any-return]

    def _extensions(self) -> NDArray[np.intp]:
        """Of each fault the code of the file of an extension module, if it is the first of its process on that file."""
        file, columns = self._past.file, self._past.inputs[0].faults
        strings = self.of.of.trace.strings
        codes = [code for code in np.unique(file).tolist() if 0 < code < len(strings) and is_extension(strings[code])]
        at = np.flatnonzero(np.isin(file, codes))
        at = at[np.argsort(columns["time_ns"][at], kind="stable")]
        first = at[np.unique(columns["space"][at] << 32 | file[at], return_index=True)[1]]
        found = np.zeros(len(file), np.intp)
        found[first] = file[first]
        return found


def _columns(trace: Recorded, *names: str) -> dict[str, NDArray[np.intp]]:
    """Columns of the faults, in the order of Inputs.faults; absent ones are 0."""
    parts: dict[str, list[NDArray[np.intp]]] = {name: [np.zeros(0, np.intp)] for name in names}
    for batch in trace.batches(PAGE_FAULT.name, ("pid", *names)):
        if "pid" in batch:
            for name in names:
                parts[name].append(batch.columns.get(name, np.zeros(len(batch), np.intp)).astype(np.intp))
    return {name: np.concatenate(columns) for name, columns in parts.items()}


def as_dict(told: Imports) -> dict[str, Any]:
    """The imports for JSON: `schema` 1; the rows' own figures sum to the total."""
    of = told.of.of
    rows = told.rows
    return {
        "schema": 1,
        "at": {"moment": of.inputs.moment, "time_ns": of.inputs.time_ns, "of_peak": of.inputs.of_peak},
        "complete": of.complete,
        "lost": of.lost,
        "estimated": told.estimated,
        "total": {name: sum(getattr(row.own, name) for row in rows) for name in FIGURES},
        "rows": [
            {
                "module": row.module,
                "path": list(row.path),
                "import": row.is_module,
                "own": row.own.as_dict(),
                "cumulative": row.all.as_dict(),
            }
            for row in rows
        ],
    }
