"""Stand-ins: which sampled native stack is told for a fault that has none, and which faults need one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.inputs import Inputs, mapping_rows, of_mapping
from wstrace.analysis.own import Origin, OwnRule
from wstrace.analysis.own_native import module_origin
from wstrace.analysis.segments import begins
from wstrace.batch import Dictionary
from wstrace.schema import FAULT_PC_KERNEL

NOBODY = -1


class Leaves(NamedTuple):
    """By what stack each fault is told, shape (n,): its innermost call site, and the fault that has that stack."""

    leaf: NDArray[np.uint32]
    of: NDArray[np.intp]

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


def leaves(inputs: Inputs, strings: Dictionary, own: NDArray[np.uint32]) -> tuple[Leaves, Leaves]:
    """By what stack each fault is told in tables by line, and in those by function or package.

    A fault with a Python stack is told by that. By line, one needs a native stack unless its instruction is the
    program's own; by function, only in the code of a JIT compiler, which lies in no file.

    Args:
        own: the mappings of the program's own code.
    """
    faults, mappings = inputs.faults, inputs.mappings
    known, row = mapping_rows(mappings, faults["pc_mapping"])
    codes = of_mapping(mappings, "file", row)
    files = [code for code in np.unique(codes).tolist() if _text(strings, code).startswith("/")]
    in_file = known & np.isin(codes, files) | ((faults["flags"] & FAULT_PC_KERNEL) != 0)
    without = inputs.tree.known(faults["stack"]) == 0
    found = []
    for needs in (~np.isin(faults["pc_mapping"], own), ~in_file):
        stand_in = stand_ins(faults, without & needs)
        rows = np.flatnonzero(stand_in != NOBODY)
        leaf, of = faults["stack"].copy(), np.arange(len(stand_in))
        leaf[rows], of[rows] = faults["native_stack"][stand_in[rows]], stand_in[rows]
        found.append(Leaves(leaf, of))
    by_line, by_function = found
    return by_line, by_function


def own_mappings(inputs: Inputs, strings: Dictionary) -> NDArray[np.uint32]:
    """The mappings of the program's own code."""
    rule, mappings = OwnRule(), inputs.mappings
    files, which = np.unique(mappings["file"], return_inverse=True)
    own = np.array([module_origin(_text(strings, code), rule)[0] == Origin.OWN for code in files.tolist()], np.bool_)
    found: NDArray[np.uint32] = mappings["id"][own[which]] if len(files) else mappings["id"]
    return found


def stand_ins(faults: Mapping[str, NDArray[Any]], asked: NDArray[np.bool_]) -> NDArray[np.intp]:
    """For each fault, the sampled one of its thread that stands for it: the next of those asked for, or itself.

    A sample stands for the faults since the one before, as its `weight` says. Only those that are asked for are told by
    one: where the others are known without, a share of their samples would be told twice.

    Args:
        faults: columns `space`, `tid`, `time_ns` and `native_stack`.
        asked: of each fault, whether it needs one.

    Returns:
        Rows of `faults`, shape (n,); NOBODY for those that were not asked for, and behind the last sample of a thread.
    """
    found = np.full(len(asked), NOBODY)
    rows = np.flatnonzero(asked)
    thread = faults["space"][rows].astype(np.uint64) << np.uint64(32) | faults["tid"][rows]
    order = np.lexsort((faults["time_ns"][rows], thread))
    rows, thread = rows[order], thread[order]
    if not len(rows):
        return found
    sampled = np.flatnonzero(faults["native_stack"][rows])
    following = sampled.searchsorted(np.arange(len(rows)))
    there = following < len(sampled)
    number = np.cumsum(begins(thread))
    there[there] = number[there] == number[sampled[following[there]]]
    found[rows[there]] = rows[sampled[following[there]]]
    return found


def _text(strings: Dictionary, code: int) -> str:
    return strings[code] if code < len(strings) else ""
