"""What the imports of a trace bring: resident bytes and page faults of each module, by itself and with its own imports.

The resident pages are those of blame, each told by the module that was being imported when its fault brought it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.arrival import REASONS
from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import NAME_LIMIT, Label, Row
from wstrace.analysis.filter import Filter
from wstrace.analysis.import_chains import ImportChains
from wstrace.analysis.import_tree import CUT, ImportRows, ImportTree
from wstrace.analysis.module_names import ModuleNames, is_extension
from wstrace.analysis.moments import Recorded
from wstrace.analysis.report import Report, completeness, moment_words
from wstrace.analysis.stacks import reason
from wstrace.errors import Unavailable, UsageError
from wstrace.schema import FAULT_MAJOR, PAGE_EXCLUSIVE
from wstrace.text import printable, size, unit_of

#: The figures of a row; the first two in bytes.
FIGURES = ("resident", "private", "faults", "from_disk")
#: Packages and imports that the first line names, and the least share of one.
_NAMED, _SHARE = 3, 0.03


class ImportRow(Row):
    """A module within those that imported it; its values are what came while it was the innermost one being imported.

    Attributes:
        path: the names of those and its own, the outermost first; a name in parentheses is that of no module.
        all: its values and those of what it imported. children: most resident first.
    """

    __slots__ = ("all", "children", "path")

    def __init__(self, path: tuple[str, ...], values: Sequence[int] = (0, 0, 0, 0)) -> None:
        package = "" if path[-1].startswith("(") else path[-1].partition(".")[0]
        super().__init__((Label(path[-1], " ".join(path), package=package),), dict(zip(FIGURES, values, strict=True)))
        self.path, self.all = path, dict.fromkeys(FIGURES, 0)
        self.children: list[ImportRow] = []

    @property
    def is_module(self) -> bool:
        """Whether it is an import, and not the rest of the run."""
        return not self.label.startswith("(") or self.label.startswith("(imported ") or self.label == CUT

    def walk(self) -> Iterator[ImportRow]:
        """The row, and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def as_dict(self, by: Sequence[str], names: Iterable[str]) -> dict[str, object]:
        """The keys of a row in JSON."""
        more = {"path": list(self.path), "is_import": self.is_module, "cumulative": self.all}
        return super().as_dict(by, names) | more


def added(sums: dict[str, int], more: dict[str, int]) -> None:
    """Adds figures to others."""
    for name in FIGURES:
        sums[name] += more[name]


class Imports:
    """The imports of a composition.

    Attributes:
        of: the composition, whose resident bytes are the sum of the rows.
        top: the rows that nothing imported, most resident first: imports, `(not importing)`, and what is not known.
        estimated: whether figures are, as only one of several faults was recorded.
    """

    def __init__(self, composition: Composition) -> None:
        self.of, self._past = composition, composition.past
        self.estimated = self._past.sampled > 1
        tree, of_faults, labels = self._of_faults()
        of_pages = self._of_pages(of_faults, labels)
        rows: list[ImportRow] = []
        for number, values in enumerate(self._figures(of_faults, of_pages, len(labels))):
            above = tree.nodes[number].parent if number < len(tree.nodes) else -1
            rows.append(ImportRow((*(rows[above].path if above >= 0 else ()), labels[number]), values))
            if above >= 0:
                rows[above].children.append(rows[-1])
        for row in rows:
            added(row.all, row.values)
        for node, row in reversed(list(zip(tree.nodes, rows, strict=False))):
            row.children.sort(key=lambda child: (-child.all["resident"], child.label))
            if node.parent >= 0:
                added(rows[node.parent].all, row.all)
        tops = [row for row in rows if len(row.path) == 1 and any(row.all.values())]
        self.top = sorted(tops, key=lambda row: (-row.all["resident"], row.label))

    @property
    def rows(self) -> list[ImportRow]:
        """All rows, each before those that it imported."""
        return [row for top in self.top for row in top.walk()]

    def modules(self) -> list[ImportRow]:
        """A row for each module, wherever it was imported; those of other names, too."""
        found: dict[str, ImportRow] = {}
        for row in self.rows:
            one = found.setdefault(row.label, ImportRow((row.label,)))
            added(one.values, row.values)
            if row.label not in row.path[:-1]:
                added(one.all, row.all)
        return list(found.values())

    def report(self) -> Report:
        """The imports as a report: a row for each module within those that imported it."""
        of, total = self.of, dict.fromkeys(FIGURES, 0)
        for row in self.rows:
            added(total, row.values)
        words = completeness(of.trace, self._past, of, of.sums)
        peak, notes = of.inputs.of_peak, list(of.info.obstacles)
        if peak and of.rss < 0.995 * peak:
            notes.insert(0, f"the snapshot has {size(of.rss)} of a peak of {size(peak)}")
        return Report(("import",), "resident", self._answer(), words, notes, total, list(self.rows),
                      moment_words(of.inputs.moment), of.info.to_dict(), of.trace.ledger.as_dict(),
                      more={"estimated": self.estimated})  # fmt: skip

    def _answer(self) -> str:
        """`import pandas brings 37.0 of 62.0 MiB at the peak: numpy 16.2, pandas 12.4, ...; import requests 4.1`."""
        total = self.of.rss
        unit, divisor = unit_of(total)
        mark, moment = "~" * self.estimated, printable(moment_words(self.of.inputs.moment), NAME_LIMIT)
        modules = [row for row in self.top if row.is_module and row.all["resident"]]
        if not modules:
            return f"imports bring nothing of {size(total)} {moment} that is known"
        most, *others = modules
        inside: Counter[str] = Counter()
        for row in most.walk():
            inside[row.of("package") or row.label] += row["resident"]
        big = [(name, n) for name, n in inside.most_common(_NAMED) if n >= _SHARE * most.all["resident"]]
        packages = [f"{printable(name, NAME_LIMIT)} {mark}{n / divisor:,.1f}" for name, n in big]
        more = ", ..." if sum(n for _, n in big) < most.all["resident"] else ""
        brings = f"{mark}{most.all['resident'] / divisor:,.1f} of {total / divisor:,.1f} {unit}"
        text = f"{_named(most)} brings {brings} {moment}"
        text += f": {', '.join(packages)}{more}" if len(inside) > 1 else ""
        beside = [row for row in others if row.all["resident"] >= _SHARE * total][:_NAMED]
        return "; ".join([text, *(f"{_named(row)} {mark}{row.all['resident'] / divisor:,.1f}" for row in beside)])

    def _of_faults(self) -> tuple[ImportTree, NDArray[np.intp], list[str]]:
        """The tree, of each fault the number of its label, and the labels: those of the nodes, then reasons."""
        inputs = self._past.inputs[0]
        tree = inputs.names.tree
        stacks = tree.known(inputs.faults["stack"])
        has = np.flatnonzero(stacks)
        if not len(has):
            if lacks := self._past.incomplete:
                raise UsageError(f"no Python stacks are in what is there of the trace: {printable(lacks)}")
            level = self.of.trace.info.level
            if level is not None and level.counts_only:
                raise Unavailable(f"what is imported is told by page faults with stacks: {level.why}", level.remedy)
            raise UsageError("no Python stacks are in the trace, and they tell what is imported",
                             "wstrace doctor says what lifts that")  # fmt: skip
        leaves, which = np.unique(stacks[has], return_inverse=True)
        chains = ImportChains(tree, leaves)
        threads = inputs.faults["space"][has] << 32 | inputs.faults["tid"][has]
        extension = self._extensions()
        texts = {code: self.of.trace.strings[code] for code in np.unique(extension).tolist()}
        texts |= {one.file: tree.text(one.file) for one in chains.imports}
        files = [tree.text(code) for code in np.unique(tree.column("file")).tolist()]
        names = ModuleNames(files, [tree.text(code) for code in chains.programs])
        rows = ImportRows(which, np.unique(threads, return_inverse=True)[1], inputs.faults["time_ns"][has],
                          extension[has])  # fmt: skip
        found = ImportTree(chains, rows, names, texts)
        hows, of_how = np.unique(inputs.faults["stack_how"], return_inverse=True)
        of_faults = of_how + len(found.nodes)
        of_faults[has] = found.of
        return found, of_faults, [node.label for node in found.nodes] + [reason(how) for how in hows.tolist()]

    def _of_pages(self, of_faults: NDArray[np.intp], labels: list[str]) -> NDArray[np.intp]:
        """Of each resident page the number of its label; adds those of pages that no known fault brought."""
        of = self.of
        known = of.owner >= 0
        labels_of_pages = np.empty(len(known), np.intp)
        labels_of_pages[known] = of_faults[of.owner[known]]
        hows, of_how = np.unique(of.found.reason[~known], return_inverse=True)
        labels_of_pages[~known] = of_how + len(labels)
        labels += [f"(not known: {REASONS[how]})" for how in hows.tolist()]
        return labels_of_pages

    def _figures(self, of_faults: NDArray[np.intp], of_pages: NDArray[np.intp], n: int) -> Iterable[list[int]]:
        """The own figures of each label."""
        of = self.of
        private = (of.column("flags") & PAGE_EXCLUSIVE) != 0
        recorded = self._past.inputs[0].faults
        major = (recorded["flags"] & FAULT_MAJOR) != 0
        each = recorded["sampled"] if self.estimated else np.ones(len(major), np.uint32)
        pages = [np.bincount(some, minlength=n) * of.page_size for some in (of_pages, of_pages[private])]
        faults = [np.bincount(of_faults, each, n), np.bincount(of_faults[major], each[major], n)]
        return np.stack([*pages, *faults], axis=1).astype(np.int64).tolist()  # type: ignore[no-any-return]

    def _extensions(self) -> NDArray[np.intp]:
        """Of each fault the code of the file of an extension module, if it is the first of its process on that file."""
        file, columns = self._past.file, self._past.inputs[0].faults
        strings = self.of.trace.strings
        codes = [code for code in np.unique(file).tolist() if 0 < code < len(strings) and is_extension(strings[code])]
        at = np.flatnonzero(np.isin(file, codes))
        at = at[np.argsort(columns["time_ns"][at], kind="stable")]
        first = at[np.unique(columns["space"][at] << 32 | file[at], return_index=True)[1]]
        found = np.zeros(len(file), np.intp)
        found[first] = file[first]
        return found


def imports(trace: Recorded, at: str | int = "peak", pids: Sequence[int] = ()) -> Imports:
    """What each imported module brought of the resident pages at a moment.

    Args:
        trace: the trace. at: see report(). pids: the processes; () = all.

    Raises:
        UsageError: there are no Python stacks in the trace, or there is no such mark.
    """
    return Imports(Composition(trace, at, chosen=Filter(pids=pids)))


def _named(row: ImportRow) -> str:
    name = printable(row.label, NAME_LIMIT)
    return f"import {name}" if not name.startswith("(") else name
