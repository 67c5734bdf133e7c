"""What the imports of a trace bring: resident bytes and page faults of each module, by itself and with its own imports.

A page belongs to the innermost module that was being imported when its fault brought it. What finds and reads a module
comes before a frame names it: it belongs to the module that ran at the same importing line, if there was only one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.cube import Cube
from wstrace.analysis.dimensions import NAME_LIMIT, OF_STACK, Label, Labels, Row, labels_of, most_of, rows_of
from wstrace.analysis.filter import Filter
from wstrace.analysis.frames import reason
from wstrace.analysis.own import short_path, slashed
from wstrace.analysis.report import Report, report
from wstrace.analysis.stack_views import IMPORT_SYSTEM, any_that_begins
from wstrace.analysis.tally import distinct, numbered
from wstrace.errors import Unavailable, UsageError
from wstrace.hookspecs import Dimension
from wstrace.schema import FRAME_CUT, FRAME_NATIVE
from wstrace.table import Recorded
from wstrace.text import base_name, printable, size, unit_of

_FROZEN = r"^<frozen (?!importlib)([\w.]+)>$"
_ARCHIVE = r"^.*\.(?:zip|whl|egg|pyz)/(?=.)"
_EXTENSION = r"^(?:\w+\.(?:cpython|pypy|graalpy|abi3|cp\d+)[\w.-]*|(?!lib)\w+)\.(?:so|pyd)$"
_AT = "(imported at "
NOT_IMPORTING, CUT = "(not importing)", "(imports that the stack lacks)"
#: Stand for the file of the imports that a stack lacks which was cut, and of an extension module.
_CUT_FILE, _EXTENSION_FILE = -1, -2
#: Imports within each other that are distinguished: Python itself gives up at 1,000 frames, of which each needs five.
DEEPEST = 128
#: The figures of a row; the first two in bytes.
FIGURES = ("resident", "private", "faults", "from_disk")
#: Further imports that the first line names, and the least share of one.
_NAMED, _SHARE = 3, 0.03


class ImportRow(Row):
    """A module within those that imported it; its values are what came while it was the innermost one being imported.

    path: the names of those and its own, the outermost first; a name in parentheses is that of no module. all: its
    values and those of what it imported.
    """

    __slots__ = ("all", "path")

    def __init__(self, path: tuple[str, ...]) -> None:
        package, _, inside = path[-1].removeprefix(_AT).partition("/" if path[-1].startswith(_AT) else ".")
        if path[-1].startswith("(") and not inside:  # of no module, or not imported by a package
            package = ""
        super().__init__((Label(path[-1], "\n".join(path), package=package),), dict.fromkeys(FIGURES, 0))
        self.path, self.all = path, dict.fromkeys(FIGURES, 0)

    @property
    def is_module(self) -> bool:
        """Whether it is an import, and not the rest of the run."""
        return not self.label.startswith("(") or self.label.startswith("(imported ") or self.label == CUT

    def as_dict(self, by: Sequence[str], names: Iterable[str]) -> dict[str, object]:
        """The keys of a row in JSON."""
        more = {"path": list(self.path), "is_import": self.is_module, "cumulative": self.all}
        return super().as_dict(by, names) | more


def imports(trace: Recorded, at: str | int = "peak", pids: Sequence[int] = ()) -> Report:
    """What each imported module brought of the resident pages at a moment; rows stand before those that they imported.

    at: see report(). pids: the processes; () = all. Raises UsageError: there are no Python stacks in the trace, or
    there is no such mark.
    """
    found = report(trace, ("import",), at, chosen=Filter(pids=pids))
    cube = found.cube
    if not cube.names.tree.known(cube.key("stack")).any():
        if lacks := trace.info.incomplete:
            raise UsageError(f"no Python stacks are in what is there of the trace: {printable(lacks)}")
        level = trace.info.level
        if level is not None and level.counts_only:
            raise Unavailable(f"what is imported is known from page faults with stacks: {level.why}", level.remedy)
        raise UsageError("no Python stacks are in the trace, and what is imported is known from them",
                         "wstrace doctor says how to enable them")  # fmt: skip
    named = labels_of(Dimension("import", "", OF_STACK, _labels, owner=True), cube)
    rows: dict[tuple[str, ...], ImportRow] = {}
    for one in rows_of(Labels(named.of, [(label,) for label in named.labels]), found.sums):
        path = tuple(one.whole.split("\n"))
        for outer in (path[:depth] for depth in range(1, len(path) + 1)):
            added(rows.setdefault(outer, ImportRow(outer)).all, one)
        added(rows[path].values, one)

    def place(row: ImportRow) -> list[tuple[int, str]]:
        above = (rows[row.path[:depth]] for depth in range(1, len(row.path) + 1))
        return [(-one.all["resident"], one.label) for one in above]

    ordered, of, estimated = sorted(rows.values(), key=place), found.of, trace.info.sampled > 1
    notes, total = list(found.notes), {name: found.total.get(name, 0) for name in FIGURES}
    peak = of.inputs.of_peak if of is not None else None
    if peak and total["resident"] < 0.995 * peak:
        notes.insert(0, f"the snapshot has {size(total['resident'])} of a peak of {size(peak)}")
    answer = _answer(ordered, total["resident"], printable(found.moment, NAME_LIMIT), "~" * estimated)
    return replace(found, lead="resident", answer=answer, notes=notes, total=total, rows=ordered,
                   more={"estimated": estimated})  # fmt: skip


def added(sums: dict[str, int], row: Row) -> None:
    """Adds the figures of a row to others."""
    for name in FIGURES:
        sums[name] += row[name]


def modules(rows: Iterable[ImportRow]) -> list[ImportRow]:
    """A row for each module, wherever it was imported, most resident first; those of other names, too."""
    found: dict[str, ImportRow] = {}
    for row in rows:
        added(found.setdefault(row.label, ImportRow((row.label,))).values, row)
    return sorted(found.values(), key=lambda row: (-row["resident"], row.label))


def _answer(rows: Sequence[ImportRow], total: int, moment: str, mark: str) -> str:
    """`import pandas brings 37.0 of 62.0 MiB at the peak: 16.2 numpy, 12.4 pandas, ...; import requests 4.1`."""
    unit, divisor = unit_of(total)
    tops = [row for row in rows if len(row.path) == 1 and row.is_module and row.all["resident"]]
    if not tops:
        return f"no import is known to bring any of {size(total)} {moment}"
    most, *others = tops
    inside: Counter[str] = Counter()
    for row in rows:
        if row.path[0] == most.label:
            inside[row.of("package") or row.label] += row["resident"]

    def amount(n: int) -> str:
        return f"{mark}{n / divisor:,.1f}"

    def name(row: ImportRow) -> str:
        return f"{'import ' * (not row.label.startswith('('))}{printable(row.label, NAME_LIMIT)}"

    brought = most.all["resident"]
    packages = [(printable(package, NAME_LIMIT), n, 0) for package, n in inside.most_common()]
    text = f"{name(most)} brings {amount(brought)} of {total / divisor:,.1f} {unit} {moment}"
    text += f": {most_of(packages, brought, amount)}" if len(packages) > 1 else ""
    beside = [row for row in others if row.all["resident"] >= _SHARE * total][:_NAMED]
    return "; ".join([text, *(f"{name(row)} {amount(row.all['resident'])}" for row in beside)])


def _labels(cube: Cube) -> Labels:
    """The labels of cells: the names of the imports that their stacks are in, the outermost first."""
    tree, stack, how = cube.names.tree, cube.names.tree.known(cube.key("stack")), cube.key("how")
    stack[tree.column("kind")[stack] == FRAME_NATIVE] = 0
    leaves, which = numbered(stack)
    imports, of_leaf = _imports(tree, leaves)
    of_cell = of_leaf[which]
    paths = _paths(tree, imports, _extensions(cube, of_cell))
    hows, of_how = numbered(how)
    of = np.where(stack == 0, len(paths) + of_how, of_cell)
    texts = [*(path or (NOT_IMPORTING,) for path in paths), *((reason(one),) for one in hows.tolist())]
    return Labels(of, [Label(path[-1], "\n".join(name.replace("\n", " ") for name in path)) for path in texts])


#: (the number of the import within which it happens, 0 = none; the call site that imports; the code of the file of the
#: `<module>` that ran, 0 = none yet; how many imports there are with it).
_Import = tuple[int, int, int, int]


def _imports(tree: CallTree, leaves: NDArray[np.intp]) -> tuple[list[_Import], NDArray[np.intp]]:
    """The imports of stacks, of which that at 0 stands for none; and of each leaf its innermost one."""
    parents, files = tree.column("parent"), tree.column("file")
    system = any_that_begins(tree, "file", IMPORT_SYSTEM)
    finds = system & any_that_begins(tree, "function", "_find_and_load")
    module = any_that_begins(tree, "function", "<module>")
    creates = any_that_begins(tree, "function", "create_module")  # up to 3.10 without the class
    creates |= any_that_begins(tree, "function", "ExtensionFileLoader.")
    cut = (parents == 0) & (tree.column("flags") & FRAME_CUT != 0)
    numbers: dict[_Import, int] = {(0, 0, 0, 0): 0}
    imports, of = list(numbers), {0: 0}

    def within(outer: int, site: int, file: int) -> int:
        found = outer, site, file, imports[outer][-1] + 1
        if found[-1] > DEEPEST:
            return outer
        if found not in numbers:
            numbers[found] = len(imports)
            imports.append(found)
        return numbers[found]

    def entered(site: int, parent: int, number: int) -> int:
        if cut[site]:
            number = within(0, 0, _CUT_FILE)
        outer, place, file, _ = imports[number]
        found = bool(number and not file)  # it does not run yet
        if module[site] and (found or system[parent]):
            return within(outer, place, int(files[site])) if found else within(number, parent, int(files[site]))
        if finds[site] and not finds[parent]:  # within the search for a module its package is imported before it
            return within(outer if found else number, parent, 0)
        return within(outer, place, _EXTENSION_FILE) if found and creates[site] else number

    for leaf in leaves.tolist():
        way = []
        while leaf not in of:
            way.append(leaf)
            leaf = int(parents[leaf])
        for site in reversed(way):
            of[site] = entered(site, int(parents[site]), of[int(parents[site])])
    return imports, np.array([of[leaf] for leaf in leaves.tolist()], np.intp)


def _extensions(cube: Cube, imports: NDArray[np.intp]) -> dict[int, set[str]]:
    """Import -> the files of extension modules of which pages were touched in it."""
    found: dict[int, set[str]] = defaultdict(set)
    for pair in distinct(imports << 32 | cube.key("file")).tolist():
        if re.match(_EXTENSION, base_name(slashed(file := cube.names.text(pair & 0xFFFFFFFF)))):
            found[pair >> 32].add(file)
    return found


def _paths(tree: CallTree, imports: Sequence[_Import], extensions: dict[int, set[str]]) -> list[tuple[str, ...]]:
    """The names of each import and of those around it, the outermost first."""
    known = {slashed(tree.text(code)) for code in distinct(tree.column("file")).tolist()}
    names = [_module_name(tree.text(file), known) if file > 0 else "" for _, _, file, _ in imports]
    at_site: dict[int, set[str]] = defaultdict(set)
    for number, (_, site, file, _) in enumerate(imports):
        if file == _EXTENSION_FILE:
            files = extensions.get(number, set())
            names[number] = _module_name(files.pop(), known) if len(files) == 1 else ""
        at_site[site].add(names[number])
    found: list[tuple[str, ...]] = [()]
    for name, (outer, site, file, _) in zip(names[1:], imports[1:], strict=True):
        several = at_site[site] - {""}
        only = several.pop() if not file and len(several) == 1 else _place(tree, site)
        found.append((*found[outer], name or (CUT if file == _CUT_FILE else only)))
    return found


def _module_name(file: str, known: Collection[str]) -> str:
    """`pandas.core.frame`; "" where the file shows none. known: all files."""
    if file.startswith("<"):
        frozen = re.match(_FROZEN, file)
        return frozen[1] if frozen else ""
    file = slashed(file)
    inside = short_path(re.sub(_ARCHIVE, "", file)).removeprefix("lib-dynload/")
    if inside == file:
        folder = file.rpartition("/")[0]
        while f"{folder}/__init__.py" in known:
            folder = folder.rpartition("/")[0]
        inside = file.removeprefix(f"{folder}/")
    *folders, name = inside.split("/")
    name = name.partition(".")[0]
    return ".".join(folders if folders and name == "__init__" else [*folders, name])


def _place(tree: CallTree, site: int) -> str:
    """Where it was imported: `(imported at pandas/core/api.py:9)`, the innermost line outside of the system."""
    while site and tree.text(int(tree.column("file")[site])).startswith("<frozen "):
        site = int(tree.column("parent")[site])
    if not site:
        return "(imported by the interpreter)"
    return f"{_AT}{short_path(tree.text(int(tree.column('file')[site])))}:{tree.column('line')[site]})"
