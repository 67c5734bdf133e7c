"""Causes: the places of the program that faults came from, and their names by line, function and package.

A fault is named by its Python stack where it has one, else by the function of its instruction.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.inputs import Inputs, mapping_rows, of_mapping
from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.frames import Frame
from wstrace.analysis.own import OwnRule, package_of
from wstrace.analysis.stack_views import StackViews
from wstrace.analysis.symbols import Symbolizer
from wstrace.batch import Dictionary
from wstrace.places import Place
from wstrace.schema import FAULT_PC_KERNEL

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
        self._mappings = inputs.mappings
        columns = [inputs.faults[name] for name in ("stack", "pc", "pc_mapping", "flags")]
        parts = [np.unique(self._coded(*(column[begin : begin + _AT_ONCE] for column in columns)), return_inverse=True)
                 for begin in range(0, len(columns[0]), _AT_ONCE)]  # fmt: skip
        none = [np.zeros(0, np.uint64)]
        self._codes = np.unique(np.concatenate([codes for codes, _ in parts] + none))
        self.of = np.concatenate([self._codes.searchsorted(codes).astype(np.int32)[at] for codes, at in parts]
                                 + [np.zeros(0, np.int32)])  # fmt: skip
        self._labels: dict[CauseBy, list[Cause]] = {}

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
            self._labels[by] = self._named(by)
        return self._labels[by]

    def _named(self, by: CauseBy) -> list[Cause]:
        native = (self._codes & _NATIVE) != 0
        leaves = self._codes[~native].astype(np.intp)
        stacked = {"line": self._lines, "function": self._functions, "package": self._packages}[by](leaves)
        # codes of stacks are below those of instructions
        return [*stacked, *self._instructions(by)]

    # -- Python stacks -----------------------------------------------------------------------------------------------

    def _lines(self, leaves: NDArray[np.intp]) -> list[Cause]:
        views = StackViews(self._tree, OwnRule(), self._symbolizer)
        found = []
        for label in views.labels("line", native=False)(leaves):
            if not label.frames:
                found.append(Cause(label.text, label.text, package=_package_in(label.text)))
                continue
            (frame,) = label.frames
            if name := label.imported:
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
        return [_of_place(place, by) if place is not None else _kernel(by) for place in self._places]

    @cached_property
    def _places(self) -> list[Place | str | None]:
        """The place of each cause that is an instruction; None = of the kernel."""
        codes = self._codes[(self._codes & _NATIVE) != 0]
        mappings = (codes >> _OFFSET & _KERNEL).astype(np.uint32)
        offsets = codes & ((np.uint64(1) << _OFFSET) - np.uint64(1))
        kernel = mappings == np.uint32(_KERNEL)
        index, places = self._symbolizer.at_offsets(np.where(kernel, 0, mappings), offsets, self._strings)
        return [None if in_kernel else places[at]
                for at, in_kernel in zip(index.tolist(), kernel.tolist(), strict=True)]  # fmt: skip


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


def without_arguments(function: str) -> str:
    """A C++ function without the types of its arguments and templates: `v8::internal::Factory::NewArray`."""
    if "(" not in function or function.startswith(("(", "operator")) or "operator" in function:
        return function
    kept, depth = [], 0
    for letter in function.replace("(anonymous namespace)", "{anonymous}"):
        if letter == "(" and not depth:
            break
        depth += (letter == "<") - (letter == ">")
        if not depth and letter != ">":
            kept.append(letter)
    return "".join(kept) if depth == 0 and kept else function


def _of_frame(frame: Frame, label: str) -> Cause:
    where = f"{frame.file}:{frame.line}" if frame.line else frame.file
    whole = f"{where} {frame.name}{frame.doubt}" if where else label
    return Cause(label, whole, frame.file, frame.line, frame.function, package_of(frame.file))


def _package_in(label: str) -> str:
    return label.removeprefix("(package ").partition(",")[0].rstrip(")") if label.startswith("(package ") else ""
