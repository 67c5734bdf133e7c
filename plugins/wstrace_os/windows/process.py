"""Processes on Windows by their handles: names, counters, exit codes, children, privilege."""

from __future__ import annotations

import ctypes
import ntpath
from typing import Any, NamedTuple

import numpy as np

from wstrace.errors import Unavailable
from wstrace_os.foreign import declare
from wstrace_os.windows import api as winapi
from wstrace_os.windows.layouts import LUID_AND_ATTRIBUTES, PROCESS_MEMORY_COUNTERS, PROCESSENTRY32W
from wstrace_os.windows.memory import utf16

_PATH_CHARS = 32_768
_STILL_ACTIVE = 259
_TOKEN_ADJUST_PRIVILEGES, _TOKEN_QUERY, _TOKEN_USER, _SE_PRIVILEGE_ENABLED, _ERROR_NOT_ALL_ASSIGNED = (
    0x20,
    8,
    1,
    2,
    1300,
)


class Counters(NamedTuple):
    """PROCESS_MEMORY_COUNTERS: faults of both kinds together (32 bits, wraps), and bytes."""

    page_faults: int
    peak_working_set: int
    working_set: int


def counters(api: Any, handle: int) -> Counters | None:
    """What GetProcessMemoryInfo says; it still answers for a process that has exited. None when it refuses."""
    info = np.zeros(1, PROCESS_MEMORY_COUNTERS[api.POINTER])
    if not api.GetProcessMemoryInfo(handle, info.ctypes.data, info.nbytes):
        return None
    row = info[0]
    return Counters(int(row["PageFaultCount"]), int(row["PeakWorkingSetSize"]), int(row["WorkingSetSize"]))


def exited(api: Any, handle: int, milliseconds: int = 0) -> bool:
    """True when it has ended, within so many milliseconds. The wait cannot be interrupted: keep it short."""
    return int(api.WaitForSingleObject(handle, milliseconds)) == 0


def exit_code(api: Any, handle: int) -> int:
    """The exit code of a process that has ended; an NTSTATUS (0xC0000005 and the like) as a signed 32-bit number."""
    code = np.zeros(1, "<u4")
    if not api.GetExitCodeProcess(handle, code.ctypes.data):
        raise winapi.failed("GetExitCodeProcess", api.GetLastError())
    return int(code.view("<i4")[0])


def image(api: Any, handle: int) -> str:
    """The path of its executable, "" where the system does not tell."""
    path, size = np.zeros(_PATH_CHARS, "<u2"), np.array([_PATH_CHARS], "<u4")
    if not api.QueryFullProcessImageNameW(handle, 0, path.ctypes.data, size.ctypes.data):
        return ""
    return utf16(path[: size[0]])


def name(api: Any, handle: int, pid: int) -> str:
    """`python.exe`, or `pid 12` where the system does not tell."""
    return ntpath.basename(image(api, handle)) or f"pid {pid}"


def parents(api: Any) -> list[tuple[int, int]]:
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


def descendants(api: Any, *roots: int) -> list[tuple[int, int]]:
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


def created(api: Any, pid: int) -> int:
    """When it was created, in 100 ns since 1601. Raises TargetExited, Unavailable."""
    handle = winapi.open_process(api, pid, winapi.PROCESS_QUERY_LIMITED_INFORMATION)
    try:
        return times(api, handle)[0]
    finally:
        api.CloseHandle(handle)


def times(api: Any, handle: int) -> tuple[int, int, int, int]:
    """When it was created and exited, and its CPU time in kernel and user mode; in 100 ns. Zeros when refused."""
    four = np.zeros(4, "<u8")
    at = four.ctypes.data
    api.GetProcessTimes(handle, at, at + 8, at + 16, at + 24)
    created, ended, kernel, user = four.tolist()
    return created, ended, kernel, user


def user(api: Any, handle: int) -> bytes:
    """The SID of the user whom a process runs as. Raises Unavailable when the system does not tell."""
    token, size = np.zeros(1, "<u8"), np.zeros(1, "<u4")
    if not api.OpenProcessToken(handle, _TOKEN_QUERY, token.ctypes.data):
        raise winapi.failed("OpenProcessToken", api.GetLastError())
    information = np.zeros(256, "<u1")  # TOKEN_USER: SID_AND_ATTRIBUTES, then the SID (68 bytes at most)
    try:
        done = api.GetTokenInformation(
            int(token[0]), _TOKEN_USER, information.ctypes.data, len(information), size.ctypes.data
        )
        code = api.GetLastError()
    finally:
        api.CloseHandle(int(token[0]))
    if not done:
        raise winapi.failed("GetTokenInformation", code)
    return information[2 * api.POINTER : int(size[0])].tobytes()


IsUserAnAdmin = declare("shell32.dll", "IsUserAnAdmin", ctypes.c_int32)
#: Wine only
wine_get_version = declare("ntdll.dll", "wine_get_version", ctypes.c_char_p)


_LookupPrivilegeValueW = declare(
    "advapi32.dll", "LookupPrivilegeValueW", ctypes.c_int32, ctypes.c_wchar_p, ctypes.c_wchar_p, ctypes.c_void_p
)
_AdjustTokenPrivileges = declare(
    "advapi32.dll", "AdjustTokenPrivileges", ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p,
    ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p,
)  # fmt: skip


def enable_debug_privilege() -> None:
    """Switches SeDebugPrivilege on for this process, so that it may open those of other users. Only when asked.

    Raises:
        Unavailable: the account does not hold the privilege, or the terminal is not elevated.
    """
    token = np.zeros(1, "<u8")
    rights = _TOKEN_ADJUST_PRIVILEGES | _TOKEN_QUERY
    if not winapi.OpenProcessToken(winapi.GetCurrentProcess(), rights, token.ctypes.data):
        raise winapi.failed("OpenProcessToken", winapi.GetLastError())
    privileges = np.zeros(1, LUID_AND_ATTRIBUTES)  # TOKEN_PRIVILEGES with one entry
    privileges["Count"], privileges["Attributes"] = 1, _SE_PRIVILEGE_ENABLED
    try:
        if not _LookupPrivilegeValueW(None, "SeDebugPrivilege", privileges.ctypes.data + 4):
            raise winapi.failed("LookupPrivilegeValueW", winapi.GetLastError())
        done = _AdjustTokenPrivileges(int(token[0]), 0, privileges.ctypes.data, 0, None, None)
        code = winapi.GetLastError()  # it returns TRUE although nothing was assigned
    finally:
        winapi.CloseHandle(int(token[0]))
    if not done or code == _ERROR_NOT_ALL_ASSIGNED:
        raise Unavailable(
            f"SeDebugPrivilege could not be switched on (AdjustTokenPrivileges: {code})",
            "run wstrace in an elevated terminal (Run as administrator)",
        )
