"""What GetWsChangesEx and GetWsChanges give, as columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.schema import FAULT_MAJOR, FAULT_PC_KERNEL


class Changes(NamedTuple):
    """One buffer's records: columns pc, va (u64), flags (u8) and, of Ex records, tid (u32); and how many were lost."""

    columns: dict[str, NDArray[Any]]
    lost: int
    lost_is_exact: bool = True

    def __len__(self) -> int:
        return len(self.columns["va"])


def decode(records: NDArray[np.void], *, kernel_base: int = 0, xp: bool = False) -> Changes:
    """The records of a buffer up to its terminator, or its end where there is none.

    FaultingVa is the byte address; its bit 0 is not part of it: 1 = soft (minor) fault, 0 = hard (major), which is how
    Microsoft's own pfmon reads it. The columns are copies: the buffer may be used again.

    Args:
        records: PSAPI_WS_WATCH_INFORMATION or PSAPI_WS_WATCH_INFORMATION_EX of either width, shape (n,).
        kernel_base: where the kernel's addresses begin, 0 = in the upper half; see process.kernel_base().
        xp: recorded on Windows XP or Server 2003, whose terminator says 1 for any number of lost records.
    """
    pc = records["FaultingPc"].astype("<u8")
    end = int((pc == 0).argmax()) if len(pc) else 0
    terminated = len(pc) > 0 and not pc[end]
    if not terminated:
        end = len(pc)
    pc = pc[:end]
    va = records["FaultingVa"][:end].astype("<u8")
    flags = (va.view("|u1")[::8] & 1) ^ 1
    if kernel_base:
        flags |= (pc >= np.uint64(kernel_base)).view("|u1") * np.uint8(FAULT_PC_KERNEL)
    else:  # the kernel has the upper half: the top bit tells
        top = records.dtype["FaultingPc"].itemsize - 1
        flags |= (pc.view("|u1")[top::8] >> 7) << 1
    va &= np.uint64(0xFFFF_FFFF_FFFF_FFFE)
    columns: dict[str, NDArray[Any]] = {"pc": pc, "va": va, "flags": flags}
    if "FaultingThreadId" in (records.dtype.names or ()):
        columns["tid"] = records["FaultingThreadId"][:end].astype("<u4")
    lost = int(records["FaultingVa"][end]) if terminated else 0
    return Changes(columns, lost, not (xp and lost == 1))


# the flags column takes bit 0 of FaultingVa, inverted, and the top bit of FaultingPc as they are
assert (FAULT_MAJOR, FAULT_PC_KERNEL) == (1, 2)
