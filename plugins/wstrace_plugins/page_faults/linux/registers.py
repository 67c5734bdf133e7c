"""The frame and stack pointer of every fault, by which one may borrow the native stack of samples of its place.

They make the record of a fault 24 bytes longer, so they are there only where borrowing was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.errors import UsageError
from wstrace_plugins.page_faults.linux.stack_event import StackRate

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: sample_regs_user: PERF_REG_X86_BP and PERF_REG_X86_SP
REGISTERS = 1 << 6 | 1 << 7
#: What the kernel writes for PERF_SAMPLE_REGS_USER: the ABI, then the registers in the order of their bits.
REGISTER_COLUMNS = ("abi", "bp", "sp")
_ABI_NONE, _ABI_64 = 0, 2
#: The name of the column of ids of cgroups in what merge() gives.
CGROUP_ID = "cgroup_id"


def borrowing(asked: bool, native: StackRate | None) -> bool:
    """Whether faults borrow stacks.

    Raises:
        UsageError: it was asked for without native stacks, or with every n-th fault sampled: where the program's calls
            repeat with that period, too, all samples show one caller, and half of the borrowed stacks were wrong.
    """
    if asked and native is None:
        raise UsageError("page_faults: borrow=true is for native stacks", "write stacks=native,borrow=true")
    if asked and native is not None and native.period:
        raise UsageError("page_faults: borrow=true needs samples that keep no step with the program",
                         "leave stack_period out: stack_rate samples by time")  # fmt: skip
    return asked


def taken_out(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Columns of FAULT_REGISTERS, taken out of those of faults; none where there are no registers.

    The stack pointer is 0 where the kernel gave no registers of a 64-bit program.
    """
    if "abi" not in columns:
        return {}
    abi, bp, sp = (columns.pop(name) for name in REGISTER_COLUMNS)
    if CGROUP_ID in columns:  # where the kernel gave no registers, it stands in their place
        columns[CGROUP_ID] = np.where(abi == _ABI_NONE, bp, columns[CGROUP_ID])
    return {"time_ns": columns["time_ns"], "bp": bp, "sp": np.where(abi == _ABI_64, sp, np.uint64(0))}


def part(registers: Mapping[str, NDArray[Any]], start: int, end: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Those of these rows, if there are registers."""
    if registers:
        yield {name: column[start:end] for name, column in registers.items()}
