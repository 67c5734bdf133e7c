"""The functions of Windows that wstrace calls, under their own names, and errors that name them.

Pointers are passed as integers (`array.ctypes.data`). The PSAPI functions are taken from psapi.dll, as Microsoft
recommends for portability: it exports them on every Windows, while kernel32's K32 names came with Windows 7.
A parameter `api` takes this module, or a stand-in with the same functions.
Sources: Microsoft Learn, pages of psapi.h, memoryapi.h, processthreadsapi.h, libloaderapi.h; codes of winerror.h.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_size_t, c_uint32, c_void_p, c_wchar_p
from functools import partial

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.foreign import Foreign, WindowsApi

# -- rights, PROCESS_* of winnt.h ---------------------------------------------------------------------------------
PROCESS_TERMINATE = 0x0001
PROCESS_VM_READ = 0x0010
PROCESS_SET_QUOTA = 0x0100
PROCESS_SET_INFORMATION = 0x0200
PROCESS_QUERY_INFORMATION = 0x0400
PROCESS_QUERY_LIMITED_INFORMATION = 0x1000
SYNCHRONIZE = 0x0010_0000

#: The rights for a snapshot and for the names of mapped files.
QUERY_RIGHTS = PROCESS_QUERY_INFORMATION | PROCESS_VM_READ
#: The rights for the watch. Microsoft's page of InitializeProcessForWsWatch omits SET_INFORMATION, but the kernel
#: requires it (observed).
WATCH_RIGHTS = QUERY_RIGHTS | PROCESS_SET_INFORMATION | SYNCHRONIZE
#: The rights for EmptyWorkingSet, whose page requires SET_QUOTA.
EMPTY_RIGHTS = QUERY_RIGHTS | PROCESS_SET_QUOTA

# -- error codes --------------------------------------------------------------------------------------------------
ERROR_ACCESS_DENIED = 5
ERROR_INVALID_HANDLE = 6
ERROR_BAD_LENGTH = 24
ERROR_GEN_FAILURE = 31
ERROR_INVALID_PARAMETER = 87
ERROR_CALL_NOT_IMPLEMENTED = 120
ERROR_INSUFFICIENT_BUFFER = 122
ERROR_PARTIAL_COPY = 299
ERROR_MORE_DATA = 234
ERROR_NO_MORE_ITEMS = 259
ERROR_NOACCESS = 998

DENIED = (
    "run wstrace in an elevated terminal (Run as administrator), or as the user who owns the process; "
    "an administrator may add --debug-privilege; nothing opens a protected process (antivirus, parts of the system)"
)

STRIPPED = "security software takes rights from handles: exempt python.exe there"

# -- memory, winnt.h ----------------------------------------------------------------------------------------------
MEM_COMMIT, MEM_RESERVE, MEM_FREE = 0x1000, 0x2000, 0x1_0000
MEM_PRIVATE, MEM_MAPPED, MEM_IMAGE = 0x2_0000, 0x4_0000, 0x100_0000
MEM_RELEASE = 0x8000
MEM_WRITE_WATCH = 0x20_0000
PAGE_NOACCESS, PAGE_READONLY, PAGE_READWRITE, PAGE_WRITECOPY = 0x01, 0x02, 0x04, 0x08
PAGE_EXECUTE, PAGE_EXECUTE_READ, PAGE_EXECUTE_READWRITE, PAGE_EXECUTE_WRITECOPY = 0x10, 0x20, 0x40, 0x80
PAGE_GUARD = 0x100
WRITE_WATCH_FLAG_RESET = 1

INVALID_HANDLE_VALUE = ctypes.c_void_p(-1).value

_advapi32, _kernel32, _ntdll, _psapi, _winmm = (
    partial(Foreign, f"{name}.dll") for name in ("advapi32", "kernel32", "ntdll", "psapi", "winmm")
)

# -- psapi.dll ----------------------------------------------------------------------------------------------------
InitializeProcessForWsWatch = _psapi("InitializeProcessForWsWatch", c_int32, c_void_p)
#: The third argument is a pointer (PDWORD, in and out).
GetWsChangesEx = _psapi("GetWsChangesEx", c_int32, c_void_p, c_void_p, c_void_p, short=True)
QueryWorkingSet = _psapi("QueryWorkingSet", c_int32, c_void_p, c_void_p, c_uint32)
QueryWorkingSetEx = _psapi("QueryWorkingSetEx", c_int32, c_void_p, c_void_p, c_uint32)
EmptyWorkingSet = _psapi("EmptyWorkingSet", c_int32, c_void_p)
GetMappedFileNameW = _psapi("GetMappedFileNameW", c_uint32, c_void_p, c_void_p, c_void_p, c_uint32)
GetProcessMemoryInfo = _psapi("GetProcessMemoryInfo", c_int32, c_void_p, c_void_p, c_uint32, short=True)

# -- kernel32.dll -------------------------------------------------------------------------------------------------
OpenProcess = _kernel32("OpenProcess", c_void_p, c_uint32, c_int32, c_uint32)
CloseHandle = _kernel32("CloseHandle", c_int32, c_void_p)
GetCurrentProcess = _kernel32("GetCurrentProcess", c_void_p)
GetCurrentProcessId = _kernel32("GetCurrentProcessId", c_uint32)
GetExitCodeProcess = _kernel32("GetExitCodeProcess", c_int32, c_void_p, c_void_p)
#: Four FILETIMEs in units of 100 ns: created, exited, kernel, user.
GetProcessTimes = _kernel32("GetProcessTimes", c_int32, *[c_void_p] * 5)
NtResumeProcess = _ntdll("NtResumeProcess", c_int32, c_void_p)
WaitForSingleObject = _kernel32("WaitForSingleObject", c_uint32, c_void_p, c_uint32)
#: Its timeout is 0 here.
WaitForMultipleObjects = _kernel32(
    "WaitForMultipleObjects", c_uint32, c_uint32, c_void_p, c_int32, c_uint32, short=True
)
TerminateProcess = _kernel32("TerminateProcess", c_int32, c_void_p, c_uint32)
GetProcessId = _kernel32("GetProcessId", c_uint32, c_void_p)
#: ProcessBasicInformation = 0; returns an NTSTATUS.
NtQueryInformationProcess = _ntdll(
    "NtQueryInformationProcess", c_int32, c_void_p, c_int32, c_void_p, c_uint32, c_void_p
)
#: SystemProcessInformation = 5; returns an NTSTATUS.
NtQuerySystemInformation = _ntdll("NtQuerySystemInformation", c_int32, c_int32, c_void_p, c_uint32, c_void_p)
RtlNtStatusToDosError = _ntdll("RtlNtStatusToDosError", c_uint32, c_int32)
#: The true version, whatever the manifest of the calling program says.
RtlGetVersion = _ntdll("RtlGetVersion", c_int32, c_void_p)
GetCurrentThread = _kernel32("GetCurrentThread", c_void_p)
SetThreadPriority = _kernel32("SetThreadPriority", c_int32, c_void_p, c_int32)
timeBeginPeriod = _winmm("timeBeginPeriod", c_uint32, c_uint32)
timeEndPeriod = _winmm("timeEndPeriod", c_uint32, c_uint32)
QueryFullProcessImageNameW = _kernel32("QueryFullProcessImageNameW", c_int32, c_void_p, c_uint32, c_void_p, c_void_p)
VirtualAlloc = _kernel32("VirtualAlloc", c_void_p, c_void_p, c_size_t, c_uint32, c_uint32)
VirtualFree = _kernel32("VirtualFree", c_int32, c_void_p, c_size_t, c_uint32)
VirtualQueryEx = _kernel32("VirtualQueryEx", c_size_t, c_void_p, c_void_p, c_void_p, c_size_t)
ReadProcessMemory = _kernel32("ReadProcessMemory", c_int32, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p)
#: lpdwCount is a ULONG_PTR, in and out, in elements; lpdwGranularity is a ULONG of 4 bytes.
GetWriteWatch = _kernel32("GetWriteWatch", c_uint32, c_uint32, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p)
QueryDosDeviceW = _kernel32("QueryDosDeviceW", c_uint32, c_wchar_p, c_void_p, c_uint32)

CreateJobObjectW = _kernel32("CreateJobObjectW", c_void_p, c_void_p, c_wchar_p)
SetInformationJobObject = _kernel32("SetInformationJobObject", c_int32, c_void_p, c_int32, c_void_p, c_uint32)
CreateIoCompletionPort = _kernel32("CreateIoCompletionPort", c_void_p, c_void_p, c_void_p, c_size_t, c_uint32)
#: For a job's message it returns the number of the message, the key of the port, and the pid. Its timeout is 0 here.
GetQueuedCompletionStatus = _kernel32("GetQueuedCompletionStatus", c_int32, *[c_void_p] * 4, c_uint32, short=True)

IsProcessInJob = _kernel32("IsProcessInJob", c_int32, c_void_p, c_void_p, c_void_p)
QueryInformationJobObject = _kernel32(
    "QueryInformationJobObject", c_int32, c_void_p, c_int32, c_void_p, c_uint32, c_void_p
)

CreateProcessW = _kernel32("CreateProcessW", c_int32, c_wchar_p, *[c_void_p] * 3, c_int32, c_uint32, *[c_void_p] * 4)
InitializeProcThreadAttributeList = _kernel32(
    "InitializeProcThreadAttributeList", c_int32, c_void_p, c_uint32, c_uint32, c_void_p
)
UpdateProcThreadAttribute = _kernel32(
    "UpdateProcThreadAttribute", c_int32, c_void_p, c_uint32, *[c_size_t, c_void_p] * 2, c_void_p
)

# -- advapi32.dll -------------------------------------------------------------------------------------------------
OpenProcessToken = _advapi32("OpenProcessToken", c_int32, c_void_p, c_uint32, c_void_p)
#: TokenUser = 1 is a TOKEN_USER, whose first member points to the SID that follows it.
GetTokenInformation = _advapi32("GetTokenInformation", c_int32, c_void_p, c_uint32, c_void_p, c_uint32, c_void_p)
LookupPrivilegeValueW = _advapi32("LookupPrivilegeValueW", c_int32, c_wchar_p, c_wchar_p, c_void_p)
AdjustTokenPrivileges = _advapi32(
    "AdjustTokenPrivileges", c_int32, c_void_p, c_int32, c_void_p, c_uint32, c_void_p, c_void_p
)
PrivilegeCheck = _advapi32("PrivilegeCheck", c_int32, c_void_p, c_void_p, c_void_p)


def GetLastError() -> int:  # noqa: N802 - the system's own name
    """The error code of this thread's last call, which ctypes keeps under use_last_error."""
    return int(ctypes.get_last_error())  # type: ignore[attr-defined, unused-ignore]


def meaning(code: int) -> str:
    """The meaning of an error code, such as `ERROR_ACCESS_DENIED`, or the system's text for it."""
    names = (name for name, value in globals().items() if name.startswith("ERROR_") and value == code)
    return next(names, "") or getattr(ctypes, "FormatError", lambda n: "unknown")(code)


def failed(call: str, code: int, what: str = "") -> Unavailable:
    """The error to raise for a failed call, which names the call, the code, its meaning and what to do.

    call: the name of the function. code: the error code, from GetLastError(). what: the subject of the call, such as
    `of pid 12`.
    """
    why = f"{call}{f' {what}' if what else ''} failed with {code} ({meaning(code)})"
    if code != ERROR_ACCESS_DENIED:
        return Unavailable(why)
    # OpenProcess gives all rights that it was asked for, or none
    return Unavailable(why, DENIED if call.startswith("Open") else STRIPPED if what else "")


def checked(api: WindowsApi, call: str, result: int | None) -> int:
    """The result of a call. Raises Unavailable: it is 0, and the call has failed."""
    if not result:
        raise failed(call, api.GetLastError())
    return result


def open_process(api: WindowsApi, pid: int, rights: int) -> int:
    """A handle on a process; the caller closes it with CloseHandle.

    Raises TargetExited: there is no such process; Unavailable: access is refused.
    """
    handle = api.OpenProcess(rights, 0, pid)
    if not handle:
        code = api.GetLastError()
        if code == ERROR_INVALID_PARAMETER:
            raise TargetExited(f"no process has the id {pid}")
        raise failed("OpenProcess", code, f"of pid {pid}")
    if api.GetProcessId(handle) not in (0, pid):  # OpenProcess ignores the lowest two bits of a pid
        api.CloseHandle(handle)
        raise TargetExited(f"no process has the id {pid}")
    return int(handle)
