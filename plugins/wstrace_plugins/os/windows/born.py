"""Holds the program that a launcher starts before its first instruction.

Only `py` knows which Python it starts, and `uv run` knows it only once it has made the environment. Therefore the
launcher runs with us as its debugger: the system stops each new descendant before its first instruction until we have
checked it. The launcher's program stays stopped, like a launched one, and the debugger detaches.
Source: Microsoft Learn, "Debugging Events", WaitForDebugEvent, DebugActiveProcessStop; winternl.h and phnt: PEB,
RTL_USER_PROCESS_PARAMETERS.
"""

from __future__ import annotations

import ntpath
from typing import Any, NamedTuple

import numpy as np

from wstrace.errors import Unavailable
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import launchers
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.interface import WindowsApi
from wstrace_plugins.os.windows.layouts import DEBUG_EVENT, PROCESS_BASIC_INFORMATION

DEBUG_PROCESS = 1  # processthreadsapi.h: its children are debugged too
_EXCEPTION, _CREATE_PROCESS, _EXIT_PROCESS, _LOAD_DLL = 1, 3, 5, 6
_CONTINUE, _NOT_HANDLED = 0x0001_0002, 0x8001_0001  # DBG_CONTINUE, DBG_EXCEPTION_NOT_HANDLED
_BREAKPOINTS = (0x8000_0003, 0x4000_001F)  # raised by the loader under a debugger; the second in a 32-bit process
_SLICE_MS, _STRAY_MS = 200, 20  # a wait cannot be interrupted
_TIMEOUT = 121  # ERROR_SEM_TIMEOUT
_STANDARD_OUTPUT, _DUPLICATE_SAME_ACCESS = 0xFFFF_FFF5, 2  # STD_OUTPUT_HANDLE = -11
_CONSOLES = ("conhost.exe", "openconsole.exe")  # children of a process without a console
#: The offset of ProcessParameters in a 64-bit PEB, and of StandardOutput in these.
_PARAMETERS_AT, _OUTPUT_AT = 0x20, 0x28


class Born(NamedTuple):
    """The program that a launcher started, which is suspended and no longer debugged.

    Attributes:
        pid: the process.
        name: the file name of its executable.
        launchers: the pids of the launchers between us and it, which only wait for it.
    """

    pid: int
    name: str
    launchers: tuple[int, ...]


class _Debugger:
    """Debugs a launcher and its descendants, on the thread that created it, as WaitForDebugEvent requires."""

    def __init__(self, api: WindowsApi) -> None:
        self._api = api
        self._event = np.zeros(1, DEBUG_EVENT[api.POINTER])
        self.living: dict[int, str] = {}  # pid -> file name of the executable

    def next(self, milliseconds: int) -> Any:
        """The next DEBUG_EVENT, or None within `milliseconds`. Raises Unavailable when no process is debugged."""
        if self._api.WaitForDebugEvent(self._event.ctypes.data, milliseconds):
            event = self._event[0]
            if event["dwDebugEventCode"] in (_CREATE_PROCESS, _LOAD_DLL) and event["hFile"]:
                self._api.CloseHandle(int(event["hFile"]))
            return event
        if (code := self._api.GetLastError()) != _TIMEOUT:
            raise winapi.failed("WaitForDebugEvent", code)
        return None

    def go_on(self, event: Any) -> None:
        """Lets the process of an event continue as without a debugger."""
        theirs = event["dwDebugEventCode"] == _EXCEPTION and event["ExceptionCode"] not in _BREAKPOINTS
        status = _NOT_HANDLED if theirs else _CONTINUE
        self._api.ContinueDebugEvent(int(event["dwProcessId"]), int(event["dwThreadId"]), status)

    def leave(self) -> None:
        """Detaches from all processes, including those whose creation has not been reported yet."""
        for pid in self.living:
            self._api.DebugActiveProcessStop(pid)
        try:
            while (event := self.next(_STRAY_MS)) is not None:
                self.go_on(event)
                self._api.DebugActiveProcessStop(int(event["dwProcessId"]))
        except Unavailable:
            return


def held(api: WindowsApi, pid: int, name: str) -> Born:
    """Lets a launcher run until it starts its program, and returns that, suspended.

    A child that is a launcher itself (a venv's python.exe, a shim) runs on. So does a child whose standard output is
    not the same as ours, because `uv run` first runs interpreters to query them.

    Args:
        api: wstrace_plugins.os.windows.api or a stand-in.
        pid: the launcher, which this thread created with DEBUG_PROCESS and resumed.
        name: the launcher's name, for the error.

    Raises:
        Unavailable: the launcher ended without starting a program.
    """
    debugger = _Debugger(api)
    while True:
        event = debugger.next(_SLICE_MS)
        if event is None:
            continue
        who, kind = int(event["dwProcessId"]), event["dwDebugEventCode"]
        if kind == _CREATE_PROCESS:
            image = processes.image(api, int(event["hProcess"]))
            debugger.living[who] = ntpath.basename(image) or f"pid {who}"
            if who != pid and _is_meant(api, image, int(event["hProcess"])):
                api.SuspendThread(int(event["hThread"]))
                debugger.go_on(event)
                debugger.leave()
                return Born(who, debugger.living.pop(who), tuple(debugger.living))
        elif kind == _EXIT_PROCESS:
            debugger.living.pop(who, None)
            if who == pid:
                code = int(event["dwExitCode"])  # before the next event takes its place
                debugger.go_on(event)
                debugger.leave()
                raise Unavailable(
                    f"{name} ended without starting a program: there was nothing to trace (exit code {code})",
                    "give the program that it should start",
                )
        debugger.go_on(event)


def _is_meant(api: WindowsApi, image: str, process: int) -> bool:
    if launchers.read(image) or launchers.venv_base(image) or launchers.decides_at_run_time(image, ["run"]):
        return False
    return ntpath.basename(image).lower() not in _CONSOLES and _writes_where_we_write(api, process)


def _writes_where_we_write(api: WindowsApi, process: int) -> bool:
    """Whether a process's standard output, if any, is the same pipe, file or console as ours; True when not known."""
    ours = api.GetStdHandle(_STANDARD_OUTPUT)
    if not ours or ours == winapi.INVALID_HANDLE_VALUE or api.POINTER != 8:
        return True
    basic, place = np.zeros(1, PROCESS_BASIC_INFORMATION[8]), np.zeros(1, "<u8")
    api.NtQueryInformationProcess(process, 0, basic.ctypes.data, basic.nbytes, None)
    at = int(basic["PebBaseAddress"][0])
    for offset in (_PARAMETERS_AT, _OUTPUT_AT):
        if not at or not api.ReadProcessMemory(process, at + offset, place.ctypes.data, 8, None):
            return True
        at = int(place[0])
    copy = np.zeros(1, "<u8")
    us = api.GetCurrentProcess()
    if not api.DuplicateHandle(process, at, us, copy.ctypes.data, 0, 0, _DUPLICATE_SAME_ACCESS):
        return True  # it has none, as a program with windows
    try:
        return bool(api.CompareObjectHandles(ours, int(copy[0])))
    except Unavailable:  # before Windows 10
        return True
    finally:
        api.CloseHandle(int(copy[0]))
