"""Dimensions: what the rows of a table are by, and how they are named. One registry for all tables and outputs.

A plugin adds one by the hook `wstrace_dimensions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.analysis.arrival import REASONS
from wstrace.analysis.frames import native_frame, native_frames
from wstrace.analysis.own import package_of
from wstrace.analysis.stack_views import OWN_CODE, StackBy, line_of_native, whole, without_name
from wstrace.analysis.stack_views import Label as Label
from wstrace.analysis.symbols import OFFSET
from wstrace.analysis.tally import combinations, numbered
from wstrace.batch import Batch
from wstrace.errors import UsageError
from wstrace.hookspecs import Dimension
from wstrace.interfaces import OWN_KERNEL, Place
from wstrace.plugins import default_plugins
from wstrace.schema import HOW_NOT_SAMPLED, KINDS
from wstrace.text import base_name, estimate_mark, printable, without_arguments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.analysis.cube import Cube
    from wstrace.analysis.names import Names

#: The top bit of the offset of an instruction that is kept.
_TOP_BIT = np.uint64(43)
NOT_KNOWN = "(not known)"
#: The most characters of a label in a sentence.
NAME_LIMIT = 60
#: The cells of all that was too rare to be kept apart.
OTHER = "[other]"
#: The most labels of a dimension: a name takes 20 to 100 us, and a small file has a million threads or instructions.
_NAMED = 1 << 15


class Labels(NamedTuple):
    """The labels of cells: of each cell the number of its label, shape (cells,).

    labels: each a Label, or of several dimensions together a tuple of them.
    """

    of: NDArray[np.intp]
    labels: list[Any]


class Row:
    """A row of a table.

    labels: one for each dimension that rows are by. values: measure -> its sum. label: the texts of its labels. whole:
    what tells it from all other rows.
    """

    __slots__ = ("label", "labels", "values", "whole")

    def __init__(self, labels: Sequence[Label], values: dict[str, int]) -> None:
        self.labels, self.values = tuple(labels), values
        self.label, self.whole = (
            "  ".join(texts) for texts in zip(*((one.text, one.unique) for one in labels), strict=True)
        )

    def __getitem__(self, measure: str) -> int:
        return self.values.get(measure, 0)

    def of(self, name: str) -> str:
        """What its labels say of its place: the file, function or package; or why the owner is not known (reason)."""
        return next((found for one in self.labels if (found := getattr(one, name))), "")

    @property
    def line(self) -> int:
        """The line in its file, from 1; 0 = not known."""
        return next((one.line for one in self.labels if one.line), 0)

    def as_dict(self, by: Sequence[str], names: Iterable[str]) -> dict[str, object]:
        """The keys of a row in JSON. by: the dimensions of its labels. names: of the measures."""
        found: dict[str, Any] = {"label": self.label}
        found |= {name: self.of(name) for name in ("file", "function", "package", "reason")}
        # `load`, not `load app.py`, is the function of a row by function
        found |= {name: getattr(label, name, "") or label.text for name, label in zip(by, self.labels, strict=True)}
        return found | {"line": self.line} | {name: self[name] for name in names}


def name_of(label: str) -> str:
    """A label as a sentence has it."""
    if label.startswith(("(package ", "(standard ")):
        label = label[1:].removesuffix(")").removesuffix(", stack cut")
    return printable(label, NAME_LIMIT)


#: of growth: what keeps a page may be another line, where memory that was freed in the process is used again
FIRST_TOUCH = ", by first touch"
REUSED = "which frees and reuses memory: another line may keep it"


def first_touched(name: str, again: int, growth: float) -> str:
    """What is said of a line that grows where at least half of that are pages that it had before; "" = they are fewer.

    A page is of the line that touches it first: a cache may grow in memory that a temporary list has just freed.
    """
    freed = 2 * again >= growth > 0
    return f"first touched by {name}, {REUSED}" if freed else ""


def most_of(
    parts: Iterable[tuple[str, int, int]], whole: int, written: Callable[[int], str], share: float = 0.03
) -> str:
    """`92.8 import pandas app.py:2, ~61.3 load app.py:4, ...`: up to three of these that have a share of the whole.

    parts: name, amount and what of that is estimated, those with the most first. whole: of all. written: an amount in
    words. share: the least one that is named.
    """
    some = [part for part in parts if abs(part[1]) >= max(share * abs(whole), 1)][:3]
    words = [f"{estimate_mark(n, doubtful, written)}{written(n)} {name}" for name, n, doubtful in some]
    return ", ".join([*words, "..."] if words and sum(abs(n) for _, n, _ in some) < abs(whole) else words)


def rows_of(labels: Labels, sums: Mapping[str, NDArray[Any]], sort: str = "faults") -> list[Row]:
    """The rows of cells by their labels, those with most of a measure first, equal ones by label.

    labels: those of the rows. sums: measure -> its sum of each cell. sort: the measure.
    """
    totals = {name: np.bincount(labels.of[: len(one)], one, len(labels.labels)) for name, one in sums.items()}
    found = []
    for label, *amounts in zip(labels.labels, *(total.tolist() for total in totals.values()), strict=True):
        if any(amounts):
            found.append(Row(label, {name: round(n) for name, n in zip(totals, amounts, strict=True)}))
    return sorted(found, key=lambda row: (-row[sort], -row["faults"], row.label))


def joined(by: Sequence[str], cube: Cube) -> Labels:
    """The labels of all cells of a cube by several dimensions together. Raises UsageError."""
    named = [labels_of(one, cube) for one in dimensions_of(by).values()]
    first, of = combinations(*(one.of for one in named))
    keys = zip(*(one.of[first].tolist() for one in named), strict=True)
    return Labels(of.astype(np.intp), [tuple(one.labels[n] for one, n in zip(named, key, strict=True)) for key in keys])


def rows(cube: Cube, by: Sequence[str], *, sort: str = "faults") -> list[Row]:
    """The rows of all that a cube has counted by these dimensions, those with most of a measure first."""
    return rows_of(joined(by, cube), {name: cube.measure(name) for name in cube.sums}, sort)


def labels_of(dimension: Dimension, cube: Cube) -> Labels:
    """The labels of all cells of a cube, `[other]` and `(not known)` included."""
    found: Labels = dimension.labels(cube)
    of, labels = found.of.copy(), list(found.labels)
    if cube.forgotten:
        of[0] = len(labels)
        labels.append(Label(OTHER))
    if dimension.owner:
        for reason in np.flatnonzero(np.bincount(cube.key("reason"))).tolist():
            if reason:
                of[cube.key("reason") == reason] = len(labels)
                why = REASONS[reason] if reason < len(REASONS) else REASONS[-1]
                labels.append(Label(NOT_KNOWN, f"(not known: {why})", reason=why))
    return _without_twins(of, labels)


def _without_twins(of: NDArray[np.intp], labels: list[Label]) -> Labels:
    """The labels, each but once."""
    number: dict[str, int] = {}
    which = np.array([number.setdefault(label.unique, len(number)) for label in labels], np.intp)
    first: dict[int, Label] = {}
    for at, label in zip(which.tolist(), labels, strict=True):
        first.setdefault(at, label)
    return Labels(which[of] if len(of) else of, [first[at] for at in range(len(number))])


def _combined(cube: Cube, *columns: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp], list[Label]]:
    """(the first cell of each combination of values, shape (combinations,); of each cell its combination; `[other]`).

    Past _NAMED, those of most faults are the combinations, and the number behind the last of them is `[other]`.
    """
    rows, of = (found.astype(np.intp) for found in combinations(*columns))
    if len(rows) <= _NAMED:
        return rows, of, []
    kept = np.argpartition(np.bincount(of, cube.measure("faults")), -_NAMED)[-_NAMED:]
    number = np.full(len(rows), _NAMED)
    number[kept] = np.arange(_NAMED)
    return rows[kept], number[of], [Label(OTHER)]


def _by(cube: Cube, keys: Sequence[str], name: Callable[..., Label]) -> Labels:
    """One label for each combination of these keys, which are given to `name`."""
    columns = [cube.key(key) for key in keys]
    rows, of, other = _combined(cube, *columns)
    return Labels(of, [*(name(*(int(column[row]) for column in columns)) for row in rows.tolist()), *other])


def _text(key: str) -> Callable[[Cube], Labels]:
    def labels(cube: Cube) -> Labels:
        return _by(cube, (key,), lambda code: Label(cube.names.text(code)))

    return labels


def _files(cube: Cube) -> Labels:
    return _by(cube, ("file",), lambda code: Label(text := cube.names.text(code), file=text))


def _modules(cube: Cube) -> Labels:
    return _by(cube, ("pc_file",), lambda code: Label(base_name(cube.names.text(code))))


def _kinds(cube: Cube) -> Labels:
    return _by(cube, ("kind",), lambda code: Label(KINDS[code if code < len(KINDS) else 0]))


def _processes(cube: Cube) -> Labels:
    names = cube.names
    roles = names.of_processes.roles(names.processes.pid)

    def name(process: int) -> Label:
        if names.processes.is_shared(process):
            return Label(OTHER)
        text = f"{names.name(process)} ({names.processes.pid(process)})"
        return Label(f"{text}, {roles[process]}" if process in roles else text, f"{text} {process}")

    return _by(cube, ("process",), name)


def _threads(cube: Cube) -> Labels:
    names = cube.names

    def name(process: int, tid: int) -> Label:
        if names.processes.is_shared(process):
            return Label(OTHER)
        return Label(text := f"{names.name(process, tid)} ({tid})", f"{text} {process}")

    return _by(cube, ("process", "tid"), name)


def _of_stacks(view: StackBy) -> Callable[[Cube], Labels]:
    """Labels by stack, and by instruction where there is none."""

    def labels(cube: Cube) -> Labels:
        names = cube.names
        leaf = names.tree.known(cube.key("stack"))
        place = cube.key("place")
        if view == "line" and place.any():  # what stands in the program's own code needs no sample
            leaf = np.where((cube.key("how") == HOW_NOT_SAMPLED) & _in_own_code(cube), 0, leaf)
        place = np.where(leaf != 0, np.uint64(0), place)
        rows, of, other = _combined(cube, leaf, place, np.where((leaf != 0) | (place != 0), 0, cube.key("pc_file")))
        stacked = np.flatnonzero(leaf[rows] != 0)
        found = [Label("")] * len(rows)
        leaves, which = numbered(leaf[rows[stacked]])
        if len(leaves):
            named = names.views.labels(view, leaves)
            for row, at in zip(stacked.tolist(), which.tolist(), strict=True):
                found[row] = named[at]
        bare = np.flatnonzero(leaf[rows] == 0)
        for row, label in zip(bare.tolist(), _instructions(cube, rows[bare], view), strict=True):
            found[row] = label
        return Labels(of, found + other)

    return labels


def _in_own_code(cube: Cube) -> NDArray[np.bool_]:
    """Whether the instruction of each cell is in the program's own code."""
    place = cube.key("place")
    own: NDArray[np.bool_] = cube.names.own_code(cube.key("pc_file"), place) & (place != 0)
    return own


def _instructions(cube: Cube, cells: NDArray[np.intp], view: str) -> list[Label]:
    """The labels of cells by their instruction."""
    names = cube.names
    places_of = cube.key("instruction" if view == "instruction" else "place")[cells]
    files = [names.text(code) for code in cube.key("pc_file")[cells].tolist()]
    mappings, offsets = cube.key("pc_mapping")[cells] * (places_of != 0), places_of & OFFSET
    kernel = np.flatnonzero(np.array([file in OWN_KERNEL for file in files], np.bool_) & (offsets >> _TOP_BIT != 0))
    if view == "line":
        mappings[kernel] = 0  # the list of the kernel's functions takes 60 ms to read: only other views name them
    elif len(kernel):  # its addresses begin with ones, which the number of an instruction lacks
        known, of_kernel = names.symbolizer.mappings.find(mappings[kernel])
        there = kernel[known]
        offsets[there] = (offsets[there] | ~np.uint64(0) << _TOP_BIT) - of_kernel["start"]
    strings = names.strings
    if strings is None or not len(cells):
        return []
    lines = _in_own_code(cube)[cells] if view in ("line", "package") else np.full(len(cells), view == "stack")
    places: list[Place | str] = [""] * len(cells)
    for some in (False, True):
        rows = np.flatnonzero((lines == some) & (mappings != 0))
        if len(rows):
            index, found = names.symbolizer.at_offsets(mappings[rows], offsets[rows], strings, lines=some)
            for row, at in zip(rows.tolist(), index.tolist(), strict=True):
                places[row] = found[at]
    return [
        _of_place(place, file, view, int(offset), with_line)
        for place, file, offset, with_line in zip(places, files, offsets.tolist(), lines.tolist(), strict=True)
    ]


def _of_place(place: Place | str, file: str, view: str, offset: int, with_line: bool) -> Label:
    """The label of an instruction; place = "": it lies in no known mapping, but in that file."""
    if isinstance(place, Place) and view == "stack":
        frames = native_frames(place, offset=offset)
        return Label(whole(frames), frames=frames)
    if isinstance(place, Place) and with_line:
        own = Label(OWN_CODE, package=OWN_CODE)
        return own if view == "package" else line_of_native(native_frame(place, offset=offset))
    module = place.module if isinstance(place, Place) else base_name(place or file)
    package = package_of(file) or module
    if view == "package":
        return Label(package, package=package)
    function = place.function if isinstance(place, Place) else ""
    if function:
        return Label(
            f"{module}!{without_arguments(function)}", f"{module}!{function}", function=function, package=package
        )
    where = str(place) if isinstance(place, Place) and place.number else without_name(module)
    return Label(where, package=package)


_LINES = _of_stacks("line")


def _owners(cube: Cube) -> Labels:
    """The labels by package, of the program's own code by line."""
    lines, packages = _LINES(cube), _of_stacks("package")(cube)
    own = np.array([label.text == OWN_CODE for label in packages.labels], np.bool_)[packages.of]
    return Labels(np.where(own, lines.of, packages.of + len(lines.labels)), lines.labels + packages.labels)


def _imports(cube: Cube) -> Labels:
    """The labels by import: those of lines, which know what they were importing."""
    found = _LINES(cube)
    names = [label.package if label.text.startswith("import ") else "" for label in found.labels]
    return Labels(found.of, [Label(name, package=name) if name else Label("(no import)") for name in names])


def _sections_of(batch: Batch, names: Names) -> NDArray[np.uint32]:
    """The code of the section that each fault's page lies in."""
    from wstrace.analysis.symbols import label_of

    index, places = names.symbolizer.coded(batch, "va", "mapping", "file")
    codes = np.array([batch.strings.code(label_of(place, "section")) for place in places], np.uint32)
    return codes[index]


def _instruction_of(batch: Batch, names: Names) -> NDArray[np.uint64]:
    return names.instructions.of(batch)[0]


def _by_instruction(cube: Cube) -> Labels:
    rows, of, other = _combined(cube, cube.key("instruction"), cube.key("pc_file"))
    return Labels(of, _instructions(cube, rows, "instruction") + other)


OF_STACK = ("stack", "how", "place", "pc_file", "reason")
_ALL = (
    # the innermost line of the program's own code, else the function of the instruction
    Dimension("line", "own line", OF_STACK, _LINES, owner=True),
    Dimension("function", "function", OF_STACK, _of_stacks("function"), owner=True),
    # the package of the innermost frame outside of the standard library
    Dimension("package", "package", OF_STACK, _of_stacks("package"), owner=True),
    # the own line where it has no package, else that
    Dimension("owner", "own line or package", OF_STACK, _owners, owner=True),
    # the package that the own line imports
    Dimension("import", "import", OF_STACK, _imports, owner=True),
    Dimension("stack", "stack", OF_STACK, _of_stacks("stack"), owner=True),
    # the file that the page is mapped from, or [heap], [anon] ...
    Dimension("file", "file of the page", ("file",), _files),
    # the file of the code that touched the page
    Dimension("module", "module of the instruction", ("pc_file",), _modules, owner=True),
    # the section of the file that the page lies in
    Dimension("section", "section of the page", ("section",), _text("section"), _sections_of),
    # anon, heap, stack, file, shared memory ...
    Dimension("kind", "kind of memory", ("kind",), _kinds),
    Dimension("process", "process", ("process",), _processes),
    # the thread that touched the page
    Dimension("thread", "thread", ("process", "tid"), _threads, owner=True),
    Dimension("cgroup", "control group", ("cgroup",), _text("cgroup")),
    Dimension("instruction", "function of the instruction", ("instruction", "pc_file"), _by_instruction,
              _instruction_of, owner=True),
)  # fmt: skip


def dimensions() -> dict[str, Dimension]:
    """name -> dimension: those of wstrace, then those of plugins."""
    found = {one.name: one for one in _ALL}
    for one in default_plugins().dimensions:
        found.setdefault(one.name, one)
    return found


def dimensions_of(by: Sequence[str]) -> dict[str, Dimension]:
    """The dimensions of these names. Raises UsageError."""
    if not by:
        return {}
    known = dimensions()
    for name in by:
        if name not in known:
            raise UsageError(f"--by {name}", f"known: {', '.join(known)}; several with a comma between them")
    if len(set(by)) != len(by):
        raise UsageError(f"--by {','.join(by)}", "name different ones")
    return {name: known[name] for name in by}
