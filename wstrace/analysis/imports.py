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
    site that imports, or the first frame within the import system. file: code of that of the `<module>` that ran, 0 =
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
        tree: the call sites. imports: by number; that at 0 stands for none.
        of: of each leaf the number of its innermost import.
        programs: codes of the files that ran without being imported.
    """

    def __init__(self, tree: CallTree, leaves: NDArray[np.intp]) -> None:
        self.tree, self._role = tree, _roles(tree)
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
        if not parent and self.tree.column("flags")[site] & FRAME_CUT:
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
        now, file = self.imports[number], int(self.tree.column("file")[site])
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
        """Where it was imported: `(imported at pandas/core/api.py:9)`, the innermost line outside of the system."""
        tree = self.tree
        while site > 0 and tree.text(int(tree.column("file")[site])).startswith("<frozen "):
            site = int(self._parent[site])
        if site <= 0:
            return "(imported by the interpreter)"
        return f"(imported at {short_path(tree.text(int(tree.column('file')[site])))}:{tree.column('line')[site]})"


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

    Args:
        of: the composition.

    Attributes:
        of: the composition, of which the resident bytes are the sum of the rows.
        top: the rows that nothing imported, most resident first: imports, `(not importing)`, and what is not known.
        estimated: whether figures are, as only one of several faults was recorded.

    Raises:
        UsageError: there are no Python stacks in the trace.
    """

    def __init__(self, of: Composition) -> None:
        self.of, self.estimated = of, of.past.sampled > 1
        rows = [ImportRow((NOT_IMPORTING,))]
        of_faults = self._of_faults(rows)
        known, reasons = of.owner >= 0, of.found.reason
        of_pages = reasons.astype(np.intp) + len(rows)
        of_pages[known] = of_faults[of.owner[known]]
        rows += [ImportRow((f"(not known: {why})",)) for why in REASONS]
        recorded, private = of.inputs.faults, (of.column("flags") & PAGE_EXCLUSIVE) != 0
        each = recorded["sampled"] if self.estimated else np.ones(len(of_faults), np.uint32)
        figures = {
            "resident": np.bincount(of_pages, minlength=len(rows)) * of.page_size,
            "private": np.bincount(of_pages[private], minlength=len(rows)) * of.page_size,
            "faults": np.bincount(of_faults, each, len(rows)),
            "from_disk": np.bincount(of_faults, each * ((recorded["flags"] & FAULT_MAJOR) != 0), len(rows)),
        }
        for name, amounts in figures.items():
            for row, n in zip(rows, amounts.astype(np.int64).tolist(), strict=True):
                row.values[name] = n
        by_path = {row.path: row for row in rows}  # a row stands behind those that imported it
        for row in reversed(rows):
            added(row.all, row.values)
            row.children.sort(key=lambda child: (-child.all["resident"], child.label))
            if len(row.path) > 1:
                above = by_path[row.path[:-1]]
                above.children.append(row)
                added(above.all, row.all)
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
        words = completeness(of.trace, self.of.past, of, of.sums)
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

    def _of_faults(self, rows: list[ImportRow]) -> NDArray[np.intp]:
        """Of each fault the place of its row in `rows`; adds imports there, and why faults have no stack."""
        inputs, tree = self.of.inputs, self.of.inputs.names.tree
        stacks = tree.known(inputs.faults["stack"])
        has = np.flatnonzero(stacks)
        if not len(has):
            if lacks := self.of.past.incomplete:
                raise UsageError(f"no Python stacks are in what is there of the trace: {printable(lacks)}")
            level = self.of.info.level
            if level is not None and level.counts_only:
                raise Unavailable(f"what is imported is known from page faults with stacks: {level.why}", level.remedy)
            raise UsageError("no Python stacks are in the trace, and what is imported is known from them",
                             "wstrace doctor says what lifts that")  # fmt: skip
        leaves, which = np.unique(stacks[has], return_inverse=True)
        chains = ImportChains(tree, leaves)
        files = [tree.text(code) for code in np.unique(tree.column("file")).tolist()]
        names = ModuleNames(files, [tree.text(code) for code in chains.programs])
        of_imports = self._under_imports(chains, names, chains.of[which], has, rows)
        hows, of_how = np.unique(inputs.faults["stack_how"], return_inverse=True)
        found: NDArray[np.intp] = of_how + len(rows)
        found[has] = of_imports
        rows += [ImportRow((reason(how),)) for how in hows.tolist()]
        return found

    def _under_imports(
        self, chains: ImportChains, names: ModuleNames, innermost: NDArray[np.intp], faults: NDArray[np.intp],
        rows: list[ImportRow],
    ) -> NDArray[np.intp]:  # fmt: skip
        """Of each of these faults the place of its row, given the number of its innermost import; adds the rows."""
        imports, inputs, codes = chains.imports, self.of.inputs, {"": 0}  # label -> its code

        def code(label: str) -> int:
            return codes.setdefault(label, len(codes))

        depth, site, running, package = (np.array(column) for column in zip(
            *((one.depth, one.site, one.running, one.package) for one in imports), strict=True))  # fmt: skip
        name_of = np.array([code(CUT if one.site == CUT_SITE else names.of(chains.tree.text(one.file)) if one.file
                                 else "") for one in imports])  # fmt: skip
        extension = np.zeros(len(faults), np.intp)
        for at, file in self._extensions(faults):
            extension[at] = code(names.of(file))
        above = np.zeros((int(depth.max()) + 1, len(imports)), np.intp)  # by depth, the import of each import
        for number, one in enumerate(imports):
            above[:, number] = above[:, one.outer]
            above[one.depth, number] = number
        threads = inputs.faults["space"][faults] << 32 | inputs.faults["tid"][faults]
        found = np.zeros(len(faults), np.intp)
        for level in range(1, len(above)):
            some = np.flatnonzero(depth[innermost] >= level)
            one = above[level][innermost[some]]
            order = np.lexsort((inputs.faults["time_ns"][faults[some]], site[one], threads[some]))
            some, one = some[order], one[order]
            made = running[one] & (one == innermost[some])
            name = np.where((name_of[one] == 0) & made, extension[some], name_of[one])
            name = _continued(begins(threads[some], site[one]), name, running[one])
            at_site: dict[int, set[int]] = {}
            for pair in np.unique(site[one] << 32 | name).tolist():
                at_site.setdefault(pair >> 32, set()).add(pair & 0xFFFFFFFF)
            for at in np.flatnonzero(
                name == 0
            ).tolist():  # the module did not run: the one that it holds, or the only one
                where = int(site[one[at]])
                holds = rows[found[some[at]]].label.rpartition(".")[0] if package[one[at]] and level > 1 else ""
                if holds and not holds.startswith("("):
                    name[at] = code(holds)
                else:
                    name[at] = max(at_site[where]) if len(at_site[where]) == 2 else code(chains.place(where))
            pairs, which = np.unique(found[some] << 32 | name, return_inverse=True)
            found[some] = len(rows) + which
            labels = list(codes)
            rows += [ImportRow((*(rows[pair >> 32].path if level > 1 else ()), labels[pair & 0xFFFFFFFF]))
                     for pair in pairs.tolist()]  # fmt: skip
        return found

    def _extensions(self, faults: NDArray[np.intp]) -> Iterator[tuple[int, str]]:
        """Those of these faults that are the first of their process on an extension module; and its file."""
        file, columns, strings = self.of.past.file, self.of.inputs.faults, self.of.strings
        codes = [code for code in np.unique(file).tolist() if 0 < code < len(strings) and is_extension(strings[code])]
        at = np.flatnonzero(np.isin(file, codes))
        at = at[np.argsort(columns["time_ns"][at], kind="stable")]
        first = at[np.unique(columns["space"][at] << 32 | file[at], return_index=True)[1]]
        place = np.flatnonzero(np.isin(faults, first))
        for row in place.tolist():
            yield row, strings[int(file[faults[row]])]


def _continued(new: NDArray[np.bool_], name: NDArray[np.intp], running: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The names, also of what came before a module ran, of faults in order of thread, place and time; 0 = none.

    new: whether each is at another thread or place than the one before it.
    """
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
