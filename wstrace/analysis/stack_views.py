"""The labels by which tables group stacks: own line, innermost function, whole stack, package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.frames import Frame, Frames
from wstrace.analysis.imports import imported
from wstrace.analysis.own import Origin, OwnRule
from wstrace.analysis.stack_text import whole
from wstrace.analysis.symbols import Symbolizer
from wstrace.schema import FRAME_CUT

StackBy = Literal["line", "function", "stack", "package"]
STACK_VIEWS: tuple[str, ...] = get_args(StackBy)
LIBRARY = "(standard library)"


class Label(NamedTuple):
    """What a table shows for a stack.

    Attributes:
        frames: those that the text names, innermost first.
        imported: the package or module that the frame was importing; "" = none.
    """

    text: str
    frames: tuple[Frame, ...] = ()
    imported: str = ""


class StackViews:
    """Labels the stacks of a tree.

    Args:
        tree: the call sites.
        rule: decides which source files are the program's own.
        symbolizer: names native frames.
    """

    def __init__(self, tree: CallTree, rule: OwnRule, symbolizer: Symbolizer | None) -> None:
        self._tree = tree
        self._frames = Frames(tree, rule, symbolizer)

    def labels(self, by: StackBy, *, native: bool) -> Callable[[NDArray[np.intp]], list[Label]]:
        """A function that labels stacks, whose innermost call sites it takes. native: they are native stacks."""
        if by == "stack":
            return self._stacks
        if by == "function":
            return self._innermost
        return self._lines if by == "line" else self._modules if native else self._packages

    def attributed(self, leaves: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
        """The frame that each stack is attributed to, its innermost one of the highest Origin, and that Origin."""
        origins = self._frames.line_origins()
        chosen, whose = leaves.copy(), np.zeros(len(leaves), np.uint8)
        open_ = np.arange(len(leaves))
        for origin in sorted(Origin, reverse=True)[:-1]:
            at = self._tree.first_above(leaves[open_], origins == origin)
            chosen[open_[at != 0]], whose[open_[at != 0]] = at[at != 0], origin
            open_ = open_[at == 0]
        return chosen, whose

    def _lines(self, leaves: NDArray[np.intp]) -> list[Label]:
        nodes, whose = self.attributed(leaves)
        # The own line may be among the frames that are missing.
        cut = self._tree.first_above(leaves, self._tree.column("flags") & FRAME_CUT != 0) != 0
        found: list[Label] = []
        imports = imported(self._tree, leaves, nodes)
        for node, frame, origin, is_cut, name in zip(
            nodes.tolist(), self._frames.of(nodes.tolist()), whose.tolist(), cut.tolist(), imports, strict=True
        ):
            if origin in (Origin.PACKAGE, Origin.LIBRARY):
                whose_ = f"(package {self._frames.package(node)})" if origin == Origin.PACKAGE else LIBRARY
                found.append(Label(f"{whose_[:-1]}, stack cut)" if is_cut else whose_))
            elif name and frame.file:
                found.append(Label(f"import {name} {frame.shown or frame.file}:{frame.line}", (frame,), name))
            else:
                found.append(Label(str(frame), (frame,)))
        return found

    def _packages(self, leaves: NDArray[np.intp]) -> list[Label]:
        origins = self._frames.origins()
        nodes = self._tree.first_above(leaves, origins >= Origin.PACKAGE)
        library = self._tree.first_above(leaves, origins == Origin.LIBRARY) != 0
        found: list[Label] = []
        for node, is_library in zip(nodes.tolist(), library.tolist(), strict=True):
            if node:
                label = "(own code)" if origins[node] > Origin.PACKAGE else self._frames.package(node)
            else:
                label = LIBRARY if is_library else "(no package)"
            found.append(Label(label))
        return found

    def _innermost(self, leaves: NDArray[np.intp]) -> list[Label]:
        return [Label(frame.located + frame.doubt, (frame,)) for frame in self._frames.functions(leaves.tolist())]

    def _modules(self, leaves: NDArray[np.intp]) -> list[Label]:
        frames = self._frames.of(leaves.tolist())
        return [Label(frame.module or frame.file or f"({frame.kind or 'not kept'})") for frame in frames]

    def _stacks(self, leaves: NDArray[np.intp]) -> list[Label]:
        found = []
        for leaf in leaves.tolist():
            frames = tuple(self._frames.stack(leaf))
            found.append(Label(whole(frames), frames))
        return found

    def around(self, leaves: NDArray[np.intp], function: str, *, callers: bool) -> list[Label]:
        """For each stack the caller of a function, or what it called, at its innermost call; "" = it is not there."""
        found: list[Label] = []
        for leaf in leaves.tolist():
            frames = self._frames.stack(leaf)
            at = next(
                (at for at, frame in enumerate(frames) if function in (frame.name, frame.function, str(frame))), -1
            )
            if at < 0:
                found.append(Label(""))
            elif callers:
                above = frames[at + 1 : at + 2]
                found.append(Label(str(above[0]) if above else "(nobody: it is the outermost frame)", tuple(above)))
            else:
                below = frames[at - 1 : at] if at else []
                found.append(Label(str(below[0]) if below else "(itself)", tuple(below)))
        return found
