"""The icicle: who brought what, as a tree: process, thread, and the frames of the stack from the outermost one on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.compare import Comparison, held
from wstrace.analysis.dimensions import Label
from wstrace.analysis.frames import to_the_root
from wstrace.analysis.tally import begins
from wstrace.analysis.timeline import Timeline
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
#: Of paths what of their weights arrived when: the path, the time, and the weights, (n, weights).
Arrived = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]


def icicle(arrivals: Timeline) -> dict[str, Any] | None:
    """The tree for the page, by resident and brought bytes and by reads from disk; None = there are no faults."""
    of = arrivals.of
    if not len(of.history.faults):
        return None
    numbers, sums = of.columns(*_BY)
    weights = np.stack([sums.get(name, np.zeros(len(numbers))) for name in _WEIGHTS], axis=1)
    order = np.argsort(-(weights / np.maximum(weights.sum(axis=0), 1)).max(axis=1), kind="stable")
    numbers = numbers[order]
    labels = of.past.labels(*_BY).labels
    steps, paths = _paths([labels[at] for at in numbers.tolist()])
    arrived = None
    if arrivals.n:
        found = arrivals.arrivals(*_BY)
        path = np.zeros(int(max(numbers.max(initial=0), found.label.max(initial=0))) + 1, np.intp)
        path[numbers] = np.arange(len(numbers))
        arrived = path[found.label], found.time, np.column_stack((found.resident, found.brought, found.from_disk))
    return packed(steps, paths, weights[order], (of.page_size / 2, of.page_size / 2, 1), arrived)


def _paths(labels: Sequence[Sequence[Label]]) -> tuple[list[Step], list[list[int]]]:
    """The distinct steps, "all" first, and of each row the numbers of its steps below that one, outermost first.

    Of rows past the first PATHS the stacks are one.
    """
    codes: dict[Step, int] = {("all", 0): 0}

    def code(name: str, line: int = 0) -> int:
        return codes.setdefault((printable(name, NAME_LIMIT), line), len(codes))

    named = list(dict.fromkeys(stack for _, _, stack in labels[:PATHS]))
    stacks = [to_the_root(stack.frames) for stack in named]
    frames = list(chain.from_iterable(map(reversed, stacks)))
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


def growth(found: Comparison) -> dict[str, Any]:
    """The tree of the stacks of two runs, by what the second has more of each and less, and the bytes of both.

    Frames are paired by function and file: processes have other numbers in each run, and lines move.
    """
    codes: dict[Step, int] = {("all", 0): 0}
    amounts: dict[tuple[int, ...], list[int]] = {}
    for run, of in enumerate((found.first.of, found.second.of)):
        for at, row in enumerate(of.rows("stack")):
            frames = to_the_root(row.labels[0].frames)[::-1]
            names = [OTHERS] if at >= PATHS else [one.located + one.doubt for one in frames] or [row.label]
            path = tuple(codes.setdefault((printable(name, NAME_LIMIT), 0), len(codes)) for name in names)
            amounts.setdefault(path, [0, 0])[run] += held(row)
    both = np.array(list(amounts.values()), np.float64).reshape(-1, 2)
    change = both[:, 1] - both[:, 0]
    weights = np.column_stack((change.clip(0), (-change).clip(0), both[:, ::-1]))
    return packed(list(codes), list(amounts), weights, (2048,) * 4)  # half of the smallest page: candidates' shares


def packed(steps: Sequence[Step], paths: Sequence[Sequence[int]], weights: NDArray[np.float64],
           units: Sequence[float], arrived: Arrived | None = None) -> dict[str, Any]:  # fmt: skip
    """The tree for the page: varints of the distance to the parent, name, line and weights of each node.

    Args:
        steps: those of the nodes, the root's first. paths: of each the numbers of its steps below the root.
        weights: of each path, (paths, weights); they count at each of its nodes. units: of each weight; the page has
            multiples of these. arrived: when.
    """
    leaf, levels = np.zeros(len(paths), np.intp), [(np.zeros(1, np.intp), np.zeros(1, np.intp))]
    for above, step, rows, nodes in _levels(paths):
        leaf[rows] = nodes
        levels.append((above, step))
    parent, step_of = (np.concatenate(columns) for columns in zip(*levels, strict=True))
    sums = np.stack([np.bincount(leaf, column, len(parent)) for column in weights.T], axis=1)
    end = len(parent)
    for above, _ in reversed(levels[1:]):
        begin, first = end - len(above), int(above[0])  # the parents, ascending, are all of the level above
        for column in sums.T:
            column[first:begin] += np.bincount(above - first, column[begin:end], begin - first)
        end = begin
    least = sums[0] * SHARE
    while True:
        kept = ((sums >= least) & (sums > 0)).any(axis=1)
        kept[0] = True
        nearest = np.where(kept, np.arange(len(parent)), parent)
        while not kept[nearest].all():
            nearest = nearest[nearest]
        place = np.cumsum(kept) - 1
        texts: dict[str, int] = {}
        distinct, which = np.unique(step_of[kept], return_inverse=True)
        named = np.array(
            [(texts.setdefault(text, len(texts)), line) for text, line in map(steps.__getitem__, distinct)]
        )
        rows = np.column_stack((place[kept] - place[nearest[parent[kept]]], named[which],
                                np.round(sums[kept] / np.array(units)).astype(np.int64)))  # fmt: skip
        found: dict[str, Any] = {"nodes": varints(rows.ravel())}
        if arrived is not None:
            path, time, amounts = arrived
            found["times"] = _encoded_times(place[nearest[leaf[path]]], time, amounts, units, len(rows))
        if sum(map(len, (*found.values(), *texts))) <= ROOM:
            break
        least *= 2
    found |= {"names": list(texts), "weights": len(units), "units": list(units)}
    if hidden := int(np.count_nonzero(~kept & sums.any(axis=1))):
        found["folded"] = f"{number(hidden)} small frames are not drawn: the room below their callers is theirs."
    return found


def _levels(
    paths: Sequence[Sequence[int]],
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]]:
    """Of each level below the root the parents and steps of its nodes; its paths, and the node of each there.

    Nodes are numbered level by level, so that a parent has a lower number.
    """
    n = len(paths)
    long = np.fromiter(map(len, paths), np.intp, n)
    steps = np.fromiter(chain.from_iterable(paths), np.intp, int(long.sum()))
    begin, node, nodes = np.cumsum(long) - long, np.zeros(n, np.intp), 1
    for depth in range(int(long.max(initial=0))):
        rows = np.flatnonzero(long > depth)
        keys, which = np.unique(node[rows] << 32 | steps[begin[rows] + depth], return_inverse=True)
        node[rows] = nodes + which
        yield keys >> 32, keys & 0xFFFFFFFF, rows, node[rows]
        nodes += len(keys)


def _encoded_times(node: NDArray[np.intp], time: NDArray[np.intp], amounts: NDArray[np.float64],
                   units: Sequence[float], n: int) -> str:  # fmt: skip
    """What arrived when, by node, as varints: of each of n nodes at how many times, and these, in order.

    Of a time: the distance to the one before it, and the amounts.
    """
    width = int(time.max(initial=0)) + 1
    key, which = np.unique(node * width + time, return_inverse=True)
    node, time = key // width, key % width
    gap = np.where(begins(node), time, np.diff(time, prepend=0))
    sums = [
        np.round(np.bincount(which, column, len(key)) / unit) for column, unit in zip(amounts.T, units, strict=True)
    ]
    rows = np.column_stack((gap, *sums)).astype(np.int64)
    return varints(np.concatenate((np.bincount(node, minlength=n), rows.ravel())))
