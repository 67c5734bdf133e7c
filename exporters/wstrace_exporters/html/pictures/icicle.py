"""The icicle: who brought what, as a tree: process, thread, and the frames of the stack from the outermost one on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.compare import Comparison
from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import Label
from wstrace.analysis.frames import Frame, to_the_root
from wstrace.analysis.stack_views import IMPORT_SYSTEM
from wstrace.text import number, printable
from wstrace_exporters.html.document import varints

#: A node with less than this share of every weight is not drawn, and more of them where the page would grow too large.
SHARE = 0.001
#: The bytes that nodes, and what arrived at them when, may take in the page.
ROOM = 400_000
#: The paths that are shown one by one, and the longest name of a frame, in characters.
PATHS, NAME_LIMIT = 20_000, 120
OTHERS = "(others)"
_BY, _WEIGHTS = ("process", "thread", "stack"), ("resident", "brought", "from_disk")

#: A name and the line behind it, 0 = none.
Step = tuple[str, int]


def icicle(of: Composition) -> dict[str, Any] | None:
    """The tree for the page, by resident and brought bytes and by reads from disk; None = there are no faults."""
    if not len(of.history.faults):
        return None
    numbers, sums = of.columns(*_BY)
    weights = np.stack([sums.get(name, np.zeros(len(numbers))) for name in _WEIGHTS], axis=1)
    order = np.argsort(-(weights / np.maximum(weights.sum(axis=0), 1)).max(axis=1), kind="stable")
    numbers = numbers[order]
    labels = of.past.labels(*_BY).labels
    steps, paths = _paths([labels[at] for at in numbers.tolist()])
    return packed(steps, paths, weights[order], (of.page_size / 2, of.page_size / 2, 1))


def _paths(labels: Sequence[Sequence[Label]]) -> tuple[list[Step], list[list[int]]]:
    """The distinct steps, "all" first, and of each row the numbers of its steps below that one, outermost first.

    Of rows past the first PATHS the stacks are one.
    """
    codes: dict[Step, int] = {("all", 0): 0}

    def code(name: str, line: int = 0) -> int:
        return codes.setdefault((printable(name, NAME_LIMIT), line), len(codes))

    named = list(dict.fromkeys(stack for _, _, stack in labels[:PATHS]))
    imports: dict[int, Frame] = {}
    stacks = [_folded(stack.frames, imports) for stack in named]
    frames = list(chain.from_iterable(stacks))
    # call sites share their frames, of which each is named once, in their order: the same trace gives the same page
    number_of = {
        id(frame): code(frame.located + frame.doubt, frame.line * bool(frame.shown))
        for frame in dict(zip(map(id, frames), frames, strict=True)).values()
    }
    steps, ends = [number_of[id(frame)] for frame in frames], accumulate(map(len, stacks), initial=0)
    below = {stack: steps[begin:end] for stack, (begin, end) in zip(named, pairwise(ends), strict=True)}
    heads: dict[tuple[str, str], list[int]] = {}
    paths = []
    for at, (process, thread, stack) in enumerate(labels):
        if (key := (process.unique, thread.unique)) not in heads:
            heads[key] = [code(process.text), code(thread.text)]
        paths.append([*heads[key], *([code(OTHERS)] if at >= PATHS else below[stack] or [code(stack.text)])])
    return list(codes), paths


def _folded(stack: tuple[Frame, ...], imports: dict[int, Frame]) -> list[Frame]:
    """The frames of a stack, outermost first, of the import system none: `import numpy/__init__.py` for what it runs.

    imports: the frames so named, by the id of the one that each stands for.
    """
    found, system = [], False
    for frame in reversed(to_the_root(stack)):
        above, system = system, frame.file.startswith(IMPORT_SYSTEM)
        if above and frame.function == "<module>":
            if id(frame) not in imports:
                imports[id(frame)] = replace(frame, function="import")
            found.append(imports[id(frame)])
        elif not system:
            found.append(frame)
    return found


def growth(found: Comparison) -> dict[str, Any]:
    """The tree of the stacks of two runs, by what the second has more of each and less, and the bytes of both.

    Frames are paired by function and file: processes have other numbers in each run, and lines move.
    """
    codes: dict[Step, int] = {("all", 0): 0}
    amounts: dict[tuple[int, ...], list[int]] = {}
    imports: dict[int, Frame] = {}
    for run, of in enumerate((found.first.of, found.second.of)):
        for at, row in enumerate(of.rows("stack")):
            frames = _folded(row.labels[0].frames, imports)
            names = [OTHERS] if at >= PATHS else [one.located + one.doubt for one in frames] or [row.label]
            path = tuple(codes.setdefault((printable(name, NAME_LIMIT), 0), len(codes)) for name in names)
            amounts.setdefault(path, [0, 0])[run] += row["resident"]
    both = np.array(list(amounts.values()), np.float64).reshape(-1, 2)
    change = both[:, 1] - both[:, 0]
    weights = np.column_stack((change.clip(0), (-change).clip(0), both[:, ::-1]))
    return packed(list(codes), list(amounts), weights, (2048,) * 4)  # half of the smallest page: candidates' shares


def packed(steps: Sequence[Step], paths: Sequence[Sequence[int]], weights: NDArray[np.float64],
           units: Sequence[float]) -> dict[str, Any]:  # fmt: skip
    """The tree for the page: varints of the distance to the parent, name, line and weights of each node.

    steps: those of the nodes, the root's first. paths: of each the numbers of its steps below the root. weights: of
    each path, (paths, weights); they count at each of its nodes. units: of each weight; the page has multiples of
    these.
    """
    numbers: dict[tuple[int, int], int] = {}  # (parent, step) -> node; a parent has a lower number
    parent, step_of = [0], [0]
    nodes: list[int] = []  # those of each path, one path behind the other
    for path in paths:
        nodes.append(node := 0)
        for step in path:
            if (found := numbers.setdefault((node, step), len(parent))) == len(parent):
                parent.append(node)
                step_of.append(step)
            nodes.append(node := found)
    long = np.fromiter((1 + len(path) for path in paths), np.intp, len(paths))
    sums = np.stack([np.bincount(nodes, np.repeat(column, long), len(parent)) for column in weights.T], axis=1)
    above, of_step = np.array(parent), np.array(step_of)
    least = sums[0] * SHARE
    while True:
        kept = ((sums >= least) & (sums > 0)).any(axis=1)
        kept[0] = True
        nearest = np.where(kept, np.arange(len(parent)), above)
        while not kept[nearest].all():
            nearest = nearest[nearest]
        place = np.cumsum(kept) - 1
        texts: dict[str, int] = {}
        distinct, which = np.unique(of_step[kept], return_inverse=True)
        named = np.array(
            [(texts.setdefault(text, len(texts)), line) for text, line in map(steps.__getitem__, distinct)]
        )
        rows = np.column_stack((place[kept] - place[nearest[above[kept]]], named[which],
                                np.round(sums[kept] / np.array(units)).astype(np.int64)))  # fmt: skip
        tree: dict[str, Any] = {"nodes": varints(rows.ravel())}
        if sum(map(len, (*tree.values(), *texts))) <= ROOM:
            break
        least *= 2
    tree |= {"names": list(texts), "weights": len(units), "units": list(units)}
    if hidden := int(np.count_nonzero(~kept & sums.any(axis=1))):
        tree["folded"] = (
            f"{number(hidden)} small frames are not drawn; the empty space below their callers stands for them."
        )
    return tree
