"""The labels by which tables group stacks: own line, innermost function, whole stack, package; stacks as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.frames import Frame, Frames, to_the_root
from wstrace.analysis.own import Origin, OwnRule, package_of, slashed
from wstrace.analysis.symbols import Symbolizer
from wstrace.analysis.tally import combinations, distinct
from wstrace.batch import Batch, Dictionary
from wstrace.schema import FRAME_CUT, FRAME_KINDS, Column, Schema
from wstrace.text import base_name, without_arguments

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The file of the frames of the import system.
IMPORT_SYSTEM = "<frozen importlib"

StackBy = Literal["line", "function", "stack", "package"]
LIBRARY, OWN_CODE = "(standard library)", "(own code)"
CALLED_BY = " < "


STACKS = Schema(
    "stacks",
    (
        Column("id", "u32", "stack", "what `stack` and `native_stack` of page_fault name"),
        Column("parent", "u32", "stack", "its caller, 0 = none"),
        Column("depth", "u32", "count", "frames of the stack"),
        Column("kind", "u8", "id", "what the code of the innermost frame is", words=FRAME_KINDS),
        Column("function", "u32", "str", "of the innermost frame"),
        Column("file", "u32", "str", "its source file, where known"),
        Column("line", "u32", "count", "in that file, from 1; 0 = not known"),
        Column("module", "u32", "str", "of native code"),
        Column("offset", "u64", "count", "in the file of the module"),
        Column("own", "u8", "count", "1 = the frame is the program's own"),
        Column("own_line", "u32", "str", "the label of `report --by line`"),
        Column("package", "u32", "str", "the label of `report --by package`"),
        Column("folded", "u32", "str", "the whole stack, outermost;...;innermost"),
    ),
)


class Label(NamedTuple):
    """The name of a row in one dimension.

    text: as tables show it, as it came from the target (print it through wstrace.text.printable). whole: the same, of
    which no two are equal; "" = text. file, line, function, package: of its place, "" and 0 = not known. frames: those
    of a stack, innermost first. reason: why the owner is not known.
    """

    text: str
    whole: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    package: str = ""
    frames: tuple[Frame, ...] = ()
    reason: str = ""

    @property
    def unique(self) -> str:
        """What tells it from all others of its dimension."""
        return self.whole or self.text


def without_name(module: str) -> str:
    """Code of which no function is known: of a stripped file an offset would be a row for each instruction."""
    return "(compiled code)" if module == "[anon]" else module


def line_of_native(frame: Frame) -> Label:
    """The own line of a program that is not Python."""
    if not (frame.own and frame.shown and frame.line):
        label = whole = without_name(frame.module)
        if frame.function:
            label, whole = f"{label}!{without_arguments(frame.function)}", frame.name
        return Label(label, whole, function=frame.function, package=frame.module)
    label = f"{without_arguments(frame.function) or frame.module} {frame.shown}:{frame.line}{frame.doubt}"
    return _of_frame(frame, label)._replace(package=frame.module)


def _of_frame(frame: Frame, text: str) -> Label:
    where = f"{frame.file}:{frame.line}" if frame.line else frame.file
    whole = f"{where} {frame.name}{frame.doubt}" if where else text
    return Label(text, whole, frame.file, frame.line, frame.function, package_of(frame.file))


class StackViews:
    """Labels the stacks of a tree.

    rule: decides which source files are the program's own. symbolizer: names native frames.
    """

    def __init__(self, tree: CallTree, rule: OwnRule, symbolizer: Symbolizer | None) -> None:
        self._tree = tree
        self._frames = Frames(tree, rule, symbolizer)
        self._of_lines: tuple[NDArray[np.intp], list[Label]] = np.zeros(0, np.intp), []

    def labels(self, by: StackBy, leaves: NDArray[np.intp]) -> list[Label]:
        """The labels of stacks, by their innermost call sites."""
        return {"line": self._lines, "function": self._innermost, "stack": self._stacks, "package": self._packages}[by](
            leaves
        )

    def attributed(self, leaves: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
        """The frame that each stack is attributed to, its innermost one of the highest Origin, and that Origin."""
        origins = self._frames.line_origins()
        chosen, found = leaves.copy(), np.zeros(len(leaves), np.uint8)
        open_ = np.arange(len(leaves))
        for origin in sorted(Origin, reverse=True)[:-1]:
            at = self._tree.first_above(leaves[open_], origins == origin)
            chosen[open_[at != 0]], found[open_[at != 0]] = at[at != 0], origin
            open_ = open_[at == 0]
        return chosen, found

    def _lines(self, leaves: NDArray[np.intp]) -> list[Label]:
        if not np.array_equal(leaves, self._of_lines[0]):  # several tables of a trace are by its lines
            self._of_lines = leaves.copy(), self._named_lines(leaves)
        return self._of_lines[1]

    def _named_lines(self, leaves: NDArray[np.intp]) -> list[Label]:
        nodes, origins = self.attributed(leaves)
        # The own line may be among the frames that are missing.
        cut = self._tree.first_above(leaves, self._tree.column("flags") & FRAME_CUT != 0) != 0
        imports = imported(self._tree, leaves, nodes)
        frames, which = self._frames.of_lines(nodes)
        labels: dict[tuple[int, int, bool, str], Label] = {}  # many call sites have the same
        found: list[Label] = []
        for node, *key in zip(nodes.tolist(), which.tolist(), origins.tolist(), cut.tolist(), imports, strict=True):
            number, origin, is_cut, name = place = tuple(key)
            if place not in labels:
                labels[place] = self._line(node, frames[number], origin, name, is_cut=is_cut)
            found.append(labels[place])
        return found

    def _line(self, node: int, frame: Frame, origin: int, name: str, *, is_cut: bool) -> Label:
        if origin in (Origin.PACKAGE, Origin.LIBRARY):
            package = self._frames.package(node) if origin == Origin.PACKAGE else ""
            text = f"(package {package})" if origin == Origin.PACKAGE else LIBRARY
            return Label(f"{text[:-1]}, stack cut)" if is_cut else text, package=package)
        if frame.kind == "native":
            return line_of_native(frame)
        if name and frame.file:
            place = f"{frame.file}:{frame.line}"
            return Label(f"import {name} {frame.shown or frame.file}:{frame.line}", f"{place} import {name}",
                         frame.file, frame.line, frame.function, name)  # fmt: skip
        return _of_frame(frame, str(frame))

    def _packages(self, leaves: NDArray[np.intp]) -> list[Label]:
        origins = self._frames.origins()
        nodes = self._tree.first_above(leaves, origins >= Origin.PACKAGE)
        library = self._tree.first_above(leaves, origins == Origin.LIBRARY) != 0
        columns = (self._tree.column(name)[nodes] for name in ("kind", "file", "function", "mapping"))
        rows, which = combinations(nodes != 0, library, origins[nodes], *columns)
        found: list[Label] = []
        for node, is_library in zip(nodes[rows].tolist(), library[rows].tolist(), strict=True):
            if node:
                label = OWN_CODE if origins[node] > Origin.PACKAGE else self._frames.package(node)
            else:
                label = LIBRARY if is_library else "(no package)"
            found.append(Label(label, package=label))
        return [found[at] for at in which.tolist()]

    def _innermost(self, leaves: NDArray[np.intp]) -> list[Label]:
        named, which = self._frames.named(leaves)
        found = []
        for *_, frame in named:
            text = frame.located + frame.doubt
            if frame.kind == "native" and not frame.function:
                found.append(Label(without_name(frame.module), package=frame.module))
            else:
                found.append(_of_frame(frame, text)._replace(line=0, whole=text))
        return [found[at] for at in which.tolist()]

    def _stacks(self, leaves: NDArray[np.intp]) -> list[Label]:
        sites, bounds = self._tree.stacks(leaves)
        # frames are named together, not stack by stack, and those of many call sites are one object
        named, which = self._frames.named(sites)
        code, begin = which.tolist(), bounds.tolist()
        system = [bool(frames) and frames[0].file.startswith(IMPORT_SYSTEM) for frames in named]
        texts = [CALLED_BY.join(map(str, frames)) for frames in named]
        found = []
        for first, end in pairwise(begin):
            stack = code[first:end]
            frames = tuple(chain.from_iterable([named[at] for at in stack]))
            shown = [texts[at] for at in stack if not system[at]] or [texts[at] for at in stack]
            lacks = to_the_root(frames)[len(frames) :]
            found.append(Label(CALLED_BY.join([*shown, *map(str, lacks)]), frames=frames))
        return found


def whole(frames: Sequence[Frame]) -> str:
    """All frames of a stack as one line, innermost first."""
    return CALLED_BY.join(map(str, frames))


def imported(tree: CallTree, leaves: NDArray[np.intp], nodes: NDArray[np.intp]) -> list[str]:
    """For each stack the package or module that one of its frames was importing; "" = none.

    leaves: innermost call sites, shape (n,). nodes: a frame of each stack, shape (n,).
    """
    first, below = _outermost_module(tree, leaves, nodes)
    files = np.where(any_that_begins(tree, "file", IMPORT_SYSTEM)[below] & (nodes != 0), tree.column("file")[first], 0)
    names = {code: _module_name(tree.text(code)) for code in distinct(files).tolist()}
    return [names[code] for code in files.tolist()]


def _outermost_module(
    tree: CallTree, leaves: NDArray[np.intp], nodes: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of the frames that each node called, the outermost `<module>` and the outermost of all; 0 = none."""
    parent, module = tree.column("parent").astype(np.intp), any_that_begins(tree, "function", "<module>")
    at, below, first = leaves.copy(), np.zeros(len(leaves), np.intp), np.zeros(len(leaves), np.intp)
    going = np.flatnonzero((at != nodes) & (at != 0))
    while len(going):
        here = at[going]
        first[going] = np.where(module[here], here, first[going])
        below[going] = here
        at[going] = parent[here]
        going = going[(at[going] != nodes[going]) & (at[going] != 0)]
    below[at != nodes] = 0
    return first, below


def any_that_begins(tree: CallTree, column: str, text: str) -> NDArray[np.bool_]:
    """By id, whether a column's text begins with another text."""
    ids = tree.ids()
    codes = tree.column(column)[ids]
    wanted = [code for code in distinct(codes).tolist() if tree.text(code).startswith(text)]
    mask = np.zeros(len(tree.column(column)), np.bool_)
    mask[ids[np.isin(codes, wanted)]] = True
    return mask


def _module_name(file: str) -> str:
    """What a module is imported as, as far as its file shows: its package's name, or its own."""
    if not file or file.startswith("<"):
        return ""
    if package := package_of(file):
        return package
    folder, _, name = slashed(file).rpartition("/")
    return base_name(folder) if name.startswith("__init__.") else name.partition(".")[0]


def stack_rows(tree: CallTree, strings: Dictionary, wanted: Iterable[str], symbolizer: Symbolizer | None) -> Batch:
    """All call sites of a tree, with some of the columns of STACKS.

    strings: the dictionary that the texts go into. wanted: the names of these columns. symbolizer: names native frames.
    """
    ids, names, code = tree.ids(), set(wanted), strings.code
    columns = {}
    if "id" in names:
        columns["id"] = ids.astype("<u4")
    columns |= {name: tree.column(name)[ids] for name in ("parent", "kind", "line", "offset") if name in names}
    if "depth" in names:
        columns["depth"] = _depths(tree)[ids]
    frames = Frames(tree, OwnRule(), symbolizer)
    if of_frame := names & {"function", "file", "module", "own"}:
        found, which = frames.of_lines(ids)
        for name in of_frame:
            values = [frame.own is True if name == "own" else code(getattr(frame, name)) for frame in found]
            columns[name] = np.array(values, "|u1" if name == "own" else "<u4")[which]
    views = StackViews(tree, OwnRule(), symbolizer)
    for name, by in (("own_line", "line"), ("package", "package")):
        if name in names:
            labels = views.labels(by, ids)  # type: ignore[arg-type]
            columns[name] = np.array([code(label.text) for label in labels], "<u4")
    if "folded" in names:
        folded = (";".join(str(frame).replace(";", ",") for frame in reversed(frames.stack(i))) for i in ids.tolist())
        columns["folded"] = np.fromiter(map(code, folded), "<u4", len(ids))
    return Batch(STACKS, columns, strings=strings, rows=len(ids))


def _depths(tree: CallTree) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """The number of frames of each stack, by id."""
    parent = tree.column("parent").astype(np.intp)
    depths = np.zeros(len(parent), "<u4")
    at = np.arange(len(parent))
    at[~np.isin(at, tree.ids())] = 0
    while at.any():
        depths += at != 0
        at = parent[at]
    return depths
