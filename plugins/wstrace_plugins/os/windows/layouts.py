"""The structures of psapi.h, memoryapi.h and tlhelp32.h as numpy dtypes, in both pointer widths.

Each name maps the bytes of a pointer (8 or 4) to the layout of that width; a tracer uses its own, POINTER. Widths are
explicit, so that a recording is decoded alike on every system.
Sources: Microsoft Learn, psapi.h, memoryapi.h (winnt.h for MEMORY_BASIC_INFORMATION), tlhelp32.h; the sizes are those
of mingw-w64's headers compiled for both targets.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

POINTER = struct.calcsize("P")
"""The bytes of a pointer of this process."""


def _both(fields: list[tuple[str, str, int, int]], size_x64: int, size_x86: int) -> dict[int, np.dtype[np.void]]:
    """{8: x64, 4: x86} from (name, type, offset x64, offset x86); type `P` is an unsigned integer of pointer width."""
    layouts = {}
    for pointer, column, size in ((8, 2, size_x64), (4, 3, size_x86)):
        formats: list[DTypeLike] = [f"<u{pointer}" if kind == "P" else kind for _, kind, *_ in fields]
        offsets = [int(field[column]) for field in fields]
        names = [field[0] for field in fields]
        layouts[pointer] = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})
    return layouts


PSAPI_WS_WATCH_INFORMATION_EX = _both(
    [("FaultingPc", "P", 0, 0), ("FaultingVa", "P", 8, 4), ("FaultingThreadId", "P", 16, 8), ("Flags", "P", 24, 12)],
    32,
    16,
)

PSAPI_WORKING_SET_BLOCK: dict[int, np.dtype[Any]] = {8: np.dtype("<u8"), 4: np.dtype("<u4")}
"""Bits: Protection 0-4, ShareCount 5-7, Shared 8, NUMA node 9-11 (the page says reserved), VirtualPage from 12;
NumberOfEntries is as wide."""

PSAPI_WORKING_SET_EX_INFORMATION = _both([("VirtualAddress", "P", 0, 0), ("VirtualAttributes", "P", 8, 4)], 16, 8)
"""Attribute bits, Valid = 1: Valid 0, ShareCount 1-3, Win32Protection 4-14, Shared 15, Node 16-21, Locked 22,
LargePage 23, Bad 31. Valid = 0: Shared 15, Bad 31."""

MEMORY_BASIC_INFORMATION = _both(
    [
        ("BaseAddress", "P", 0, 0),
        ("AllocationBase", "P", 8, 4),
        ("AllocationProtect", "<u4", 16, 8),
        ("RegionSize", "P", 24, 12),
        ("State", "<u4", 32, 16),
        ("Protect", "<u4", 36, 20),
        ("Type", "<u4", 40, 24),
    ],
    48,
    28,
)

PROCESS_MEMORY_COUNTERS = _both(
    [
        ("cb", "<u4", 0, 0),
        ("PageFaultCount", "<u4", 4, 4),
        ("PeakWorkingSetSize", "P", 8, 8),
        ("WorkingSetSize", "P", 16, 12),
        ("PagefileUsage", "P", 56, 32),
        ("PeakPagefileUsage", "P", 64, 36),
    ],
    72,
    40,
)
"""PageFaultCount has 32 bits on every Windows, and wraps."""

SYSTEM_PROCESS_INFORMATION = _both(
    [
        ("NextEntryOffset", "<u4", 0, 0),
        ("ImageNameLength", "<u2", 56, 56),
        ("ImageNameBuffer", "P", 64, 60),
        ("UniqueProcessId", "P", 80, 68),
        ("InheritedFromUniqueProcessId", "P", 88, 72),
        ("WorkingSetSize", "P", 144, 104),
    ],
    256,
    184,
)
"""One process of NtQuerySystemInformation, class 5, without the threads behind it."""

PROCESSENTRY32W = _both(
    [
        ("dwSize", "<u4", 0, 0),
        ("th32ProcessID", "<u4", 8, 8),
        ("th32ParentProcessID", "<u4", 32, 24),
        ("szExeFile", "V520", 44, 36),
    ],
    568,
    556,
)
"""szExeFile: 260 UTF-16 code units."""

PROCESS_BASIC_INFORMATION = _both(
    [("PebBaseAddress", "P", 8, 4), ("UniqueProcessId", "P", 32, 16), ("InheritedFromUniqueProcessId", "P", 40, 20)],
    48,
    24,
)
"""NtQueryInformationProcess, class 0 (winternl.h, where the parent's pid is the last Reserved member)."""

STARTUPINFOEXW = _both([("cb", "<u4", 0, 0), ("lpAttributeList", "P", 104, 68)], 112, 72)

PROCESS_INFORMATION = _both([("hProcess", "P", 0, 0), ("hThread", "P", 8, 4), ("dwProcessId", "<u4", 16, 8)], 24, 16)

SYSTEM_INFO = _both([("dwPageSize", "<u4", 4, 4), ("lpMaximumApplicationAddress", "P", 16, 12)], 48, 36)

OSVERSIONINFOW = np.dtype([("dwOSVersionInfoSize", "<u4"), ("dwMajorVersion", "<u4"), ("dwMinorVersion", "<u4"),
                           ("dwBuildNumber", "<u4"), ("dwPlatformId", "<u4"), ("szCSDVersion", "V256")])  # fmt: skip
assert OSVERSIONINFOW.itemsize == 276  # the same in both widths

PRIVILEGE_SET = np.dtype([("Count", "<u4"), ("Control", "<u4"), ("Luid", "V8"), ("Attributes", "<u4")])
assert PRIVILEGE_SET.itemsize == 20

LUID_AND_ATTRIBUTES = np.dtype([("Count", "<u4"), ("Luid", "V8"), ("Attributes", "<u4")])
"""TOKEN_PRIVILEGES (winnt.h) with one entry, the same in both widths."""
assert LUID_AND_ATTRIBUTES.itemsize == 16
