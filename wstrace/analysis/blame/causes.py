"""Causes: the places of the program that faults came from, and their names by line, function and package.

A fault is named by its Python stack where it has one. Else its own line is that of its instruction where this is the
program's own code, or that of the next sampled native stack of its thread: an estimate where the sample is another
fault's. What is left is named by the function of its instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.inputs import Inputs, mapping_rows, of_mapping
from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.frames import Frame, native_frame, native_frames, to_the_root
from wstrace.analysis.own import Origin, OwnRule, package_of
from wstrace.analysis.own_native import module_origin
from wstrace.analysis.segments import begins, distinct
from wstrace.analysis.stack_views import Label, StackViews, whole
from wstrace.analysis.symbols import UNKNOWN, Symbolizer
from wstrace.batch import Dictionary
from wstrace.places import Place
from wstrace.schema import FAULT_PC_KERNEL
from wstrace.signatures import without_arguments

CauseBy = Literal["line", "function", "package", "stack", "thread"]
#: What faults are told by, in the order of _leaves(); packages are those of functions.
_TOLD_BY = {"line": 0, "function": 1, "package": 1, "stack": 2}
_NATIVE = np.uint64(1 << 63)
_KERNEL = np.uint64(0xFFFFFFFF)  # in place of a mapping
_OFFSET = np.uint64(31)
#: Faults whose causes are distinguished at once, so that what that needs stays small beside the faults.
_AT_ONCE = 1 << 17
#: follows the function of an instruction in tables by line
NO_LINE = " (no line)"


class Cause(NamedTuple):
    """What names a row: its label as tables show it, its whole label, and what is known of it; "" and 0 = not."""

    label: str
    whole: str
    file: str = ""
    line: int = 0
    function: str = ""
    package: str = ""


class Causes:
    """The distinct places of the program that faults came from.

    Attributes:
        of: of each fault the number of its cause, in the order of the inputs.
        frames: the whole label of a stack -> its frames, as to_the_root() gives them; filled by labels("stack").
    """

    def __init__(
        self,
        inputs: Inputs,
        symbolizer: Symbolizer,
        strings: Dictionary,
        *,
        whole_stacks: bool = False,
    ) -> None:
        self._tree: CallTree = inputs.tree
        self._symbolizer, self._strings = symbolizer, strings
        self._mappings, self._faults = inputs.mappings, inputs.faults
        self._own = np.zeros(0, np.uint32)
        self._labels: dict[CauseBy, list[Cause]] = {}
        self._numbered: dict[CauseBy, tuple[NDArray[np.intp], list[Cause]]] = {}
        self._told: list[_Told] = []
        self._names, self._threads = inputs.threads, list[tuple[int, int]]()
        self.frames: dict[str, tuple[Frame, ...]] = {}
        faults = inputs.faults
        sampled = "native_stack" in faults and bool(faults["native_stack"].any())
        told = [(faults["stack"], np.zeros(0, np.intp), np.zeros(0, np.bool_))]
        if sampled:
            self._own = own_mappings(inputs, strings)
            told = _leaves(inputs, strings, self._own, whole_stacks=whole_stacks)
        self._codes, codes = self._distinct(*(leaf for leaf, _, _ in told))
        threads = [faults["space"], faults["tid"]] if whole_stacks else []
        if not sampled and not whole_stacks:
            self.of = codes[0]
            return
        rows, self.of = distinct(*codes, *(estimated for _, _, estimated in told if sampled), *threads)
        for code, (_, samples, estimated) in zip(codes, told, strict=True):
            self._told.append(_Told(code[rows], estimated[rows] if sampled else np.zeros(len(rows), np.bool_), samples))
        if not sampled:
            self._told *= len(_TOLD_BY)
        if whole_stacks:
            self._threads = list(zip(faults["space"][rows].tolist(), faults["tid"][rows].tolist(), strict=True))

    def estimated(self, by: str) -> NDArray[np.bool_]:
        """Of each cause, whether its faults are told by the sample of another one."""
        found = self._of_view(by)
        return np.zeros(int(self.of.max(initial=-1)) + 1, np.bool_) if found is None else found.estimated

    def samples(self, by: str) -> NDArray[np.intp]:
        """The faults, in the order of the inputs, whose samples are told for others."""
        found = self._of_view(by)
        return np.zeros(0, np.intp) if found is None else found.samples

    def _of_view(self, by: str) -> _Told | None:
        return self._told[_TOLD_BY[by]] if self._told and by in _TOLD_BY else None

    def _distinct(self, *leaves: NDArray[np.uint32]) -> tuple[NDArray[np.uint64], list[NDArray[np.int32]]]:
        """The distinct causes of faults as codes, ascending, and by each of several leaves those of all faults."""
        columns = [self._faults[name] for name in ("pc", "pc_mapping", "flags")]
        none, nobody = [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)]
        parts: list[list[tuple[NDArray[np.uint64], NDArray[np.int32]]]] = []
        for leaf in leaves:
            parts.append([])
            for begin in range(0, len(leaf), _AT_ONCE):
                code = self._coded(*(column[begin : begin + _AT_ONCE] for column in (leaf, *columns)))
                rows, which = distinct(code)
                parts[-1].append((code[rows], which))
        codes = np.unique(np.concatenate([some for one in parts for some, _ in one] + none))
        places = [np.concatenate([codes.searchsorted(some).astype(np.int32)[at] for some, at in one] + nobody)
                  for one in parts]  # fmt: skip
        return codes, places

    def _coded(
        self, stack: NDArray[Any], pc: NDArray[Any], pc_mapping: NDArray[Any], flags: NDArray[Any]
    ) -> NDArray[np.uint64]:
        """Of each fault the leaf of its stack, else the place of its instruction, as one number."""
        code = self._tree.known(stack).astype(np.uint64)
        native = np.flatnonzero(code == 0)
        known, row = mapping_rows(self._mappings, pc_mapping[native])
        base, file_offset = (of_mapping(self._mappings, name, row) for name in ("start", "offset"))
        offset = (pc[native] - base + file_offset) & ((np.uint64(1) << _OFFSET) - np.uint64(1))
        mapping = np.where(known, pc_mapping[native], 0).astype(np.uint64)
        kernel = (flags[native] & FAULT_PC_KERNEL) != 0
        mapping[kernel], offset[kernel | (mapping == 0)] = _KERNEL, 0
        code[native] = _NATIVE | mapping << _OFFSET | offset
        return code

    def labels(self, by: CauseBy) -> list[Cause]:
        """The name of each cause."""
        if by not in self._labels:
            named, told = self._named(by), self._of_view(by)
            self._labels[by] = named if told is None else [named[code] for code in told.code.tolist()]
        return self._labels[by]

    def numbered(self, by: CauseBy) -> tuple[NDArray[np.intp], list[Cause]]:
        """Of each cause the number of its name, and the causes of these names: the first of those with the same one."""
        if by not in self._numbered:
            causes = self.labels(by)
            number: dict[str, int] = {}
            of = np.array([number.setdefault(cause.whole, len(number)) for cause in causes], np.intp)
            first = np.zeros(len(number), np.intp)
            first[of[::-1]] = np.arange(len(of))[::-1]  # of an index that is repeated, the last value stays
            self._numbered[by] = of, [causes[at] for at in first.tolist()]
        return self._numbered[by]

    def _named(self, by: CauseBy) -> list[Cause]:
        """The name of each code, and of a thread that of each cause."""
        if by == "thread":
            named = {whose: self._thread(*whose) for whose in set(self._threads)}
            return [named[whose] for whose in self._threads]
        native = (self._codes & _NATIVE) != 0
        leaves = self._codes[~native].astype(np.intp)
        stacked = {"line": self._lines, "function": self._functions, "package": self._packages, "stack": self._stacks}[
            by
        ](leaves)
        # codes of stacks are below those of instructions
        return [*stacked, *self._instructions(by)]

    # -- stacks ------------------------------------------------------------------------------------------------------

    @cached_property
    def views(self) -> StackViews:
        """Labels the stacks of the trace."""
        return StackViews(self._tree, OwnRule(), self._symbolizer)

    def _lines(self, leaves: NDArray[np.intp]) -> list[Cause]:
        labels = self.views.labels("line")(leaves)
        cause = {number: _of_label(label) for number, label in {id(label): label for label in labels}.items()}
        return [cause[id(label)] for label in labels]

    def _functions(self, leaves: NDArray[np.intp]) -> list[Cause]:
        return [
            _of_frame(frames[0], label)._replace(line=0, whole=label) if frames else Cause(label, label)
            for label, frames, _ in self.views.labels("function")(leaves)
        ]

    def _packages(self, leaves: NDArray[np.intp]) -> list[Cause]:
        return [Cause(label, label, package=label) for label, _, _ in self.views.labels("package")(leaves)]

    def _stacks(self, leaves: NDArray[np.intp]) -> list[Cause]:
        found = self.views.labels("stack")(leaves)
        self.frames |= {label.text: to_the_root(label.frames) for label in reversed(found)}
        return [Cause(label.text, label.text) for label in found]

    def _thread(self, space: int, tid: int) -> Cause:
        code = self._names[space, tid]
        label = f"{(self._strings[code] if code < len(self._strings) else '') or UNKNOWN} ({tid})"
        return Cause(label, label)

    # -- instructions ------------------------------------------------------------------------------------------------

    def _instructions(self, by: CauseBy) -> list[Cause]:
        mappings, offsets = self._instructions_at
        if by == "stack":
            return self._innermost(mappings, offsets)
        packages = self._packages_of(mappings)
        found = [_kernel(by) if place is None else _of_place(place, by, package)
                 for place, package in zip(self._places, packages, strict=True)]  # fmt: skip
        if by == "line" and len(own := np.flatnonzero(np.isin(mappings, self._own))):
            index, places = self._symbolizer.at_offsets(mappings[own], offsets[own], self._strings, lines=True)
            for number, at in zip(own.tolist(), index.tolist(), strict=True):
                if isinstance(place := places[at], Place):
                    found[number] = _of_native(native_frame(place, offset=int(offsets[number])))
        return found

    def _packages_of(self, mappings: NDArray[np.uint32]) -> list[str]:
        """The package that the file of each mapping belongs to; "" = none, or not known."""
        known, rows = mapping_rows(self._mappings, mappings)
        codes = np.where(known, of_mapping(self._mappings, "file", rows), 0).tolist()
        names = {code: package_of(self._strings[code]) if code < len(self._strings) else "" for code in set(codes)}
        return [names[code] for code in codes]

    def _innermost(self, mappings: NDArray[np.uint32], offsets: NDArray[np.uint64]) -> list[Cause]:
        """Of each instruction the frames that are there, as the stack of a fault that has no other."""
        kernel = mappings == np.uint32(_KERNEL)
        ids = np.where(kernel, 0, mappings)
        index, places = self._symbolizer.at_offsets(ids, offsets, self._strings, lines=True)
        known, rows = mapping_rows(self._mappings, ids)
        builds = np.where(known, of_mapping(self._mappings, "build_id", rows), 0)
        found = []
        for at, mapping, offset, build, in_kernel in zip(
            index.tolist(), ids.tolist(), offsets.tolist(), builds.tolist(), kernel.tolist(), strict=True
        ):
            place = places[at]
            if in_kernel:
                frames: tuple[Frame, ...] = (Frame("kernel", module="[kernel]"),)
            elif isinstance(place, Place):
                frames = native_frames(place, offset=offset, mapping=mapping, build_id=self._strings[build])
            else:
                frames = (Frame("", module=place),)
            label = whole(frames)
            self.frames.setdefault(label, frames)
            found.append(Cause(label, label))
        return found

    @property
    def _instructions_at(self) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """The mapping of each cause without a stack, or _KERNEL, and the instruction's offset in its file."""
        codes = self._codes[(self._codes & _NATIVE) != 0]
        mappings = (codes >> _OFFSET & _KERNEL).astype(np.uint32)
        return mappings, codes & ((np.uint64(1) << _OFFSET) - np.uint64(1))

    @cached_property
    def _places(self) -> list[Place | str | None]:
        """The place of each cause that is an instruction; None = of the kernel."""
        mappings, offsets = self._instructions_at
        kernel = mappings == np.uint32(_KERNEL)
        index, places = self._symbolizer.at_offsets(np.where(kernel, 0, mappings), offsets, self._strings)
        return [None if in_kernel else places[at]
                for at, in_kernel in zip(index.tolist(), kernel.tolist(), strict=True)]  # fmt: skip


def own_mappings(inputs: Inputs, strings: Dictionary) -> NDArray[np.uint32]:
    """The mappings of the program's own code."""
    rule, mappings = OwnRule(), inputs.mappings
    files, which = np.unique(mappings["file"], return_inverse=True)
    own = np.array([module_origin(_text(strings, code), rule)[0] == Origin.OWN for code in files.tolist()], np.bool_)
    found: NDArray[np.uint32] = mappings["id"][own[which]] if len(files) else mappings["id"]
    return found


def _leaves(
    inputs: Inputs, strings: Dictionary, own: NDArray[np.uint32], *, whole_stacks: bool
) -> list[tuple[NDArray[np.uint32], NDArray[np.intp], NDArray[np.bool_]]]:
    """By what stack each fault is told in tables by line, in those by function or package, and as a whole stack.

    A fault with a Python stack is told by that. By line, one needs a native stack unless its instruction is the
    program's own; by function, only in the code of a JIT compiler, which lies in no file.

    Returns:
        Of each table the innermost call site of each fault, the samples that stand for others, and which faults have
        another one's.
    """
    faults, mappings = inputs.faults, inputs.mappings
    known, row = mapping_rows(mappings, faults["pc_mapping"])
    codes = of_mapping(mappings, "file", row)
    files = [code for code in np.unique(codes).tolist() if _text(strings, code).startswith("/")]
    in_file = known & np.isin(codes, files) | ((faults["flags"] & FAULT_PC_KERNEL) != 0)
    without = inputs.tree.known(faults["stack"]) == 0
    found = []
    for needs in (~np.isin(faults["pc_mapping"], own), ~in_file, *[np.ones(len(in_file), np.bool_)] * whole_stacks):
        rows, sample = _next_samples(faults, without & needs)
        leaf, estimated = faults["stack"].copy(), np.zeros(len(without), np.bool_)
        leaf[rows], estimated[rows] = faults["native_stack"][sample], rows != sample
        found.append((leaf, np.unique(sample[rows != sample]), estimated))
    return found


def _next_samples(
    faults: Mapping[str, NDArray[Any]], asked: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Those of the faults asked for that a sample stands for, and the sample: the next one of the thread, or itself."""
    rows = np.flatnonzero(asked)
    rows = rows[np.lexsort((faults["time_ns"][rows], faults["tid"][rows], faults["space"][rows]))]
    thread = np.cumsum(begins(faults["space"][rows], faults["tid"][rows])) if len(rows) else rows
    sampled = np.flatnonzero(faults["native_stack"][rows])
    at = sampled.searchsorted(np.arange(len(rows)))
    there = np.flatnonzero(at < len(sampled))
    there = there[thread[sampled[at[there]]] == thread[there]]
    return rows[there], rows[sampled[at[there]]]


def _text(strings: Dictionary, code: int) -> str:
    return strings[code] if code < len(strings) else ""


class _Told(NamedTuple):
    """In a view: the code of each cause, whether it is estimated, and which faults have the samples."""

    code: NDArray[np.int32]
    estimated: NDArray[np.bool_]
    samples: NDArray[np.intp]


def _of_label(label: Label) -> Cause:
    """The own line that a stack is attributed to."""
    if not label.frames:
        return Cause(label.text, label.text, package=_package_in(label.text))
    (frame,) = label.frames
    if frame.kind == "native":
        return _of_native(frame)
    if name := label.imported:
        whole = f"{frame.file}:{frame.line} import {name}"
        return Cause(label.text, whole, frame.file, frame.line, frame.function, name)
    return _of_frame(frame, label.text)


def _kernel(by: CauseBy) -> Cause:
    label = "[kernel]" + (NO_LINE if by == "line" else "")
    return Cause(label, label, function="[kernel]", package="[kernel]")


def _of_place(place: Place | str, by: CauseBy, package: str = "") -> Cause:
    module = place if isinstance(place, str) else place.module
    function = place.function if isinstance(place, Place) else ""
    if by == "package":
        return Cause(package or module, package or module, package=package or module)
    where = str(place) if isinstance(place, Place) and place.number else module
    mark = NO_LINE if by == "line" else ""
    label = f"{module}!{without_arguments(function)}" if function else where
    whole = f"{module}!{function}" if function else where
    return Cause(label + mark, whole + mark, function=function, package=package or module)


def _of_native(frame: Frame) -> Cause:
    """The own line of a program that is not Python: without its module, where its source file is known."""
    if not (frame.own and frame.shown and frame.line):
        label, whole = frame.module, frame.module  # of a stripped file an offset would be a row for each instruction
        if frame.function:
            label, whole = f"{label}!{without_arguments(frame.function)}", frame.name
        return Cause(label + NO_LINE, whole + NO_LINE, function=frame.function, package=frame.module)
    label = f"{without_arguments(frame.function) or frame.module} {frame.shown}:{frame.line}{frame.doubt}"
    return _of_frame(frame, label)._replace(package=frame.module)


def _of_frame(frame: Frame, label: str) -> Cause:
    where = f"{frame.file}:{frame.line}" if frame.line else frame.file
    whole = f"{where} {frame.name}{frame.doubt}" if where else label
    return Cause(label, whole, frame.file, frame.line, frame.function, package_of(frame.file))


def _package_in(label: str) -> str:
    return label.removeprefix("(package ").partition(",")[0].rstrip(")") if label.startswith("(package ") else ""
