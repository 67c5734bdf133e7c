"""Processes on Windows by their handles: names, counters, exit codes, parents and children."""

from __future__ import annotations

import ctypes
import ntpath
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from wstrace.errors import Unavailable
from wstrace_os.foreign import declare
from wstrace_os.windows import api as winapi
from wstrace_os.windows.interface import WindowsApi
from wstrace_os.windows.layouts import (
    OSVERSIONINFOW,
    PROCESS_BASIC_INFORMATION,
    PROCESS_MACHINE_INFORMATION,
    PROCESS_MEMORY_COUNTERS,
    PROCESSENTRY32W,
    SYSTEM_INFO,
)
from wstrace_os.windows.paths import utf16

_PATH_CHARS = 32_768
_ARM64, _MACHINES = 0xAA64, {0x8664: "x64", 0x14C: "x86"}  # IMAGE_FILE_MACHINE_*
_MACHINE_TYPE = 9  # GetProcessInformation: ProcessMachineTypeInfo, Windows 11


class Counters(NamedTuple):
    """PROCESS_MEMORY_COUNTERS: faults of both kinds together (32 bits, wraps), and bytes."""

    page_faults: int
    peak_working_set: int
    working_set: int


def counters(api: WindowsApi, handle: int) -> Counters | None:
    """What GetProcessMemoryInfo says; it still answers for a process that has exited. None when it refuses."""
    info = np.zeros(1, PROCESS_MEMORY_COUNTERS[api.POINTER])
    if not api.GetProcessMemoryInfo(handle, info.ctypes.data, info.nbytes):
        return None
    row = info[0]
    return Counters(int(row["PageFaultCount"]), int(row["PeakWorkingSetSize"]), int(row["WorkingSetSize"]))


def parent(api: WindowsApi, handle: int) -> int:
    """The number of the process that made it, which may have been given to another one since; 0 where not told."""
    information = np.zeros(1, PROCESS_BASIC_INFORMATION[api.POINTER])
    status = api.NtQueryInformationProcess(handle, 0, information.ctypes.data, information.nbytes, None)
    return int(information["InheritedFromUniqueProcessId"][0]) if status >= 0 else 0


def build(api: WindowsApi) -> int:
    """The build number of this Windows (26100: Windows 11 24H2 and Server 2025); 0 where it does not tell."""
    information = np.zeros(1, OSVERSIONINFOW)
    information["dwOSVersionInfoSize"] = information.nbytes
    return int(information["dwBuildNumber"][0]) if api.RtlGetVersion(information.ctypes.data) >= 0 else 0


def exited(api: WindowsApi, handle: int, milliseconds: int = 0) -> bool:
    """True when it has ended, within so many milliseconds. The wait cannot be interrupted: keep it short."""
    return int(api.WaitForSingleObject(handle, milliseconds)) == 0


def exit_code(api: WindowsApi, handle: int) -> int:
    """The exit code of a process that has ended; an NTSTATUS (0xC0000005 and the like) as a signed 32-bit number."""
    code = np.zeros(1, "<u4")
    if not api.GetExitCodeProcess(handle, code.ctypes.data):
        raise winapi.failed("GetExitCodeProcess", api.GetLastError())
    return int(code.view("<i4")[0])


def image(api: WindowsApi, handle: int) -> str:
    """The path of its executable, "" where the system does not tell."""
    path, size = np.zeros(_PATH_CHARS, "<u2"), np.array([_PATH_CHARS], "<u4")
    if not api.QueryFullProcessImageNameW(handle, 0, path.ctypes.data, size.ctypes.data):
        return ""
    return utf16(path[: size[0]])


def name(api: WindowsApi, handle: int, pid: int) -> str:
    """`python.exe`, or `pid 12` where the system does not tell."""
    return ntpath.basename(image(api, handle)) or f"pid {pid}"


def parents(api: WindowsApi) -> list[tuple[int, int]]:
    """(pid, parent's pid) of every process now. A parent's pid may have been given to another process since."""
    snapshot = api.CreateToolhelp32Snapshot(winapi.TH32CS_SNAPPROCESS, 0)
    if snapshot in (None, 0, winapi.INVALID_HANDLE_VALUE):
        raise winapi.failed("CreateToolhelp32Snapshot", api.GetLastError())
    entry = np.zeros(1, PROCESSENTRY32W[api.POINTER])
    entry["dwSize"] = entry.itemsize
    pid, parent, address = entry["th32ProcessID"], entry["th32ParentProcessID"], entry.ctypes.data
    found = []
    try:
        more = api.Process32FirstW(snapshot, address)
        while more:  # hundreds of processes, twenty times a second
            found.append((pid.item(), parent.item()))
            more = api.Process32NextW(snapshot, address)
    finally:
        api.CloseHandle(snapshot)
    return found


def descendants(api: WindowsApi, *roots: int) -> list[tuple[int, int]]:
    """(pid, parent's pid) of their children, grandchildren and so on, now; parents before children.

    A process whose parent has ended may stand under another one that was given its number: see created().
    """
    children: dict[int, list[int]] = {}
    for child, parent in parents(api):
        if child != parent:
            children.setdefault(parent, []).append(child)
    known, found = set(roots), [(root, 0) for root in roots]
    for parent, _ in found:
        new = [(child, parent) for child in children.get(parent, ()) if child not in known]
        known.update(child for child, _ in new)
        found += new
    return found[len(roots) :]


def emulated(api: WindowsApi, handle: int) -> str:
    """`x64` or `x86` for a process whose code an ARM64 Windows translates, "" for a native one or where not told."""
    machine, native = np.zeros(1, "<u2"), np.zeros(1, "<u2")
    try:
        told = api.IsWow64Process2(handle, machine.ctypes.data, native.ctypes.data)
    except Unavailable:  # before Windows 10 1511
        return ""
    if not told or native[0] != _ARM64:
        return ""
    if machine[0]:
        return _MACHINES.get(int(machine[0]), "")
    kind = np.zeros(1, PROCESS_MACHINE_INFORMATION)  # x64 under ARM64 is no WOW64: only this tells
    if not api.GetProcessInformation(handle, _MACHINE_TYPE, kind.ctypes.data, kind.nbytes):
        return ""
    return _MACHINES.get(int(kind["ProcessMachine"][0]), "")


def kernel_base(api: WindowsApi) -> int:
    """Where the kernel's addresses begin: for x64 the upper half; for x86 what GetSystemInfo tells.

    A 32-bit process of a 64-bit Windows may have all 4 GiB for itself: there the kernel has no address of 32 bits.
    """
    if api.POINTER == 8:
        return 1 << 63
    ours, information = np.zeros(1, "<u4"), np.zeros(1, SYSTEM_INFO[4])
    if api.IsWow64Process(api.GetCurrentProcess(), ours.ctypes.data) and ours[0]:
        return 1 << 32
    api.GetSystemInfo(information.ctypes.data)
    highest = int(information["lpMaximumApplicationAddress"][0])
    return (highest | 0xFFFF) + 0x1_0001 if highest else 1 << 31  # above it 64 KiB that nobody has


def refuse_other_width(api: WindowsApi, handle: int, pid: int) -> None:
    """A 32-bit Python gets truncated addresses of a 64-bit process, and half of its memory: it gets none.

    Raises:
        Unavailable: this Python is 32-bit and the process is not.
    """
    if api.POINTER == 8:
        return
    ours, theirs = np.zeros(1, "<u4"), np.zeros(1, "<u4")
    api.IsWow64Process(api.GetCurrentProcess(), ours.ctypes.data)
    api.IsWow64Process(handle, theirs.ctypes.data)
    if ours[0] and not theirs[0]:
        raise Unavailable(f"pid {pid} is a 64-bit process and this Python is 32-bit", "trace it with a 64-bit Python")


@contextmanager
def opened(api: WindowsApi, pid: int, rights: int) -> Iterator[int]:
    """A handle on a process, closed at the end. Raises TargetExited, Unavailable."""
    handle = winapi.open_process(api, pid, rights)
    try:
        yield handle
    finally:
        api.CloseHandle(handle)


def created(api: WindowsApi, pid: int) -> int:
    """When it was created, in 100 ns since 1601. Raises TargetExited, Unavailable."""
    with opened(api, pid, winapi.PROCESS_QUERY_LIMITED_INFORMATION) as handle:
        return times(api, handle)[0]


def times(api: WindowsApi, handle: int) -> tuple[int, int, int, int]:
    """When it was created and exited, and its CPU time in kernel and user mode; in 100 ns. Zeros when refused."""
    four = np.zeros(4, "<u8")
    at = four.ctypes.data
    api.GetProcessTimes(handle, at, at + 8, at + 16, at + 24)
    created, ended, kernel, user = four.tolist()
    return created, ended, kernel, user


_wine_get_version = declare("ntdll.dll", "wine_get_version", ctypes.c_char_p)


def wine_version() -> str:
    """Wine's version, "" on Windows: ntdll exports wine_get_version there only."""
    try:
        version = _wine_get_version()
    except Unavailable:
        return ""
    return str(version, "ascii", "replace") if version else ""
