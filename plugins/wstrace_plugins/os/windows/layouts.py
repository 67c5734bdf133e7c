"""The structures of psapi.h, memoryapi.h and winternl.h as numpy dtypes, of 64-bit programs.

Sources: Microsoft Learn, psapi.h, memoryapi.h (winnt.h for MEMORY_BASIC_INFORMATION), winternl.h; the sizes are those
of mingw-w64's headers compiled.
"""

from __future__ import annotations

import numpy as np


def _layout(fields: list[tuple[str, str, int]], size: int) -> np.dtype[np.void]:
    """A structure of `size` bytes from (name, type, offset); type `P` is an unsigned integer of pointer width."""
    names, kinds, offsets = (list(column) for column in zip(*fields, strict=True))
    formats = ["<u8" if kind == "P" else kind for kind in kinds]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


PSAPI_WS_WATCH_INFORMATION_EX = _layout(
    [("FaultingPc", "P", 0), ("FaultingVa", "P", 8), ("FaultingThreadId", "P", 16), ("Flags", "P", 24)], 32
)

PSAPI_WORKING_SET_BLOCK = np.dtype("<u8")
"""Bits: Protection 0-4, ShareCount 5-7, Shared 8, NUMA node 9-11 (the page says reserved), VirtualPage from 12;
NumberOfEntries is as wide."""

PSAPI_WORKING_SET_EX_INFORMATION = _layout([("VirtualAddress", "P", 0), ("VirtualAttributes", "P", 8)], 16)
"""Attribute bits, Valid = 1: Valid 0, ShareCount 1-3, Win32Protection 4-14, Shared 15, Node 16-21, Locked 22,
LargePage 23, Bad 31. Valid = 0: Shared 15, Bad 31."""

MEMORY_BASIC_INFORMATION = _layout(
    [
        ("BaseAddress", "P", 0),
        ("AllocationBase", "P", 8),
        ("AllocationProtect", "<u4", 16),
        ("RegionSize", "P", 24),
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
        ("PeakWorkingSetSize", "P", 8),
        ("WorkingSetSize", "P", 16),
        ("PagefileUsage", "P", 56),
        ("PeakPagefileUsage", "P", 64),
    ],
    72,
)
"""PageFaultCount has 32 bits on every Windows, and wraps."""

SYSTEM_PROCESS_INFORMATION = _layout(
    [
        ("NextEntryOffset", "<u4", 0),
        ("CreateTime", "<u8", 32),
        ("ImageNameLength", "<u2", 56),
        ("ImageNameBuffer", "P", 64),
        ("UniqueProcessId", "P", 80),
        ("InheritedFromUniqueProcessId", "P", 88),
        ("WorkingSetSize", "P", 144),
    ],
    256,
)
"""One process of NtQuerySystemInformation, class 5, without the threads behind it."""

PROCESS_BASIC_INFORMATION = _layout(
    [("PebBaseAddress", "P", 8), ("UniqueProcessId", "P", 32), ("InheritedFromUniqueProcessId", "P", 40)], 48
)
"""NtQueryInformationProcess, class 0 (winternl.h, where the parent's pid is the last Reserved member)."""

STARTUPINFOEXW = _layout([("cb", "<u4", 0), ("lpAttributeList", "P", 104)], 112)

PROCESS_INFORMATION = _layout([("hProcess", "P", 0), ("hThread", "P", 8), ("dwProcessId", "<u4", 16)], 24)

OSVERSIONINFOW = np.dtype([("dwOSVersionInfoSize", "<u4"), ("dwMajorVersion", "<u4"), ("dwMinorVersion", "<u4"),
                           ("dwBuildNumber", "<u4"), ("dwPlatformId", "<u4"), ("szCSDVersion", "V256")])  # fmt: skip
assert OSVERSIONINFOW.itemsize == 276

PRIVILEGE_SET = np.dtype([("Count", "<u4"), ("Control", "<u4"), ("Luid", "V8"), ("Attributes", "<u4")])
assert PRIVILEGE_SET.itemsize == 20

LUID_AND_ATTRIBUTES = np.dtype([("Count", "<u4"), ("Luid", "V8"), ("Attributes", "<u4")])
"""TOKEN_PRIVILEGES (winnt.h) with one entry."""
assert LUID_AND_ATTRIBUTES.itemsize == 16
