"""The structures of psapi.h, memoryapi.h and winternl.h as numpy dtypes, of 64-bit programs.

Sources: Microsoft Learn, psapi.h, memoryapi.h (winnt.h for MEMORY_BASIC_INFORMATION), winternl.h; the sizes are those
of mingw-w64's headers compiled.
"""

from __future__ import annotations

import numpy as np


def _layout(fields: list[tuple[str, str, int]], size: int) -> np.dtype[np.void]:
    """A structure of `size` bytes from (name, type, offset)."""
    names, formats, offsets = (list(column) for column in zip(*fields, strict=True))
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


PSAPI_WS_WATCH_INFORMATION_EX = _layout(
    [("FaultingPc", "<u8", 0), ("FaultingVa", "<u8", 8), ("FaultingThreadId", "<u8", 16), ("Flags", "<u8", 24)], 32
)

PSAPI_WORKING_SET_BLOCK = np.dtype("<u8")
"""Bits: Protection 0-4, ShareCount 5-7, Shared 8, NUMA node 9-11 (the page says reserved), VirtualPage from 12;
NumberOfEntries is as wide."""

PSAPI_WORKING_SET_EX_INFORMATION = _layout([("VirtualAddress", "<u8", 0), ("VirtualAttributes", "<u8", 8)], 16)
"""Attribute bits, Valid = 1: Valid 0, ShareCount 1-3, Win32Protection 4-14, Shared 15, Node 16-21, Locked 22,
LargePage 23, Bad 31. Valid = 0: Shared 15, Bad 31."""

MEMORY_BASIC_INFORMATION = _layout(
    [
        ("BaseAddress", "<u8", 0),
        ("AllocationBase", "<u8", 8),
        ("AllocationProtect", "<u4", 16),
        ("RegionSize", "<u8", 24),
        ("State", "<u4", 32),
        ("Protect", "<u4", 36),
        ("Type", "<u4", 40),
    ],
    48,
)

PROCESS_MEMORY_COUNTERS = _layout(
    [
        ("cb", "<u4", 0),
        ("PageFaultCount", "<u4", 4),
        ("PeakWorkingSetSize", "<u8", 8),
        ("WorkingSetSize", "<u8", 16),
        ("PagefileUsage", "<u8", 56),
        ("PeakPagefileUsage", "<u8", 64),
    ],
    72,
)
"""PageFaultCount has 32 bits on every Windows, and wraps."""

SYSTEM_PROCESS_INFORMATION = _layout(
    [
        ("NextEntryOffset", "<u4", 0),
        ("CreateTime", "<u8", 32),
        ("ImageNameLength", "<u2", 56),
        ("ImageNameBuffer", "<u8", 64),
        ("UniqueProcessId", "<u8", 80),
        ("InheritedFromUniqueProcessId", "<u8", 88),
        ("WorkingSetSize", "<u8", 144),
    ],
    256,
)
"""One process of NtQuerySystemInformation, class 5, without the threads behind it."""

PROCESS_BASIC_INFORMATION = _layout(
    [("PebBaseAddress", "<u8", 8), ("UniqueProcessId", "<u8", 32), ("InheritedFromUniqueProcessId", "<u8", 40)], 48
)
"""NtQueryInformationProcess, class 0 (winternl.h, where the parent's pid is the last Reserved member)."""

STARTUPINFOEXW = _layout([("cb", "<u4", 0), ("lpAttributeList", "<u8", 104)], 112)

PROCESS_INFORMATION = _layout([("hProcess", "<u8", 0), ("hThread", "<u8", 8), ("dwProcessId", "<u4", 16)], 24)

OSVERSIONINFOW = np.dtype([("dwOSVersionInfoSize", "<u4"), ("dwMajorVersion", "<u4"), ("dwMinorVersion", "<u4"),
                           ("dwBuildNumber", "<u4"), ("dwPlatformId", "<u4"), ("szCSDVersion", "V256")])  # fmt: skip
assert OSVERSIONINFOW.itemsize == 276

PRIVILEGE_SET = np.dtype([("Count", "<u4"), ("Control", "<u4"), ("Luid", "V8"), ("Attributes", "<u4")])
assert PRIVILEGE_SET.itemsize == 20

LUID_AND_ATTRIBUTES = np.dtype([("Count", "<u4"), ("Luid", "V8"), ("Attributes", "<u4")])
"""TOKEN_PRIVILEGES (winnt.h) with one entry."""
assert LUID_AND_ATTRIBUTES.itemsize == 16
