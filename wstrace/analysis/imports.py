"""What the imports of a trace bring: resident bytes and page faults of each module, by itself and with its own imports.

A resident page belongs to the module that was being imported when its fault brought it: `ImportChains` finds the
imports within each other of each stack, `ModuleNames` names their files. A stack shows at which line a module is
imported, and the module's own code while that runs; what finds and reads a module comes before that, without a name. So
`ImportTree` takes the faults of a thread at one importing line in order of time: an import is found and read, then it
runs, and the next one begins where it is being found again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.arrival import REASONS
from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import NAME_LIMIT, Label, Row
from wstrace.analysis.filter import Filter
from wstrace.analysis.frames import reason
from wstrace.analysis.moments import Recorded
from wstrace.analysis.own import short_path, slashed
from wstrace.analysis.report import Report, completeness, moment_words
from wstrace.analysis.tally import begins
from wstrace.errors import Unavailable, UsageError
from wstrace.schema import FAULT_MAJOR, FRAME_CUT, PAGE_EXCLUSIVE
from wstrace.text import printable, size, unit_of

_FROZEN = re.compile(r"^<frozen (?!importlib)([\w.]+)>$")
_ARCHIVE = re.compile(r"^.*\.(?:zip|whl|egg|pyz)/(?=.)")
_EXTENSION = re.compile(r"^(?:\w+\.(?:cpython|pypy|graalpy|abi3|cp\d+)[\w.-]*|(?!lib)\w+)\.(?:so|pyd)$")


class ModuleNames:
    """Names modules by their files.

    Args:
        files: all source files of a trace; an `__init__.py` among them tells that its folder is a package.
        programs: files that were run and not imported: modules beside them are imported by their path from there.
    """

    def __init__(self, files: Iterable[str], programs: Iterable[str] = ()) -> None:
        split = (slashed(file).rpartition("/") for file in files)
        self._packages = {folder for folder, _, name in split if folder and name.startswith("__init__.")}
        self._roots = {folder for folder in (slashed(file).rpartition("/")[0] for file in programs) if folder}
        self._names: dict[str, str] = {}

    def of(self, file: str) -> str:
        """`pandas.core.frame`; "" where the file shows none."""
        if file not in self._names:
            self._names[file] = self._of(slashed(file))
        return self._names[file]

    def _of(self, file: str) -> str:
        if file.startswith("<"):
            frozen = _FROZEN.match(file)
            return frozen[1] if frozen else ""
        inside = _ARCHIVE.sub("", file)
        if inside == file:
            inside = short_path(file).removeprefix("lib-dynload/")
        if inside == file:
            folder = self._root(file.rpartition("/")[0])
            inside = file.removeprefix(f"{folder}/")
        *folders, name = inside.split("/")
        name = name.partition(".")[0]
        return ".".join([*folders, name] if name != "__init__" or not folders else folders)

    def _root(self, folder: str) -> str:
        """The folder from which a module in a folder is imported: outside of its packages, or that of a program."""
        above = folder
        while above in self._packages:
            above = above.rpartition("/")[0]
        if above == folder:
            above = max((root for root in self._roots if folder.startswith(f"{root}/")), key=len, default=folder)
        return above


def is_extension(file: str) -> bool:
    """Whether a file is named as extension modules are: `_json.cpython-311-x86_64-linux-gnu.so`."""
    return _EXTENSION.match(slashed(file).rpartition("/")[2]) is not None


#: The files of the import system, and that of modules in archives.
_SYSTEM = ("<frozen importlib", "<frozen zipimport")
_OTHER, _FIND, _UNLOCKED, _CALL, _LOAD, _MODULE = range(6)
_ROLES = {"_find_and_load": _FIND, "_find_and_load_unlocked": _UNLOCKED, "_call_with_frames_removed": _CALL,
          "exec_module": _LOAD, "create_module": _LOAD}  # fmt: skip
#: Stands in chains for the imports that a stack lacks which was cut.
CUT_SITE = -1
#: Imports within each other that are distinguished: Python itself gives up at 1,000 frames, of which each needs five.
DEEPEST = 128


class Import(NamedTuple):
    """An import, as stacks show it.

    outer: the number of the import within which it happens, 0 = none. depth: how many there are with it. site: the call
    site that imports, or the first frame within the import system. file: the code of the file whose `<module>` ran, 0 =
    none yet. running: whether the module's own code runs, its `<module>` or what makes an extension module; else it is
    being found and read. package: whether it is imported as the package that holds the outer one.
    """

    outer: int
    depth: int
    site: int
    file: int = 0
    running: bool = False
    package: bool = False


class ImportChains:
    """The imports of stacks.

    Args:
        tree: the call sites. leaves: innermost call sites of stacks, shape (n,).

    Attributes:
        imports: by number; that at 0 stands for none.
        of: of each leaf the number of its innermost import.
        programs: codes of the files that ran without being imported.
    """

    def __init__(self, tree: CallTree, leaves: NDArray[np.intp]) -> None:
        self._tree, self._role = tree, _roles(tree)
        self.imports: list[Import] = [Import(0, 0, 0)]
        self.programs: set[int] = set()
        self._numbers: dict[Import, int] = {self.imports[0]: 0}
        self._of: dict[int, int] = {0: 0}
        self._parent = tree.column("parent")
        self.of = np.array([self._innermost(leaf) for leaf in leaves.tolist()], np.intp)

    def _innermost(self, leaf: int) -> int:
        way = []
        while leaf not in self._of:
            way.append(leaf)
            leaf = int(self._parent[leaf])
        found = self._of[leaf]
        for site in reversed(way):
            found = self._of[site] = self._entered(site, found)
        return found

    def _entered(self, site: int, number: int) -> int:
        """The innermost import of a call site, of which its caller has that number."""
        parent, role, now = int(self._parent[site]), int(self._role[site]), self.imports[number]
        above = int(self._role[parent])
        if not parent and self._tree.column("flags")[site] & FRAME_CUT:
            number = self._number(Import(0, 1, CUT_SITE, running=True))
            now = self.imports[number]
        if role == _FIND:
            package = above == _CALL and self._role[self._parent[parent]] == _UNLOCKED
            return self._number(Import(number, now.depth + 1, parent, package=bool(package)))
        if role == _MODULE:
            return self._module(site, number, by_system=above == _CALL)
        if role == _CALL and above == _LOAD and now.depth and not now.running:
            return self._number(now._replace(running=True))
        return number

    def _module(self, site: int, number: int, *, by_system: bool) -> int:
        now, file = self.imports[number], int(self._tree.column("file")[site])
        if now.depth and not now.file and now.site != CUT_SITE:
            return self._number(now._replace(file=file, running=True))
        if by_system:
            return self._number(Import(number, now.depth + 1, int(self._parent[site]), file, running=True))
        if not now.depth:
            self.programs.add(file)
        return number

    def _number(self, found: Import) -> int:
        if found.depth > DEEPEST:
            return found.outer
        if found not in self._numbers:
            self._numbers[found] = len(self.imports)
            self.imports.append(found)
        return self._numbers[found]

    def place(self, site: int) -> str:
        """Where it was imported: `pandas/core/api.py:9`, the innermost line outside of the import system."""
        tree = self._tree
        while site > 0 and tree.text(int(tree.column("file")[site])).startswith("<frozen "):
            site = int(self._parent[site])
        if site <= 0:
            return ""
        return f"{short_path(tree.text(int(tree.column('file')[site])))}:{tree.column('line')[site]}"


def _roles(tree: CallTree) -> NDArray[np.uint8]:
    """By id, what a call site does in an import."""
    ids = tree.ids()
    functions, files = tree.column("function"), tree.column("file")
    named = {code: tree.text(code) for code in np.unique(functions[ids]).tolist()}
    role = np.zeros(max(named, default=0) + 1, np.uint8)
    for code, name in named.items():
        role[code] = _ROLES.get(name.rpartition(".")[2], _OTHER)  # up to 3.10 without the class
    system = [code for code in np.unique(files[ids]).tolist() if tree.text(code).startswith(_SYSTEM)]
    module = [code for code, name in named.items() if name == "<module>"]
    found = np.zeros(len(functions), np.uint8)
    found[ids] = np.where(np.isin(files[ids], system), role[functions[ids]], _OTHER)
    found[ids[np.isin(functions[ids], module)]] = _MODULE
    return found


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
        name = self._named(begins(thread, site), name, running)
        unknown = np.flatnonzero(name == 0)
        name[unknown] = self._otherwise(unknown, site, name, faults, self._package[one])
        pairs, which = np.unique(self.of[faults] << 32 | name, return_inverse=True)
        first = len(self.nodes)
        self.nodes += [Node((pair >> 32) or -1, self._labels[pair & 0xFFFFFFFF]) for pair in pairs.tolist()]
        self.of[faults] = first + which

    def _named(self, new: NDArray[np.bool_], name: NDArray[np.intp], running: NDArray[np.bool_]) -> NDArray[np.intp]:
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
        known_as: dict[tuple[int, int], int] = {}
        for n, number, node in zip(unknown.tolist(), at[unknown].tolist(), self.of[faults[unknown]].tolist(),
                                   strict=True):  # fmt: skip
            key = number, node
            if key not in known_as:
                holds = self.nodes[node].label.rpartition(".")[0] if node and package[n] else ""
                if holds and not holds.startswith("("):
                    known_as[key] = self._code(holds)
                elif least[number] == most[number]:
                    known_as[key] = int(most[number])
                else:
                    place = self._chains.place(int(sites[number]))
                    known_as[key] = self._code(f"(imported at {place})" if place else "(imported by the interpreter)")
            found.append(known_as[key])
        return np.array(found, np.intp)


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
                raise Unavailable(f"what is imported is known from page faults with stacks: {level.why}", level.remedy)
            raise UsageError("no Python stacks are in the trace, and what is imported is known from them",
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
