"""Folding: what is small in a profile that grew large is told together, so that the sums of all else stay exact."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.frames import Frame

OTHERS = "(others)"
Numbers = NDArray[np.intp]


class Folded(NamedTuple):
    """The stacks, those that stand for others behind the given ones; of each given one which stands for it."""

    frames: list[Sequence[Frame]]
    number: Numbers


def is_small(key: Numbers, columns: Sequence[NDArray[Any]], n: int, least: float) -> NDArray[np.bool_]:
    """Of each of n keys, whether its rows have a smaller share of every column than that, in percent."""
    small = np.ones(n, np.bool_)
    for column in columns:
        small &= np.bincount(key, column, n) * 100 < least * max(float(column.sum()), 1)
    return small


def without_names(
    frames: Sequence[Sequence[Frame]], stack: Numbers, columns: Sequence[NDArray[Any]], least: float
) -> Folded:
    """Small instructions without a name are told together by their file.

    Args:
        frames: of each stack, innermost first. stack: of each row its stack. columns: the values of the rows.
        least: what has a smaller share of every column, in percent, is small.
    """
    number, together = np.arange(len(frames)), dict[str, int]()
    for at in np.flatnonzero(is_small(stack, columns, len(frames), least)).tolist():
        if len(frames[at]) == 1 and (frame := frames[at][0]).mapping and not frame.function:
            number[at] = together.setdefault(frame.module, len(frames) + len(together))
    return Folded([*frames, *([Frame("", module=f"(others in {name})")] for name in together)], number)


def short_stacks(
    frames: Sequence[Sequence[Frame]], stack: Numbers, columns: Sequence[NDArray[Any]], least: float
) -> Folded:
    """Stacks end at their last frame that is not small, called from outside; what it called is one frame `(others)`.

    The cumulative values of all frames that are left are exact. The arguments are those of without_names().
    """
    n = len(frames)
    long = np.fromiter(map(len, frames), np.intp, n)
    outermost_first = list(chain.from_iterable(map(reversed, frames)))
    # call sites share their frames, and the parts of one site stay together
    codes = np.unique(np.fromiter(map(id, outermost_first), np.int64, len(outermost_first)), return_inverse=True)[1]
    begin, node, nodes = np.cumsum(long) - long, np.zeros(n, np.intp), 1
    kept, prefix = np.zeros(n, np.intp), np.zeros(n, np.intp)
    going, sums = np.flatnonzero(long), [np.bincount(stack, column, n) for column in columns]
    for depth in range(int(long.max(initial=0))):
        keys, which = np.unique(node[going] << 32 | codes[begin[going] + depth], return_inverse=True)
        small = np.ones(len(keys), np.bool_)
        for column in sums:
            small &= np.bincount(which, column[going], len(keys)) * 100 < least * max(float(column.sum()), 1)
        node[going] = nodes + which
        nodes += len(keys)
        going = going[~small[which]]
        last = begin[going] + depth + 1
        ends = zip(last.tolist(), (long[going] == depth + 1).tolist(), strict=True)
        whole = np.array([is_end or not outermost_first[at].inlined for at, is_end in ends], np.bool_)
        kept[going[whole]], prefix[going[whole]] = depth + 1, node[going[whole]]
        going = going[long[going] > depth + 1]
    number, together, found = np.arange(n), dict[int, int](), list(frames)
    for at in np.flatnonzero(kept < long).tolist():
        number[at] = together.setdefault(int(prefix[at]), n + len(together))
        if number[at] == len(found):
            found.append([Frame("", module=OTHERS), *frames[at][len(frames[at]) - int(kept[at]) :]])
    return Folded(found, number)
