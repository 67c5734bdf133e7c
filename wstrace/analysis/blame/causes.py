"""Causes: the places of the program that faults came from, and their names by line, function and package.

A fault is named by its Python stack where it has one. Else its own line is that of its instruction where this is the
program's own code, or that of a sampled native stack, if its thread has any: an estimate where the sample is another
fault's. What is left is named by the function of its instruction.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.inputs import Inputs, mapping_rows, of_mapping
from wstrace.analysis.blame.stand_ins import leaves, own_mappings
from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.frames import Frame, native_frame
from wstrace.analysis.own import OwnRule, package_of
from wstrace.analysis.segments import distinct
from wstrace.analysis.stack_views import StackViews
from wstrace.analysis.symbols import Symbolizer
from wstrace.batch import Dictionary
from wstrace.places import Place
from wstrace.schema import FAULT_PC_KERNEL
from wstrace.signatures import without_arguments

CauseBy = Literal["line", "function", "package"]
_NATIVE = np.uint64(1 << 63)
_KERNEL = np.uint64(0xFFFFFFFF)
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
    """

    def __init__(self, inputs: Inputs, symbolizer: Symbolizer, strings: Dictionary) -> None:
        self._tree: CallTree = inputs.tree
        self._symbolizer, self._strings = symbolizer, strings
        self._mappings, self._faults = inputs.mappings, inputs.faults
        self._own = np.zeros(0, np.uint32)
        self._labels: dict[CauseBy, list[Cause]] = {}
        self._sampled: tuple[_Sampled, _Sampled] | None = None
        if "native_stack" not in inputs.faults:
            self._codes, (self.of,) = self._distinct(inputs.faults["stack"])
            return
        self._own = own_mappings(inputs, strings)
        both = leaves(inputs, strings, self._own)
        self._codes, codes = self._distinct(*(one.leaf for one in both))
        rows, self.of = distinct(*codes, *(one.estimated for one in both))
        line, function = (_Sampled(code[rows], one.estimated[rows], one.samples)
                          for code, one in zip(codes, both, strict=True))  # fmt: skip
        self._sampled = line, function

    def estimated(self, by: str) -> NDArray[np.bool_]:
        """Of each cause, whether its faults are told by the sample of another one."""
        found = self._of_view(by)
        return np.zeros(int(self.of.max(initial=-1)) + 1, np.bool_) if found is None else found.estimated

    def samples(self, by: str) -> NDArray[np.intp]:
        """The faults, in the order of the inputs, whose samples are told for others."""
        found = self._of_view(by)
        return np.zeros(0, np.intp) if found is None else found.samples

    def _of_view(self, by: str) -> _Sampled | None:
        return self._sampled and self._sampled[by != "line"]

    def _distinct(self, *leaves: NDArray[np.uint32]) -> tuple[NDArray[np.uint64], list[NDArray[np.int32]]]:
        """The distinct causes of faults as codes, ascending, and of each of several leaves those of all faults."""
        columns = [self._faults[name] for name in ("pc", "pc_mapping", "flags")]
        none, nobody = [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)]
        parts = [[np.unique(self._coded(*(column[begin : begin + _AT_ONCE] for column in (leaf, *columns))),
                            return_inverse=True) for begin in range(0, len(leaf), _AT_ONCE)]
                 for leaf in leaves]  # fmt: skip
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
            named, sampled = self._named(by), self._of_view(by)
            self._labels[by] = named if sampled is None else [named[code] for code in sampled.code.tolist()]
        return self._labels[by]

    def _named(self, by: CauseBy) -> list[Cause]:
        native = (self._codes & _NATIVE) != 0
        leaves = self._codes[~native].astype(np.intp)
        stacked = {"line": self._lines, "function": self._functions, "package": self._packages}[by](leaves)
        # codes of stacks are below those of instructions
        return [*stacked, *self._instructions(by)]

    # -- stacks ------------------------------------------------------------------------------------------------------

    def _lines(self, leaves: NDArray[np.intp]) -> list[Cause]:
        views = StackViews(self._tree, OwnRule(), self._symbolizer)
        found = []
        for label in views.labels("line", native=False)(leaves):
            if not label.frames:
                found.append(Cause(label.text, label.text, package=_package_in(label.text)))
                continue
            (frame,) = label.frames
            if frame.kind == "native":
                found.append(_of_native(frame))
            elif name := label.imported:
                whole = f"{frame.file}:{frame.line} import {name}"
                found.append(Cause(label.text, whole, frame.file, frame.line, frame.function, name))
            else:
                found.append(_of_frame(frame, label.text))
        return found

    def _functions(self, leaves: NDArray[np.intp]) -> list[Cause]:
        views = StackViews(self._tree, OwnRule(), self._symbolizer)
        return [
            _of_frame(frames[0], label)._replace(line=0, whole=label) if frames else Cause(label, label)
            for label, frames, _ in views.labels("function", native=False)(leaves)
        ]

    def _packages(self, leaves: NDArray[np.intp]) -> list[Cause]:
        views = StackViews(self._tree, OwnRule(), self._symbolizer)
        return [Cause(label, label, package=label) for label, _, _ in views.labels("package", native=False)(leaves)]

    # -- instructions ------------------------------------------------------------------------------------------------

    def _instructions(self, by: CauseBy) -> list[Cause]:
        found = [_of_place(place, by) if place is not None else _kernel(by) for place in self._places]
        mappings, offsets = self._instructions_at
        if by == "line" and len(own := np.flatnonzero(np.isin(mappings, self._own))):
            index, places = self._symbolizer.at_offsets(mappings[own], offsets[own], self._strings, lines=True)
            for number, at in zip(own.tolist(), index.tolist(), strict=True):
                if isinstance(place := places[at], Place):
                    found[number] = _of_native(native_frame(place, offset=int(offsets[number])))
        return found

    @property
    def _instructions_at(self) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """The mapping of each cause that is an instruction, _KERNEL for the kernel, and the offset in its file."""
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


class _Sampled(NamedTuple):
    """In a view: the code of each cause, whether it is estimated, and which faults have the samples."""

    code: NDArray[np.int32]
    estimated: NDArray[np.bool_]
    samples: NDArray[np.intp]


def _kernel(by: CauseBy) -> Cause:
    label = "[kernel]" + (NO_LINE if by == "line" else "")
    return Cause(label, label, function="[kernel]", package="[kernel]")


def _of_place(place: Place | str, by: CauseBy) -> Cause:
    module = place if isinstance(place, str) else place.module
    function = place.function if isinstance(place, Place) else ""
    if by == "package":
        return Cause(module, module, package=module)
    where = str(place) if isinstance(place, Place) and place.number else module
    mark = NO_LINE if by == "line" else ""
    label = f"{module}!{without_arguments(function)}" if function else where
    whole = f"{module}!{function}" if function else where
    return Cause(label + mark, whole + mark, function=function, package=module)


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
