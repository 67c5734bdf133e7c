"""The level of this Windows: whether it reports faults of kernel code.

Since Windows 11 24H2 and Server 2025, GetWsChangesEx omits every record with a kernel address, without counting it,
unless SeDebugPrivilege is enabled in the caller.
"""

from __future__ import annotations

from contextlib import suppress

from wstrace.errors import Unavailable
from wstrace.interfaces import Level
from wstrace.schema import FAULT_PC_KERNEL
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows import token
from wstrace_plugins.os.windows.interface import WindowsApi
from wstrace_plugins.page_faults.windows.watch import Watch

FIRST_FILTERED_BUILD = 26100  # Windows 11 24H2, Server 2025
_PAGE = 4096
FULL = Level("full")


def tried(api: WindowsApi) -> Level:
    """The level, `full` or `user`, tried on the calling process, whose watch then stays on. Raises Unavailable."""
    watch = Watch(api, api.GetCurrentProcessId())
    try:
        shown = processes.build(api) < FIRST_FILTERED_BUILD or _shows_kernel(api, watch)
    finally:
        watch.close()
    return FULL if shown else _hidden(api)


def expected(api: WindowsApi) -> Level:
    """The level by the build of Windows and our privilege, without a trial, as a session may be using our watch."""
    filtered = processes.build(api) >= FIRST_FILTERED_BUILD and not token.has_debug_privilege(api)
    return _hidden(api) if filtered else FULL


def known(api: WindowsApi) -> Level:
    """The level by expected(); when that is not `full`, by a trial, because a later Windows may omit nothing."""
    level = expected(api)
    if level.name != "full":
        with suppress(Unavailable):  # another session of this process uses our watch
            return tried(api)
    return level


def _hidden(api: WindowsApi) -> Level:
    if token.has_debug_privilege(api):
        return Level(
            "user", "a fault taken by kernel code did not show although SeDebugPrivilege is on; why is not known"
        )
    return Level(
        "user",
        "this Windows (24H2 or later) leaves out faults taken by kernel code unless SeDebugPrivilege is on",
        "run wstrace in an elevated terminal (Run as administrator) with --debug-privilege",
    )


def _shows_kernel(api: WindowsApi, watch: Watch) -> bool:
    """Lets kernel code write into a fresh page of ours; returns whether that fault is recorded as one of the kernel."""
    place = api.VirtualAlloc(None, _PAGE, winapi.MEM_RESERVE | winapi.MEM_COMMIT, winapi.PAGE_READWRITE)
    if not place:
        raise Unavailable("VirtualAlloc of 4096 bytes failed: no trial of the watch", "free some memory")
    try:
        watch.drain()  # a full buffer records nothing
        source = watch.place  # any readable memory of ours
        api.ReadProcessMemory(api.GetCurrentProcess(), source, place, 8, None)
        columns = watch.drain().columns
    finally:
        api.VirtualFree(place, 0, winapi.MEM_RELEASE)
    ours = columns["va"] - columns["va"] % _PAGE == place
    return bool((columns["flags"][ours] & FAULT_PC_KERNEL).any())
