"""Labels of faults whose instruction has no sample: where that alone tells the label, whatever called it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.analysis.instructions import Instructions
    from wstrace.analysis.stack_views import StackBy, StackViews


#: the most instructions without a sample that are named: those with the most faults
_NAMED = 1 << 14
#: So many samples without any frame of the program's own, and no fault at an instruction of it, say that there is none.
_MANY = 100


class Told(NamedTuple):
    """Sums of faults by instruction and stack, and what tells their labels; columns of shape (n,).

    views: what labels their stacks. instruction: its number. stacks: the innermost call sites, also of instructions
    without a sample; 0 = not known. sure: whether the instruction alone tells the label, and would without a sample.
    bare: those of them whose instruction has none.
    """

    views: StackViews
    instruction: NDArray[Any]
    stacks: NDArray[np.intp]
    sure: NDArray[np.bool_]
    bare: NDArray[np.bool_]


def told(
    views: StackViews,
    by: StackBy,
    stacks: NDArray[np.intp],
    instruction: NDArray[Any],
    faults: NDArray[np.int64],
    samples: NDArray[np.int64],
    instructions: Instructions,
) -> Told:
    """Which labels instructions tell.

    Args:
        views: what labels stacks.
        by: what the labels are.
        stacks, instruction: of each row, the innermost call site and the number of the instruction.
        faults, samples: of each row.
        instructions: where these are.
    """
    if by == "stack":
        none = np.zeros(len(stacks), np.bool_)
        return Told(views, instruction, stacks, none, none)
    numbers, of = np.unique(instruction, return_inverse=True)
    mapping, offset = instructions.places(numbers)
    named, without = views.in_files(mapping), np.bincount(of, samples, len(numbers)) == 0
    if (lone := named & without).sum() > _NAMED:
        lone[np.argsort(np.where(lone, np.bincount(of, faults), 0))[:-_NAMED]] = False
    if lone.any():
        sites = np.zeros(len(numbers), np.intp)
        views, sites[lone] = views.beside(mapping[lone], offset[lone])
        stacks = np.where(lone[of], sites[of], stacks)
    # A sample of code without a file stands for more of it: what has none there has no other name.
    sure = np.where(without[of], lone[of], (samples > 0) & (stacks != 0) & (named[of] | views.in_kernel(stacks)))
    sure[sure] = views.by_itself(by, stacks[sure], own_is_known=samples.sum() >= _MANY)
    return Told(views, instruction, stacks, sure, sure & without[of])
