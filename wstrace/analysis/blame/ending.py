"""Ending: the faults that processes took while their Python interpreter ended.

An interpreter that ends frees what it has, object by object, and so writes to most of what it shared since a fork. No
frame of Python is on its main thread then, but for those that begin anew: destructors, and functions of atexit. Until
then the thread has the frames that it had at the fork, down to the outermost one.

Source: CPython Python/pylifecycle.c Py_FinalizeEx(); measured on 3.11 with gunicorn's workers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.inputs import Inputs
from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.faults import FORKS
from wstrace.analysis.segments import begins
from wstrace.schema import FRAME_CUT, HOW_NO_PYTHON

_CUT = np.int64(-1)


def at_the_end(inputs: Inputs) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Whether each fault was taken by an ending interpreter, and the spaces of the processes of which that is known.

    Known are processes that forked, or began by that, and ended in the trace, and whose main thread had Python frames
    behind the fork, but for those where it has stacks behind these that were not read, or not whole.

    Args:
        inputs: with the threads of faults; where they lack these, nothing is known.
    """
    faults, losses = inputs.faults, inputs.losses
    found, none = np.zeros(len(faults["space"]), np.bool_), np.zeros(0, np.intp)
    forks = np.isin(losses.event, FORKS)
    family = np.union1d(losses.space[forks], losses.other[forks])
    asked = np.intersect1d(family, inputs.ends.space)
    if "tid" not in faults or not len(asked):
        return found, none
    rows = np.flatnonzero(np.isin(faults["space"], asked) & (faults["tid"] == inputs.pids[faults["space"]]))
    rows = rows[np.lexsort((faults["time_ns"][rows], faults["space"][rows]))]
    space, time = faults["space"][rows].astype(np.intp), faults["time_ns"][rows]
    outermost = _outermost(inputs.tree, faults["stack"][rows])
    since = np.zeros(len(inputs.pids), np.uint64)  # of children, when they were forked
    since[losses.space[forks]] = losses.time[forks]
    forked = np.isin(space, losses.space[forks]) & (outermost > 0) & (time >= since[space])
    first = np.flatnonzero(forked)
    first = first[begins(space[first])]
    unread = (outermost == _CUT) | ((outermost == 0) & (faults["stack_how"][rows] != HOW_NO_PYTHON))
    last, last_unread = (np.zeros(len(inputs.pids), np.uint64) for _ in range(2))
    for times, of in ((last, np.isin(outermost, np.unique(outermost[first]))), (last_unread, unread)):
        times[space[of]] = time[of]  # in order of time: of several the last one stays
    known = asked[last[asked] > last_unread[asked]]
    found[rows] = np.isin(space, known) & (time > last[space])
    return found, known


def _outermost(tree: CallTree, stacks: NDArray[Any]) -> NDArray[np.int64]:
    """A number of the outermost function of each stack; 0 = it has no stack, -1 = its outer frames were cut."""
    leaves, which = np.unique(stacks, return_inverse=True)
    ids, at = tree.stacks(tree.known(leaves))
    has = at[1:] > at[:-1]
    root = ids[at[1:][has] - 1]
    code = tree.column("function")[root].astype(np.int64) << 32 | tree.column("file")[root].astype(np.int64)
    code[(tree.column("flags")[root] & FRAME_CUT) != 0] = _CUT
    found = np.where(leaves > 0, _CUT, 0)  # a stack without rows is not known
    found[has] = code
    return found[which]
