"""Queries processes on Windows: their listing, and by their handles names, counters, exit codes, children.

Source: Microsoft Learn, NtQuerySystemInformation (SYSTEM_PROCESS_INFORMATION; its Reserved members are as in phnt).
"""

from __future__ import annotations

import ctypes
import ntpath
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from wstrace.errors import Unavailable
from wstrace_plugins.os.foreign import Foreign, WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.layouts import (
    OSVERSIONINFOW,
    PROCESS_BASIC_INFORMATION,
    PROCESS_MEMORY_COUNTERS,
    SYSTEM_PROCESS_INFORMATION,
)
from wstrace_plugins.os.windows.paths import utf16

_PATH_CHARS = 32_768
_PROCESS_INFORMATION = 5  # SYSTEM_INFORMATION_CLASS
_STATUS_INFO_LENGTH_MISMATCH = 0xC000_0004
_FIRST_BYTES, _MAX_BYTES = 1 << 19, 1 << 27
#: The lowest address of the kernel, which has the upper half.
KERNEL_BASE = 1 << 63
_WAIT_TIMEOUT = 258
#: The end of a life that has not ended, in units of 100 ns since 1601.
FOREVER = 1 << 64


class Counters(NamedTuple):
    """PROCESS_MEMORY_COUNTERS: minor and major faults together (32 bits, wraps), and sizes in bytes."""

    page_faults: int
    peak_working_set: int
    working_set: int
    committed: int


def counters(api: WindowsApi, handle: int) -> Counters | None:
    """The result of GetProcessMemoryInfo, also for a process that has exited; None when the call fails."""
    info = np.zeros(1, PROCESS_MEMORY_COUNTERS)
    if not api.GetProcessMemoryInfo(handle, info.ctypes.data, info.nbytes):
        return None
    row = info[0]
    names = ("PageFaultCount", "PeakWorkingSetSize", "WorkingSetSize", "PagefileUsage")
    return Counters(*(int(row[name]) for name in names))


def parent(api: WindowsApi, handle: int) -> int:
    """The pid of a process's parent, which may have been reused since; 0 when the system does not say."""
    information = np.zeros(1, PROCESS_BASIC_INFORMATION)
    status = api.NtQueryInformationProcess(handle, 0, information.ctypes.data, information.nbytes, None)
    return int(information["InheritedFromUniqueProcessId"][0]) if status >= 0 else 0


def build(api: WindowsApi) -> int:
    """The build number of Windows, such as 26100 for Windows 11 24H2 and Server 2025; 0 when not known."""
    information = np.zeros(1, OSVERSIONINFOW)
    information["dwOSVersionInfoSize"] = information.nbytes
    return int(information["dwBuildNumber"][0]) if api.RtlGetVersion(information.ctypes.data) >= 0 else 0


def exited(api: WindowsApi, handle: int, milliseconds: int = 0) -> bool:
    """Whether a process ends within `milliseconds`. The wait cannot be interrupted, so keep it short."""
    if milliseconds:
        return int(api.WaitForSingleObject(handle, milliseconds)) == 0
    return _first_exited(api, np.array([handle], "<u8")) == 0


def any_exited(api: WindowsApi, handles: Sequence[int]) -> bool:
    """Whether one of these processes has ended, or the system does not say."""
    array = np.array(handles, "<u8")
    return any(_first_exited(api, array[at : at + 64]) != _WAIT_TIMEOUT for at in range(0, len(array), 64))


def _first_exited(api: WindowsApi, handles: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> int:
    """The place of the first of 64 processes that has ended, or another code; it keeps the GIL."""
    return int(api.WaitForMultipleObjects(len(handles), handles.ctypes.data, 0, 0))


def exit_code(api: WindowsApi, handle: int) -> int:
    """The exit code of an ended process as a signed 32-bit number, as for NTSTATUS 0xC0000005. Raises Unavailable."""
    code = np.zeros(1, "<u4")
    winapi.checked(api, "GetExitCodeProcess", api.GetExitCodeProcess(handle, code.ctypes.data))
    return int(code.view("<i4")[0])


def image(api: WindowsApi, handle: int) -> str:
    """The path of a process's executable; "" when the system does not say."""
    path, size = np.zeros(_PATH_CHARS, "<u2"), np.array([_PATH_CHARS], "<u4")
    if not api.QueryFullProcessImageNameW(handle, 0, path.ctypes.data, size.ctypes.data):
        return ""
    return utf16(path[: size[0]])


def name(api: WindowsApi, handle: int, pid: int) -> str:
    """The file name of a process's executable, or `pid 12` when the system does not say."""
    return ntpath.basename(image(api, handle)) or f"pid {pid}"


class Listed(NamedTuple):
    """A process; its parent's pid may have been reused. resident: bytes. created: in units of 100 ns since 1601."""

    pid: int
    parent: int
    name: str
    resident: int
    created: int


def listed(api: WindowsApi) -> list[Listed]:
    """Every present process, also those that cannot be opened. Raises Unavailable when the system refuses."""
    size = _FIRST_BYTES
    while True:
        buffer, needed = np.zeros(size, "u1"), np.zeros(1, "<u4")
        status = api.NtQuerySystemInformation(_PROCESS_INFORMATION, buffer.ctypes.data, size, needed.ctypes.data)
        if status >= 0:
            return list(_entries(buffer))
        if status & 0xFFFF_FFFF != _STATUS_INFO_LENGTH_MISMATCH or size >= _MAX_BYTES:
            raise winapi.failed("NtQuerySystemInformation", api.RtlNtStatusToDosError(status))
        size = min(max(2 * size, int(needed[0]) + int(needed[0]) // 4), _MAX_BYTES)


def _entries(buffer: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Iterator[Listed]:
    layout, at, base = SYSTEM_PROCESS_INFORMATION, 0, buffer.ctypes.data
    while at + layout.itemsize <= len(buffer):
        row = buffer[at : at + layout.itemsize].view(layout)[0].item()
        following, created, length, name_at, pid, parent, resident = row
        start = name_at - base
        named = length and start >= 0 and start + length <= len(buffer)
        if pid:
            name = utf16(buffer[start : start + length]) if named else f"pid {pid}"
            yield Listed(pid, parent, name, resident, created)
        if not following:
            return
        at += following


def descendants(
    present: Iterable[Listed], lives: Iterable[tuple[int, int, int]], known: Container[int] = ()
) -> list[Listed]:
    """All present descendants of processes, parents first.

    A pid may be reused, so a process that was created outside of its parent's life is the child of another one.
    present: the listing of all processes. lives: (pid, created, ended) of the processes, in units of 100 ns since 1601.
    known: pids that are left out.
    """
    children: dict[int, list[Listed]] = {}
    for one in present:
        if one.pid != one.parent:
            children.setdefault(one.parent, []).append(one)
    families, found = list(lives), dict[int, Listed]()
    for parent, first, last in families:  # grows in the loop by the children that are found
        for one in children.get(parent, ()):
            if one.pid not in known and one.pid not in found and first <= one.created <= last:
                found[one.pid] = one
                families.append((one.pid, one.created, FOREVER))
    return list(found.values())


def born_since(api: WindowsApi, pid: int) -> list[int]:
    """The pids of all present descendants of a process. Raises TargetExited, Unavailable."""
    life = pid, created(api, pid), FOREVER
    return [child.pid for child in descendants(listed(api), [life])]


@contextmanager
def opened(api: WindowsApi, pid: int, rights: int) -> Iterator[int]:
    """Yields a handle on a process, and closes it. Raises TargetExited, Unavailable."""
    handle = winapi.open_process(api, pid, rights)
    try:
        yield handle
    finally:
        api.CloseHandle(handle)


def created(api: WindowsApi, pid: int) -> int:
    """When a process was created, in units of 100 ns since 1601. Raises TargetExited, Unavailable."""
    with opened(api, pid, winapi.PROCESS_QUERY_LIMITED_INFORMATION) as handle:
        return times(api, handle)[0]


def times(api: WindowsApi, handle: int) -> tuple[int, int, int, int]:
    """(created, exited, CPU time in kernel mode, in user mode) of a process, in units of 100 ns; zeros on failure."""
    four = np.zeros(4, "<u8")
    at = four.ctypes.data
    api.GetProcessTimes(handle, at, at + 8, at + 16, at + 24)
    created, ended, kernel, user = four.tolist()
    return created, ended, kernel, user


_wine_get_version = Foreign("ntdll.dll", "wine_get_version", ctypes.c_char_p)


def wine_version() -> str:
    """The version of Wine, whose ntdll exports wine_get_version; "" on Windows."""
    try:
        version = _wine_get_version()
    except Unavailable:
        return ""
    return str(version, "ascii", "replace") if version else ""
