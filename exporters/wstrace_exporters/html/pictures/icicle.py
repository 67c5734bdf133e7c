"""The icicle: who brought what, as a tree: process, thread, and the frames of the stack from the outermost one on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Composition
from wstrace.analysis.frames import Frame, to_the_root
from wstrace.analysis.segments import begins
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

#: A name and the line behind it, 0 = none.
Step = tuple[str, int]


class Tree:
    """Nodes by (parent, name, line); the weights of a path count at each of its nodes.

    Args:
        root: the name of the first node. weights: how many numbers each node has.
    """

    def __init__(self, root: str, weights: int) -> None:
        self._codes: dict[Step, int] = {(root, 0): 0}
        self._paths: list[Sequence[int]] = []
        self._amounts: list[Sequence[float]] = []
        self._weights = weights
        self._times: tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]] | None = None

    def code(self, step: Step) -> int:
        """The number of a step in paths."""
        return self._codes.setdefault(step, len(self._codes))

    def add(self, path: Sequence[int], amounts: Sequence[float]) -> None:
        """Adds the amounts to the last node of a path, given by code(), and so to all above it."""
        self._paths.append(path)
        self._amounts.append(amounts)

    def at_times(self, path: NDArray[np.intp], time: NDArray[np.intp], amounts: NDArray[np.float64]) -> None:
        """What of the amounts of each path is of each time, (n, weights); paths are numbered as they were added."""
        self._times = path, time, amounts

    def _levels(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]]:
        """Of each level below the root the parents and steps of its nodes; its paths, and the node of each there.

        Nodes are numbered level by level, so that a parent has a lower number.
        """
        n = len(self._paths)
        long = np.fromiter(map(len, self._paths), np.intp, n)
        steps = np.fromiter(chain.from_iterable(self._paths), np.intp, int(long.sum()))
        begin, node, nodes = np.cumsum(long) - long, np.zeros(n, np.intp), 1
        for depth in range(int(long.max(initial=0))):
            paths = np.flatnonzero(long > depth)
            keys, which = np.unique(node[paths] << 32 | steps[begin[paths] + depth], return_inverse=True)
            node[paths] = nodes + which
            yield keys >> 32, keys & 0xFFFFFFFF, paths, node[paths]
            nodes += len(keys)

    def packed(
        self,
        units: Sequence[float],
        weighed: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda own: own,
    ) -> dict[str, Any]:
        """The tree for the page: varints of the distance to the parent, name, line and weights of each node.

        Args:
            units: of each weight; the page has multiples of these. weighed: the weights of the page, of the sums of the
                amounts at each node alone, (nodes, weights).
        """
        leaf, levels = np.zeros(len(self._paths), np.intp), [(np.zeros(1, np.intp), np.zeros(1, np.intp))]
        for above, step, paths, nodes in self._levels():
            leaf[paths] = nodes
            levels.append((above, step))
        parent, steps = (np.concatenate(columns) for columns in zip(*levels, strict=True))
        amounts = np.array(self._amounts, np.float64).reshape(-1, self._weights)
        sums = weighed(np.stack([np.bincount(leaf, column, len(parent)) for column in amounts.T], axis=1))
        end = len(parent)
        for above, _ in reversed(levels[1:]):
            begin, first = end - len(above), int(above[0])  # the parents, ascending, are all of the level above
            for column in sums.T:
                column[first:begin] += np.bincount(above - first, column[begin:end], begin - first)
            end = begin
        codes, least = list(self._codes), sums[0] * SHARE
        while True:
            kept = ((sums >= least) & (sums > 0)).any(axis=1)
            kept[0] = True
            nearest = np.where(kept, np.arange(len(parent)), parent)
            while not kept[nearest].all():
                nearest = nearest[nearest]
            place = np.cumsum(kept) - 1
            texts: dict[str, int] = {}
            named, which = np.unique(steps[kept], return_inverse=True)
            named = np.array(
                [(texts.setdefault(text, len(texts)), line) for text, line in map(codes.__getitem__, named)]
            )
            rows = np.column_stack((place[kept] - place[nearest[parent[kept]]], named[which],
                                    np.round(sums[kept] / np.array(units)).astype(np.int64)))  # fmt: skip
            found: dict[str, Any] = {"nodes": varints(rows.ravel())}
            if self._times is not None:
                path, time, of_time = self._times
                found["times"] = encoded_times(place[nearest[leaf[path]]], time, of_time, units, len(rows))
            if sum(map(len, (*found.values(), *texts))) <= ROOM:
                break
            least *= 2
        found |= {"names": list(texts), "weights": len(units), "units": list(units)}
        if hidden := int(np.count_nonzero(~kept & sums.any(axis=1))):
            found["folded"] = f"{number(hidden)} small frames are not drawn: the room below their callers is theirs."
        return found


def encoded_times(node: NDArray[np.intp], time: NDArray[np.intp], amounts: NDArray[np.float64],
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


def add_paths(tree: Tree, blame: Composition, columns: Sequence[str], place: Callable[[list[float]], Sequence[float]],
              *, heads: bool = True, lines: bool = True) -> NDArray[np.intp]:  # fmt: skip
    """Adds the paths of a composition with whole stacks to a tree; those past the first PATHS end at their thread.

    Returns:
        Of each path the number of its labels in Past.labels("process", "thread", "stack").

    Args:
        columns: of the cells. place: the weights in the tree of a cell's columns.
        heads: the process and the thread stand at the beginning. lines: frames differ by their lines.
    """
    numbers, sums = blame.columns("process", "thread", "stack")
    labels = blame.past.labels("process", "thread", "stack").labels
    amounts = np.stack([sums.get(column, np.zeros(len(numbers))) for column in columns], axis=1)
    whole = np.maximum(amounts.sum(axis=0), 1)
    order = np.argsort(-(amounts / whole).max(axis=1), kind="stable")
    named = list(dict.fromkeys(labels[number][2] for number in numbers[order[:PATHS]].tolist()))
    of_stack = dict(zip(named, _steps(tree, [to_the_root(label.frames) for label in named], lines=lines), strict=True))
    head_of: dict[tuple[str, str], list[int]] = {}
    for at, (number_, amount) in enumerate(zip(numbers[order].tolist(), amounts[order].tolist(), strict=True)):
        process, thread, stack = labels[number_]
        if (head := head_of.get((process.unique, thread.unique))) is None:
            texts = (process.text, thread.text) if heads else ()
            head = head_of[process.unique, thread.unique] = [tree.code(_named(text)) for text in texts]
        if at >= PATHS:
            tree.add([*head, tree.code((OTHERS, 0))], place(amount))
            continue
        below = of_stack[stack] or [tree.code(_named(stack.text))]
        tree.add([*head, *below], place(amount))
    found: NDArray[np.intp] = numbers[order]
    return found


def _steps(tree: Tree, stacks: Sequence[Sequence[Frame]], *, lines: bool) -> list[list[int]]:
    """The steps of each stack, outermost first. Call sites share their frames, of which each is named once."""
    frames = list(chain.from_iterable(map(reversed, stacks)))
    _, first, which = np.unique(
        np.fromiter(map(id, frames), np.int64, len(frames)), return_index=True, return_inverse=True
    )
    codes, order = np.zeros(len(first), np.intp), np.argsort(first)  # the same trace gives the same page
    codes[order] = [tree.code(_step(frames[at], lines=lines)) for at in first[order].tolist()]
    code = codes[which].tolist()
    end = accumulate(map(len, stacks), initial=0)
    return [code[begin:until] for begin, until in pairwise(end)]


def icicle(arrived: Timeline) -> dict[str, Any] | None:
    """The tree for the page, by resident and brought bytes and by reads from disk; None = there are no faults."""
    blame = arrived.of
    if not len(blame.history.faults):
        return None
    tree = Tree("all", 3)
    labels = add_paths(tree, blame, ("resident", "brought", "from_disk"), lambda amount: amount)
    if arrived.n:
        found = arrived.arrivals("process", "thread", "stack")
        path = np.zeros(int(max(labels.max(initial=0), found.label.max(initial=0))) + 1, np.intp)
        path[labels] = np.arange(len(labels))
        amounts = np.column_stack((found.resident, found.brought, found.from_disk))
        tree.at_times(path[found.label], found.time, amounts)
    return tree.packed((blame.page_size / 2, blame.page_size / 2, 1))


def _named(text: str) -> Step:
    return printable(text, NAME_LIMIT), 0


def _step(frame: Frame, *, lines: bool) -> Step:
    line = frame.line if frame.shown and lines else 0
    return printable(frame.located + frame.doubt, NAME_LIMIT), line
