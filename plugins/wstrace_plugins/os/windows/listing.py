"""Lists all processes with their names and working sets, even those that cannot be opened.

Source: Microsoft Learn, NtQuerySystemInformation (SYSTEM_PROCESS_INFORMATION; its Reserved members are as in phnt),
tlhelp32.h, LookupAccountSidW.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from wstrace.errors import Unavailable
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows import token
from wstrace_plugins.os.windows.layouts import SYSTEM_PROCESS_INFORMATION
from wstrace_plugins.os.windows.paths import utf16

_PROCESS_INFORMATION = 5  # SYSTEM_INFORMATION_CLASS
_STATUS_INFO_LENGTH_MISMATCH = 0xC000_0004
_FIRST_BYTES, _MAX_BYTES = 1 << 19, 1 << 27
_NAME_CHARS = 256
_MAX_ACCOUNTS = 256
#: api -> SID -> name
_accounts: WeakKeyDictionary[Any, dict[bytes, str]] = WeakKeyDictionary()


class Listed(NamedTuple):
    """A process: its pid, its name, and the size of its working set in bytes."""

    pid: int
    name: str
    resident: int


def listed(api: WindowsApi) -> list[Listed]:
    """Every process with a working set. Raises Unavailable when the system refuses the listing."""
    try:
        return _by_system_information(api)
    except Unavailable:  # Wine
        return list(_by_handles(api))


def user_name(api: WindowsApi, pid: int) -> str:
    """`DOMAIN\\name` of the user that a process runs as; "" when its token is refused or the name is not known."""
    try:
        with processes.opened(api, pid, winapi.PROCESS_QUERY_LIMITED_INFORMATION) as handle:
            return _account(api, token.user(api, handle))
    except Unavailable:
        return ""


def _account(api: WindowsApi, sid: bytes) -> str:
    accounts = _accounts.setdefault(api, {})  # cached, because a lookup may ask a server of the domain
    if sid not in accounts:
        if len(accounts) >= _MAX_ACCOUNTS:
            accounts.clear()
        accounts[sid] = _looked_up(api, sid)
    return accounts[sid]


def _looked_up(api: WindowsApi, sid: bytes) -> str:
    name, domain = np.zeros(_NAME_CHARS, "<u2"), np.zeros(_NAME_CHARS, "<u2")
    sizes, use, bytes_ = np.full(2, _NAME_CHARS, "<u4"), np.zeros(1, "<u4"), np.frombuffer(sid, "u1").copy()
    done = api.LookupAccountSidW(
        None, bytes_.ctypes.data, name.ctypes.data, sizes.ctypes.data, domain.ctypes.data, sizes.ctypes.data + 4,
        use.ctypes.data,
    )  # fmt: skip
    if not done:
        return ""
    parts = [utf16(text).partition("\0")[0] for text in (domain, name)]
    return "\\".join(part for part in parts if part)


def _by_system_information(api: WindowsApi) -> list[Listed]:
    size = _FIRST_BYTES
    while True:
        buffer, needed = np.zeros(size, "u1"), np.zeros(1, "<u4")
        status = api.NtQuerySystemInformation(_PROCESS_INFORMATION, buffer.ctypes.data, size, needed.ctypes.data)
        if status >= 0:
            return list(_entries(api, buffer))
        if status & 0xFFFF_FFFF != _STATUS_INFO_LENGTH_MISMATCH or size >= _MAX_BYTES:
            raise winapi.failed("NtQuerySystemInformation", api.RtlNtStatusToDosError(status))
        size = min(max(2 * size, int(needed[0]) + int(needed[0]) // 4), _MAX_BYTES)


def _entries(api: WindowsApi, buffer: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Iterator[Listed]:
    layout, at, base = SYSTEM_PROCESS_INFORMATION, 0, buffer.ctypes.data
    while at + layout.itemsize <= len(buffer):
        entry = buffer[at : at + layout.itemsize].view(layout)[0]
        start, length = int(entry["ImageNameBuffer"]) - base, int(entry["ImageNameLength"])
        named = start >= 0 and start + length <= len(buffer)
        name = utf16(buffer[start : start + length]) if named and length else ""
        pid, resident = int(entry["UniqueProcessId"]), int(entry["WorkingSetSize"])
        if pid and resident:
            yield Listed(pid, name or ("System" if pid == 4 else f"pid {pid}"), resident)
        if not entry["NextEntryOffset"]:
            return
        at += int(entry["NextEntryOffset"])


def _by_handles(api: WindowsApi) -> Iterator[Listed]:
    """Lists the pids and opens each process; processes that cannot be opened are left out."""
    for pid, _ in processes.parents(api):
        try:
            with processes.opened(api, pid, winapi.PROCESS_QUERY_LIMITED_INFORMATION) as handle:
                counters, name = processes.counters(api, handle), processes.name(api, handle, pid)
        except Unavailable:
            continue
        if counters is not None and counters.working_set:
            yield Listed(pid, name, counters.working_set)
