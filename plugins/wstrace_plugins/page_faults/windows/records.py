"""Decodes the records of GetWsChangesEx and GetWsChanges into columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.schema import FAULT_MAJOR, FAULT_PC_KERNEL

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Changes(NamedTuple):
    """The records of one buffer.

    Attributes:
        columns: pc and va (u64), flags (u8) and, from GetWsChangesEx, tid (u32), each of shape (n,).
        lost: the number of records that were lost after these.
        lost_is_exact: False when `lost` only says that records were lost.
    """

    columns: dict[str, NDArray[Any]]
    lost: int
    lost_is_exact: bool = True

    def __len__(self) -> int:
        return len(self.columns["va"])


def decode(records: NDArray[np.void], *, kernel_base: int = 0, xp: bool = False) -> Changes:
    """Decodes the records of a buffer up to its terminator, or up to its end when it has none.

    FaultingVa is the byte address, except that bit 0 is 1 for a soft (minor) and 0 for a hard (major) fault, as
    Microsoft's pfmon reads it. The columns are copies, so the buffer may be used again.

    Args:
        records: PSAPI_WS_WATCH_INFORMATION or PSAPI_WS_WATCH_INFORMATION_EX of either width, shape (n,).
        kernel_base: the lowest address of the kernel, see process.kernel_base(); 0 = the upper half.
        xp: whether it was recorded on Windows XP or Server 2003, whose terminator has 1 for any number of lost records.
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
    else:  # the kernel has the upper half, which the top bit shows
        top = records.dtype["FaultingPc"].itemsize - 1
        flags |= (pc.view("|u1")[top::8] >> 7) << 1
    va &= np.uint64(0xFFFF_FFFF_FFFF_FFFE)
    columns: dict[str, NDArray[Any]] = {"pc": pc, "va": va, "flags": flags}
    if "FaultingThreadId" in (records.dtype.names or ()):
        columns["tid"] = records["FaultingThreadId"][:end].astype("<u4")
    lost = int(records["FaultingVa"][end]) if terminated else 0
    return Changes(columns, lost, not (xp and lost == 1))


# decode() uses bit 0 of FaultingVa, inverted, and the top bit of FaultingPc as these flags.
assert (FAULT_MAJOR, FAULT_PC_KERNEL) == (1, 2)
