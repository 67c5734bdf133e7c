"""Stand-ins: which sampled native stack is told for a fault that has none, and which faults need one.

Where samples were lost, the next one that was not does not stand for all the faults in between: so far as they are more
than samples at that rate leave between them, what is known of these is that their sample was lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.inputs import Inputs, mapping_rows, of_mapping
from wstrace.analysis.own import Origin, OwnRule
from wstrace.analysis.own_native import module_origin
from wstrace.analysis.segments import begins, distinct
from wstrace.batch import Dictionary
from wstrace.schema import FAULT_PC_KERNEL
from wstrace.trace_info import TraceInfo

NOBODY, LOST = -1, -2
#: A sample stands for so many times the faults, or the time, that lie between samples on average: of faults sampled at
#: random one in 3,000 is farther from the next sample.
_REACH = 8


class Reach(NamedTuple):
    """How far before it a sample stands for faults of its thread: this many, or for so long. lossy: samples were lost.

    Without a loss no fault is too far from the next sample: a thread may have rested in between.
    """

    faults: int
    ns: int
    lossy: bool

    @classmethod
    def of(cls, info: TraceInfo, lost: int) -> Reach | None:
        """That of a trace by its rate of samples; None = the rate is not known. lost: the samples that were."""
        noted = info.extra.get("stack_samples")
        often = noted if isinstance(noted, dict) else {}
        period, rate = often.get("period"), often.get("rate")
        if type(period) is int and period > 0:
            return cls(_REACH * period, 0, lost > 0)
        if type(rate) is int and rate > 0:
            return cls(_REACH, _REACH * 1_000_000_000 // rate, lost > 0)
        return None


class Leaves(NamedTuple):
    """By what stack each fault is told, shape (n,): its innermost call site, and the fault that has that stack.

    lost: whether its sample, or that which stood for it, was lost.
    """

    leaf: NDArray[np.uint32]
    of: NDArray[np.intp]
    lost: NDArray[np.bool_]

    @property
    def estimated(self) -> NDArray[np.bool_]:
        """Whether a fault is told by another one's stack."""
        estimated: NDArray[np.bool_] = self.of != np.arange(len(self.of))
        return estimated

    @property
    def samples(self) -> NDArray[np.intp]:
        """The faults whose stacks are told for others."""
        found: NDArray[np.intp] = np.unique(self.of[self.estimated])
        return found


def leaves(
    inputs: Inputs,
    strings: Dictionary,
    own: NDArray[np.uint32],
    within: Reach | None = None,
    *,
    whole_stacks: bool = False,
) -> list[Leaves]:
    """By what stack each fault is told in tables by line, in those by function or package, and as a whole stack.

    A fault with a Python stack is told by that. By line, one needs a native stack unless its instruction is the
    program's own; by function, only in the code of a JIT compiler, which lies in no file. As a whole stack, each
    needs one: these are told only where they are wanted.

    Args:
        own: the mappings of the program's own code. within: see stand_ins().
    """
    faults, mappings = inputs.faults, inputs.mappings
    known, row = mapping_rows(mappings, faults["pc_mapping"])
    codes = of_mapping(mappings, "file", row)
    files = [code for code in np.unique(codes).tolist() if _text(strings, code).startswith("/")]
    in_file = known & np.isin(codes, files) | ((faults["flags"] & FAULT_PC_KERNEL) != 0)
    without = inputs.tree.known(faults["stack"]) == 0
    found = []
    every = [np.ones(len(in_file), np.bool_)] * whole_stacks
    for needs in (~np.isin(faults["pc_mapping"], own), ~in_file, *every):
        stand_in = stand_ins(faults, without & needs, within)
        rows = np.flatnonzero(stand_in >= 0)
        leaf, of = faults["stack"].copy(), np.arange(len(stand_in))
        leaf[rows], of[rows] = faults["native_stack"][stand_in[rows]], stand_in[rows]
        found.append(Leaves(leaf, of, stand_in == LOST))
    return found


def own_mappings(inputs: Inputs, strings: Dictionary) -> NDArray[np.uint32]:
    """The mappings of the program's own code."""
    rule, mappings = OwnRule(), inputs.mappings
    files, which = np.unique(mappings["file"], return_inverse=True)
    own = np.array([module_origin(_text(strings, code), rule)[0] == Origin.OWN for code in files.tolist()], np.bool_)
    found: NDArray[np.uint32] = mappings["id"][own[which]] if len(files) else mappings["id"]
    return found


def stand_ins(
    faults: Mapping[str, NDArray[Any]], asked: NDArray[np.bool_], within: Reach | None = None
) -> NDArray[np.intp]:
    """For each fault, the sampled one of its thread that stands for it: itself, or the next of those asked for.

    A near sample of the same instruction goes before the next one: a share of its samples is taken of each
    instruction's faults. Only those that are asked for are told by one: where the others are known without, a share of
    their samples would be told twice.

    Args:
        faults: columns `space`, `tid`, `pc`, `time_ns` and `native_stack`.
        asked: of each fault, whether it needs one.
        within: how far a sample reaches; None = that is not known, and nothing is too far.

    Returns:
        Rows of `faults`, shape (n,); NOBODY for those that were not asked for, and behind the last sample of a thread;
        LOST for those that are too far from any.
    """
    found = np.full(len(asked), NOBODY)
    rows = np.flatnonzero(asked)
    if not len(rows):
        return found
    thread = faults["space"][rows].astype(np.uint64) << np.uint64(32) | faults["tid"][rows]
    following, near = _following(faults, rows, distinct(thread)[1], within)
    if within is not None:
        following[~near] = LOST if within.lossy else following[~near]
        alike, near = _following(faults, rows, distinct(thread, faults["pc"][rows])[1], within)
        near &= alike != NOBODY
        following[near] = alike[near]
    found[rows] = following
    return found


def _following(
    faults: Mapping[str, NDArray[Any]], rows: NDArray[np.intp], group: NDArray[np.int32], within: Reach | None
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The next sampled fault of the group of each, NOBODY behind the last one, and whether it is in reach.

    Behind the last sample of a group all faults, or none, are as near as the whole rest is long.
    """
    order = np.lexsort((faults["time_ns"][rows], group))
    rows, group = rows[order], group[order]
    place, times = np.arange(len(rows)), faults["time_ns"][rows].astype(np.int64)
    new = np.flatnonzero(begins(group))
    number = np.cumsum(begins(group)) - 1
    last = np.append(new[1:], len(rows))[number] - 1  # of the group
    sampled = np.flatnonzero(faults["native_stack"][rows])
    at = sampled.searchsorted(place)
    following = np.append(sampled, len(rows))[at]
    there = following <= last
    before = np.maximum(np.append(-1, sampled)[at], new[number] - 1)
    begin, end = np.where(there, place, before + 1), np.where(there, following, last)
    near = np.ones(len(rows), np.bool_)
    if within is not None:
        near = (end - begin <= within.faults) | (times[end] - times[begin] <= within.ns)
    found, in_reach = np.full(len(rows), NOBODY), near.copy()
    found[order[there]], in_reach[order] = rows[following[there]], near
    return found, in_reach


def _text(strings: Dictionary, code: int) -> str:
    return strings[code] if code < len(strings) else ""
