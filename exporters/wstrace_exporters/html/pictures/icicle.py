"""The icicle: who brought what, as a tree: process, thread, and the frames of the stack from the outermost one on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.rows import Blame
from wstrace.analysis.blame.timeline import Timeline
from wstrace.analysis.frames import Frame
from wstrace.analysis.segments import begins
from wstrace.text import number, printable
from wstrace_exporters.html.encode import varints

#: A node with less than this share of every weight is folded, and more of them where the page would grow too large.
SHARE = 0.001
#: The bytes that nodes and their names may take in the page.
ROOM = 360_000
#: The bytes that what arrived when, by node, may take besides.
TIMES_ROOM = 200_000
#: The paths that are told one by one, and the longest name of a frame, in characters.
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
        told: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda own: own,
    ) -> dict[str, Any]:
        """The tree for the page: varints of the distance to the parent, name, line and weights of each node.

        Args:
            units: of each weight; the page has multiples of these. told: the weights of the page, of the sums of the
                amounts at each node alone, (nodes, weights).
        """
        leaf, levels = np.zeros(len(self._paths), np.intp), [(np.zeros(1, np.intp), np.zeros(1, np.intp))]
        for above, step, paths, nodes in self._levels():
            leaf[paths] = nodes
            levels.append((above, step))
        parent, steps = (np.concatenate(columns) for columns in zip(*levels, strict=True))
        amounts = np.array(self._amounts, np.float64).reshape(-1, self._weights)
        sums = told(np.stack([np.bincount(leaf, column, len(parent)) for column in amounts.T], axis=1))
        end = len(parent)
        for above, _ in reversed(levels[1:]):
            begin, first = end - len(above), int(above[0])  # the parents, ascending, are all of the level above
            for column in sums.T:
                column[first:begin] += np.bincount(above - first, column[begin:end], begin - first)
            end = begin
        names, share = list(self._codes), SHARE
        while True:
            kept, hidden, place = self._kept(sums, parent, steps, names, share)
            found = self._encoded(kept, units)
            if self._times is not None:
                path, time, of_time = self._times
                found["times"] = encoded_times(place[leaf[path]], time, of_time, units, len(kept))
            if (
                len(found["nodes"]) + sum(map(len, found["names"])) <= ROOM
                and len(found.get("times", "")) <= TIMES_ROOM
            ):
                break
            share *= 2
        if hidden:
            found["folded"] = (f"{number(hidden)} frames with less than {share:.2%} of everything are folded into "
                               f"{OTHERS}.")  # fmt: skip
        return found

    def _kept(
        self,
        sums: NDArray[np.float64],
        parent: NDArray[np.intp],
        steps: NDArray[np.intp],
        names: list[Step],
        share: float,
    ) -> tuple[list[tuple[int, Step, NDArray[np.float64]]], int, NDArray[np.intp]]:
        """(parent, name, weights) of the nodes that are told, each behind its parent; how many are not; and of each
        node the told one that counts it.
        """
        least = sums[0] * share
        big = ((sums >= least) & (sums > 0)).any(axis=1)
        place = np.full(len(parent), -1)
        place[0] = 0
        nodes = [(0, names[0], sums[0])]
        folded: dict[int, NDArray[np.float64]] = {}
        for node in np.flatnonzero(big).tolist()[1:]:
            place[node] = len(nodes)
            nodes.append((int(place[parent[node]]), names[steps[node]], sums[node]))
        small = np.flatnonzero(~big & sums.any(axis=1))
        hidden = len(small)
        at = small[place[parent[small]] >= 0]
        for above, amounts in zip(place[parent[at]].tolist(), sums[at], strict=True):
            folded[above] = folded.get(above, 0) + amounts
        others = np.zeros(len(nodes), np.intp)
        others[list(folded)] = np.arange(len(nodes), len(nodes) + len(folded))
        nodes += [(above, (OTHERS, 0), amounts) for above, amounts in folded.items()]
        top = np.arange(len(parent))
        while len(deep := np.flatnonzero((place[top] < 0) & (place[parent[top]] < 0))):
            top[deep] = parent[top[deep]]
        return nodes, hidden, np.where(place[top] >= 0, place[top], others[place[parent[top]]])

    def _encoded(self, nodes: list[tuple[int, Step, NDArray[np.float64]]], units: Sequence[float]) -> dict[str, Any]:
        codes: dict[str, int] = {}
        rows = np.zeros((len(nodes), 3 + len(units)), np.int64)
        for at, (above, (text, line), _) in enumerate(nodes):
            rows[at, :3] = at - above, codes.setdefault(text, len(codes)), line
        rows[:, 3:] = np.round(np.array([amounts for _, _, amounts in nodes]) / np.array(units))
        return {"names": list(codes), "nodes": varints(rows.ravel()), "weights": len(units), "units": list(units)}


def encoded_times(node: NDArray[np.intp], time: NDArray[np.intp], amounts: NDArray[np.float64],
                  units: Sequence[float], n: int) -> str:  # fmt: skip
    """What arrived when, by node, as varints: of each of n nodes at how many times, and these, in order.

    Of a time: 4 times the distance to the one before it, + 1 where what is resident is not what was brought, + 2 where
    any was read from disk; what was brought, and of the other two amounts those that this tells.
    """
    width = int(time.max(initial=0)) + 1
    key, which = np.unique(node * width + time, return_inverse=True)
    resident, brought, disk = (
        np.round(np.bincount(which, column, len(key)) / unit).astype(np.int64)
        for column, unit in zip(amounts.T, units, strict=True)
    )
    node, time = key // width, key % width
    apart, hard = resident != brought, disk > 0
    gap = np.where(begins(node), time, np.diff(time, prepend=0))
    rows = np.column_stack((gap << 2 | hard << 1 | apart, brought, resident, disk))
    there = np.column_stack((np.ones((len(key), 2), np.bool_), apart, hard))
    return varints(np.concatenate((np.bincount(node, minlength=n), rows[there])))


def add_paths(tree: Tree, blame: Blame, columns: Sequence[str], place: Callable[[list[float]], Sequence[float]],
              *, whose: bool = True, lines: bool = True) -> NDArray[np.intp]:  # fmt: skip
    """Adds the paths of a composition with whole stacks to a tree; those past the first PATHS end at their thread.

    Returns:
        Of each path the number of its label in Blame.labels("process", "thread", "stack").

    Args:
        columns: of the cells. place: the weights in the tree of a cell's columns.
        whose: the process and the thread stand at the beginning. lines: frames differ by their lines.
    """
    cells = blame.cells("process", "thread", "stack")
    amounts = np.stack([cells.sums[column] for column in columns], axis=1).astype(np.float64)
    whole = np.maximum(amounts.sum(axis=0), 1)
    order = np.argsort(-(amounts / whole).max(axis=1), kind="stable")
    (processes, threads, stacks), frames = cells.labels, blame.frames
    told = np.unique(cells.of[order[:PATHS], 2]).tolist()
    place_of = {number: at for at, number in enumerate(told)}
    of_stack = _steps(tree, [frames.get(stacks[number].whole, ()) for number in told], lines=lines)
    heads: dict[tuple[int, int], list[int]] = {}
    rows = zip(cells.of[order].tolist(), amounts[order].tolist(), strict=True)
    for number_, ((process, thread, stack), amount) in enumerate(rows):
        if (head := heads.get((process, thread))) is None:
            labels = (processes[process].whole, threads[thread].label) if whose else ()
            head = heads[process, thread] = [tree.code(_named(label)) for label in labels]
        if number_ >= PATHS:
            tree.add([*head, tree.code((OTHERS, 0))], place(amount))
            continue
        below = of_stack[place_of[stack]] or [tree.code(_named(stacks[stack].label))]
        tree.add([*head, *below], place(amount))
    return cells.number[order]


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
    blame = arrived.blame
    if not len(blame.of.history.faults):
        return None
    tree = Tree("all", 3)
    labels = add_paths(tree, blame, ("resident", "brought", "major"), lambda amount: amount)
    if arrived.n:
        found = arrived.arrivals("process", "thread", "stack")
        path = np.zeros(int(max(labels.max(initial=0), found.label.max(initial=0))) + 1, np.intp)
        path[labels] = np.arange(len(labels))
        amounts = np.column_stack((found.resident, found.brought, found.from_disk))
        tree.at_times(path[found.label], found.time, amounts)
    return tree.packed((blame.of.page_size / 2, blame.of.page_size / 2, 1))


def _named(text: str) -> Step:
    return printable(text, NAME_LIMIT), 0


def _step(frame: Frame, *, lines: bool) -> Step:
    line = frame.line if frame.shown and lines else 0
    return printable(frame.located + frame.doubt, NAME_LIMIT), line
