"""Names the frames of stacks: function, source line, module and origin; for tables, JSON and SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.own import (
    JitFunction,
    Origin,
    OwnRule,
    SourceFile,
    is_own,
    jit_function,
    module_origin,
    shared_folder,
    short_path,
)
from wstrace.analysis.symbols import UNKNOWN, Symbolizer
from wstrace.analysis.tally import combinations, distinct, numbered
from wstrace.interfaces import Place, SourceLine
from wstrace.schema import (
    FRAME_CUT,
    FRAME_INTERPRETER,
    FRAME_JIT,
    FRAME_KINDS,
    FRAME_NATIVE,
    FRAME_NONE,
    FRAME_PYTHON,
    FRAME_UNCHECKED,
    HOW_EXACT,
    HOW_OWN,
    STACK_HOW,
)

#: the name of the frame that stands for those that a cut stack lacks
CUT = "[not kept]"
#: the number of frames that are cached
_CACHED = 1 << 16


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a stack.

    kind is one of FRAME_KINDS. function is a Python or JIT function, or the demangled symbol. file and line are those
    of its source, "" and 0 where they are not known; shown is the file as tables show it. module and offset are the
    place of native code. own is whether the code is the program's own, None where that is not known. flags are those of
    the call site. inlined: the compiler has inlined the function into the next frame, at the same call site.
    """

    kind: str
    function: str = ""
    file: str = ""
    line: int = 0
    module: str = ""
    offset: int = 0
    build_id: str = ""
    own: bool | None = None
    flags: int = 0
    shown: str = ""
    inlined: bool = False

    @property
    def name(self) -> str:
        """The function: `parse_record`, `libc.so.6!malloc`, or the place where no function is known."""
        if self.kind == "native":
            return f"{self.module}!{self.function}" if self.function else f"{self.module}+{self.offset:#x}"
        return self.function or self.module or (CUT if self.flags & FRAME_CUT else UNKNOWN)

    def __str__(self) -> str:
        """The function, and its source line where that is known: `parse_record leak.py:12`."""
        return f"{self.located}{f':{self.line}' if self.shown and self.line else ''}{self.doubt}"

    @property
    def located(self) -> str:
        """The function and its source file."""
        return f"{self.name} {self.shown}" if self.shown else self.name

    @property
    def doubt(self) -> str:
        """A mark behind the name of a frame that is not certain, else ""."""
        return " (not checked)" if self.flags & FRAME_UNCHECKED else ""

    def as_dict(self) -> dict[str, Any]:
        """The keys of a frame in JSON; those that are not known are absent."""
        found: dict[str, Any] = {"kind": self.kind} if self.kind else {}
        found |= {key: value for key in ("function", "file", "line", "module") if (value := getattr(self, key))}
        if self.inlined:
            found["inlined"] = True
        if self.kind == "native":
            found |= {"offset": f"{self.offset:#x}"} | ({"build_id": self.build_id} if self.build_id else {})
        return found | ({} if self.own is None else {"own": self.own})


#: stands for the frames that a cut stack lacks
_NOT_KEPT = Frame("", flags=FRAME_CUT)


def to_the_root(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames of a stack, innermost first; a cut one has one more, `[not kept]`, for those that it lacks."""
    cut = bool(frames) and frames[-1].flags & FRAME_CUT and frames[-1].name != CUT
    return (*frames, _NOT_KEPT) if cut else frames


def native_frame(place: Place, *, offset: int) -> Frame:
    """The frame of an instruction of the program's own code, at an offset in its file: that of its own line."""
    return _representative(native_frames(place, offset=offset))


def native_frames(place: Place, *, offset: int) -> tuple[Frame, ...]:
    """All frames of an instruction of native code, innermost first, at an offset in the file of its mapping."""
    rule = OwnRule()
    return tuple(
        Frame("native", one.function, one.file, one.line, place.module, offset,
              own=is_own(one.file, rule, one.function), shown=short_path(one.file), inlined=inlined)
        for one, inlined in _functions(place)
    )  # fmt: skip


def _functions(place: Place | str, function: str = "") -> Iterator[tuple[SourceLine, bool]]:
    """The functions that the compiler inlined at a place, innermost first, and at last the one that it is in.

    The symbol names that one, as a part of a function that stands elsewhere (`.cold`) has a neighbour's source line.
    """
    lines = place.lines if isinstance(place, Place) else ()
    yield from ((line, True) for line in lines[:-1])
    symbol = function or (place.function if isinstance(place, Place) else "")
    last = lines[-1] if lines else SourceLine("", "", 0)
    yield last._replace(function=symbol or last.function), False


def _representative(frames: Iterable[Frame]) -> Frame:
    """Of the functions of a call site the innermost own one; of none that is own, the one that it is in."""
    *inlined, last = frames
    return next((frame for frame in inlined if frame.own), last)


class Frames:
    """Names the frames of a tree. Native ones are resolved in bulk, so that each file is opened once.

    rule: decides which source files are the program's own. symbolizer: names native frames; None = they have the name
    `[unknown]`.
    """

    def __init__(self, tree: CallTree, rule: OwnRule, symbolizer: Symbolizer | None = None) -> None:
        self.tree, self._rule, self._symbolizer = tree, rule, symbolizer
        #: kind of a call site -> its column that says what it is, and by that the code's origin and package
        self._tables: dict[int, tuple[str, dict[int, tuple[Origin, str]]]] = {}
        self._of_jit: dict[int, JitFunction] = {}
        self._classified = 0  # the rows of the tree from which these were made
        self._frames: dict[int, tuple[Frame, ...]] = {}
        self._origins = np.zeros(0, np.uint8)  # by id, with the source lines of native code
        self._shared = ""  # the deepest folder that holds all own files

    def origins(self) -> NDArray[np.uint8]:
        """The Origin of each call site's code, by id; NONE where that is not known."""
        self._classify()
        tree = self.tree
        kinds, found = tree.column("kind"), np.zeros(len(tree.column("kind")), np.uint8)
        for kind, (column, known) in self._tables.items():
            rows = np.flatnonzero(kinds == kind)
            values, which = numbered(tree.column(column)[rows])
            origins = [known.get(value, (Origin.NONE, ""))[0] for value in values.tolist()]
            found[rows] = np.array(origins, np.uint8)[which]
        return found

    def line_origins(self) -> NDArray[np.uint8]:
        """As origins(), but code of the program's own module is GENERATED where all its source lines are a library's.

        That is a template of a header, or a function of one, which the compiler has put into the module.
        """
        found = self.origins()
        if len(self._origins) != len(found):
            tree = self.tree
            rows = np.flatnonzero((tree.column("kind") == FRAME_NATIVE) & (found >= Origin.PROGRAM))
            if self._symbolizer is not None and len(rows):
                mappings, offsets = tree.column("mapping")[rows], tree.column("offset")[rows]
                index, places = self._symbolizer.at_offsets(mappings, offsets, tree.strings, lines=True)
                library = [isinstance(place, Place)
                           and not any(is_own(one.file, self._rule, one.function) for one, _ in _functions(place))
                           for place in places]  # fmt: skip
                found[rows[np.array(library, np.bool_)[index]]] = Origin.GENERATED
            self._origins = found
        return self._origins

    def package(self, node: int) -> str:
        """The package that a call site's code belongs to; "" = none."""
        self._classify()
        column, known = self._tables.get(int(self.tree.column("kind")[node]), ("file", {}))
        return known.get(int(self.tree.column(column)[node]), (Origin.NONE, ""))[1]

    def _classify(self) -> None:
        """Classifies all files, anew when there are new call sites: OwnRule decides by all code of a file that ran."""
        tree = self.tree
        if len(tree) == self._classified:
            return
        self._classified, ids = len(tree), tree.ids()
        python = ids[tree.column("kind")[ids] == FRAME_PYTHON]
        files, functions = tree.column("file")[python], tree.column("function")[python]
        names, which = numbered(functions)
        modules = np.array([tree.text(code) == "<module>" for code in names.tolist()], np.bool_)
        not_only_module = set(files[~modules[which]].tolist())
        outermost = set(files[modules[which] & (tree.column("parent")[python] == 0)].tolist())
        codes = distinct(files).tolist()
        seen = (SourceFile(tree.text(code), code not in not_only_module, code in outermost) for code in codes)
        of_file = dict(zip(codes, self._rule.origins(seen), strict=True))
        kinds = tree.column("kind")[ids]
        functions = distinct(tree.column("function")[ids[kinds == FRAME_JIT]])
        self._of_jit = {code: jit_function(tree.text(code), self._rule) for code in functions.tolist()}
        native = distinct(tree.column("mapping")[ids[kinds == FRAME_NATIVE]])
        self._tables = {
            FRAME_PYTHON: ("file", of_file),
            FRAME_JIT: ("function", {code: (jit.origin, jit.package) for code, jit in self._of_jit.items()}),
            FRAME_NATIVE: ("mapping", self._modules(native)),
        }
        own = [tree.text(code) for code, (origin, package) in of_file.items() if origin == Origin.OWN and not package]
        own += [jit.file for jit in self._of_jit.values() if jit.file and jit.origin == Origin.OWN]
        self._shared = shared_folder(own)
        self._frames.clear()
        self._origins = np.zeros(0, np.uint8)

    def _modules(self, mappings: NDArray[Any]) -> dict[int, tuple[Origin, str]]:
        """mapping -> the origin of its file, and the package."""
        if self._symbolizer is None or not len(mappings):
            return {}
        known, rows = self._symbolizer.mappings.find(mappings)
        paths = map(self.tree.text, rows["file"].tolist())
        return {
            mapping: module_origin(path, self._rule)
            for mapping, path in zip(mappings[known].tolist(), paths, strict=True)
        }

    def all(self, ids: Sequence[int]) -> list[Frame]:
        """All frames of these ids: functions that the compiler has inlined have frames of their own."""
        self._classify()  # It clears the cache when there are new call sites.
        new = [i for i in dict.fromkeys(ids) if i not in self._frames]
        if new:
            if len(self._frames) + len(new) > _CACHED:
                self._frames.clear()
                new = list(dict.fromkeys(ids))
            found, which = self.named(np.array(new, np.intp))
            self._frames.update(zip(new, (found[at] for at in which.tolist()), strict=True))
        return [frame for i in ids for frame in self._frames[i]]

    def stack(self, leaf: int) -> list[Frame]:
        """The frames of a stack, innermost first."""
        return self.all(self.tree.stack(leaf))

    def interleaved(self, python: int, native: int) -> list[Frame]:
        """The frames of a fault with a Python and a native stack, innermost first.

        Each Python frame takes the place of the interpreter's native frame that runs it. From Python 3.11 on one such
        frame may run several Python ones. Where their numbers differ, all Python frames stand at the place of the
        innermost of the interpreter's frames, and the native frames between the interpreter's are left out.
        """
        inner, outer = self.tree.stack(python), self.tree.stack(native)
        flags = self.tree.column("flags")
        loops = [at for at, i in enumerate(outer) if flags[i] & FRAME_INTERPRETER]
        if not inner or not loops:
            return self.all([*outer, *inner])
        if len(loops) == len(inner):
            place = dict(zip(loops, inner, strict=True))
            return self.all([place.get(at, i) for at, i in enumerate(outer)])
        return self.all([*outer[: loops[0]], *inner, *outer[loops[-1] + 1 :]])

    def of_lines(self, ids: NDArray[np.intp]) -> tuple[list[Frame], NDArray[np.int32]]:
        """As named(), of each call site the one frame of its own line, if there is one."""
        found, which = self.named(ids)
        return [_representative(frames) for frames in found], which

    def named(self, ids: NDArray[np.intp]) -> tuple[list[tuple[Frame, ...]], NDArray[np.int32]]:
        """The frames of call sites that differ in more than their callers; and which of them each of these ids has."""
        tree = self.tree
        columns = [
            tree.column(name)[ids] for name in ("kind", "function", "file", "line", "mapping", "offset", "flags")
        ]
        rows, which = combinations(*columns)
        columns = [column[rows] for column in columns]
        origins = self.origins()[ids[rows]].tolist()
        places = self._places(columns[0], columns[4], columns[5])
        found: list[tuple[Frame, ...]] = []
        for number, values in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            kind, function, file, line, _, offset, flags = values
            place, build_id = places.get(number, ("", ""))
            module = place if isinstance(place, str) else place.module
            jit = self._of_jit.get(function) if kind == FRAME_JIT else None
            given = tree.text(function), tree.text(file), line
            if jit is not None and jit.file:
                given = jit.function, jit.file, line
            own = origins[number] >= Origin.PROGRAM if kind == FRAME_PYTHON or origins[number] else None
            found.append(
                tuple(
                    Frame(
                        kind=FRAME_KINDS[kind] if kind < len(FRAME_KINDS) else FRAME_KINDS[FRAME_NONE],
                        function=one.function,
                        file=given[1] or one.file,
                        line=given[2] or one.line,
                        inlined=inlined,
                        module=module,
                        offset=offset,
                        build_id=build_id,
                        own=own and is_own(one.file, self._rule, one.function) if kind == FRAME_NATIVE else own,
                        flags=flags,
                        shown=short_path(given[1] or one.file, self._shared),
                    )
                    for one, inlined in _functions(place, given[0])
                )
            )
        return found, which

    def _places(
        self, kinds: NDArray[Any], mappings: NDArray[Any], offsets: NDArray[Any]
    ) -> dict[int, tuple[Place | str, str]]:
        """row -> (place, build-id), for the rows of native code."""
        native = np.flatnonzero(kinds == FRAME_NATIVE)
        if self._symbolizer is None or not len(native):
            return dict.fromkeys(native.tolist(), (UNKNOWN, ""))
        strings = self.tree.strings
        index, places = self._symbolizer.at_offsets(mappings[native], offsets[native], strings, lines=True)
        known, rows = self._symbolizer.mappings.find(mappings[native])
        codes = np.zeros(len(native), np.intp)
        codes[known] = rows["build_id"]
        build_ids = [self.tree.text(code) for code in codes.tolist()]
        return {
            number: (places[at], build_id)
            for number, at, build_id in zip(native.tolist(), index.tolist(), build_ids, strict=True)
        }


def reason(how: int) -> str:
    """Why a fault has no stack, as tables show it: `(no Python frame)`."""
    return f"({stack_reason(how)})"


def stack_reason(how: int) -> str:
    """Why a fault has no stack, by the value of its column `stack_how` or `native_how`."""
    if how in (HOW_EXACT, HOW_OWN):
        return "the frames of its stack are not in the trace"
    return (STACK_HOW[how] if how < len(STACK_HOW) else "") or "no stack, for an unknown reason"
