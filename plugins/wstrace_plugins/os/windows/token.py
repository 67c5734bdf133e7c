"""Queries the token of a process: its user, elevation and SeDebugPrivilege."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from wstrace.errors import Unavailable
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.layouts import LUID_AND_ATTRIBUTES, PRIVILEGE_SET

_TOKEN_QUERY, _TOKEN_ADJUST_PRIVILEGES = 0x08, 0x20
_TOKEN_USER, _TOKEN_ELEVATION = 1, 20  # TOKEN_INFORMATION_CLASS
_SE_PRIVILEGE_ENABLED = 2
_ERROR_NOT_ALL_ASSIGNED = 1300


@contextmanager
def _token(api: WindowsApi, process: int, rights: int = _TOKEN_QUERY) -> Iterator[int]:
    handle = np.zeros(1, "<u8")
    winapi.checked(api, "OpenProcessToken", api.OpenProcessToken(process, rights, handle.ctypes.data))
    try:
        yield int(handle[0])
    finally:
        api.CloseHandle(int(handle[0]))


def user(api: WindowsApi, process: int) -> bytes:
    """The SID of the user that a process runs as. Raises Unavailable when the system refuses."""
    information, size = np.zeros(256, "<u1"), np.zeros(1, "<u4")  # SID_AND_ATTRIBUTES, then the SID (68 bytes at most)
    with _token(api, process) as token:
        at = information.ctypes.data
        done = api.GetTokenInformation(token, _TOKEN_USER, at, len(information), size.ctypes.data)
        winapi.checked(api, "GetTokenInformation", done)
    return information[16 : int(size[0])].tobytes()


def elevated(api: WindowsApi) -> bool:
    """Whether this process runs with an administrator's full token; False when not known."""
    value, size = np.zeros(1, "<u4"), np.zeros(1, "<u4")
    try:
        with _token(api, api.GetCurrentProcess()) as token:
            done = api.GetTokenInformation(token, _TOKEN_ELEVATION, value.ctypes.data, 4, size.ctypes.data)
    except Unavailable:
        return False
    return bool(done and value[0])


def has_debug_privilege(api: WindowsApi) -> bool:
    """Whether SeDebugPrivilege is enabled in this process, not merely held; False when not known."""
    required = np.zeros(1, PRIVILEGE_SET)
    required["Count"], result = 1, np.zeros(1, "<u4")
    try:
        with _token(api, api.GetCurrentProcess()) as token:
            _look_up(api, required.ctypes.data + 8)
            done = api.PrivilegeCheck(token, required.ctypes.data, result.ctypes.data)
    except Unavailable:
        return False
    return bool(done and result[0])


def set_debug_privilege(api: WindowsApi, *, on: bool = True) -> None:
    """Enables SeDebugPrivilege, which permits this process to open those of other users, or disables it.

    Raises Unavailable: the account does not hold the privilege, or the terminal is not elevated.
    """
    wanted = np.zeros(1, LUID_AND_ATTRIBUTES)  # TOKEN_PRIVILEGES with one entry
    wanted["Count"], wanted["Attributes"] = 1, _SE_PRIVILEGE_ENABLED if on else 0
    with _token(api, api.GetCurrentProcess(), _TOKEN_ADJUST_PRIVILEGES | _TOKEN_QUERY) as token:
        _look_up(api, wanted.ctypes.data + 4)
        done = api.AdjustTokenPrivileges(token, 0, wanted.ctypes.data, 0, None, None)
        code = api.GetLastError()  # the call returns TRUE even when it assigned nothing
    if not done or code == _ERROR_NOT_ALL_ASSIGNED:
        raise Unavailable(
            f"SeDebugPrivilege could not be switched {'on' if on else 'off'} (AdjustTokenPrivileges: {code})",
            "run wstrace in an elevated terminal (Run as administrator)",
        )


def _look_up(api: WindowsApi, luid: int) -> None:
    winapi.checked(api, "LookupPrivilegeValueW", api.LookupPrivilegeValueW(None, "SeDebugPrivilege", luid))
