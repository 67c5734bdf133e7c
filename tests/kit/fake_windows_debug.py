"""The part of the fake Windows that a debugger talks to: scripted births and ends in the family of a launcher."""

from __future__ import annotations

from typing import Any

import numpy as np
from fake_windows_system import FakeSystem, at

from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.layouts import DEBUG_EVENT

_CREATED, _ENDED, _LOADED, _WRONG = 3, 5, 6, 1
_PARAMETERS = 0x2000


class FakeDebugging(FakeSystem):
    """debug_events: (code, pid), (1, pid, exception) or (5, pid, exit code) still to be told, each after the last one.

    debugged: who is; suspended: whose thread was; continued: (pid, status). no_comparison: a Windows before 10.
    """

    def __init__(self, pointer: int) -> None:
        super().__init__(pointer)
        self.debug_events: list[tuple[int, ...]] = []
        self.debugged: set[int] = set()
        self.suspended: list[int] = []
        self.continued: list[tuple[int, int]] = []
        self.no_comparison = False
        self._outputs: dict[int, str] = {}
        self._threads: dict[int, int] = {}
        self._told = 0

    def WaitForDebugEvent(self, event: int, milliseconds: int) -> int:
        """The next event; 121 (ERROR_SEM_TIMEOUT) when there is none."""
        assert not self._told, "the last one was not continued"
        if not self.debug_events:
            return self._fail(121)
        code, pid, *details = self.debug_events.pop(0)
        row = at(event, DEBUG_EVENT[self.POINTER], 1)[0]
        row["dwDebugEventCode"], row["dwProcessId"], row["dwThreadId"] = code, pid, pid + 1
        if code == _WRONG:
            row["ExceptionCode"] = details[0]
        if code in (_CREATED, _LOADED):
            row["hFile"] = self._handle(-1)
        if code == _CREATED:
            self.debugged.add(pid)
            row["hProcess"] = pid << 20  # the system closes it
            row["hThread"] = pid << 20 | 4
        if code == _ENDED:
            row["dwExitCode"] = np.array(details or [0], "<u4").view("<i4")[0]
            self.debugged.discard(pid)
        self._told = pid
        return 1

    def _held(self, handle: int) -> tuple[int, int]:
        return (handle >> 20, 0xFFFFFFFF) if handle >= 1 << 20 else super()._held(handle)

    def _handle(self, of: int) -> int:
        self.opened += 4
        self.handles[self.opened] = (of, 0)
        return self.opened

    def ContinueDebugEvent(self, pid: int, tid: int, status: int) -> int:
        """The process of the last event runs on."""
        assert (pid, tid) == (self._told, self._told + 1)
        self.continued.append((pid, status))
        self._told = 0
        return 1

    def DebugActiveProcessStop(self, pid: int) -> int:
        """It is debugged no more; 87 for one that is not."""
        if pid not in self.debugged:
            return self._fail(winapi.ERROR_INVALID_PARAMETER)
        self.debugged.discard(pid)
        return 1

    def SuspendThread(self, thread: int) -> int:
        """Its suspend count before: 0. While the event is not continued it cannot have run."""
        assert self._told == thread >> 20
        self.suspended.append(thread >> 20)
        return 0

    # -- standard outputs -----------------------------------------------------------------------------------------

    def GetStdHandle(self, which: int) -> int:
        """Ours."""
        output = self.processes[1].output if 1 in self.processes else ""
        self._outputs[0x51] = output
        return 0x51 if output else 0

    def reads_peb(self, process: Any, address: int, buffer: int) -> bool:
        """The PEB at 0x1000, whose parameters at 0x2000 hold the standard output: a number of the process's own."""
        values = {0x1000 + 0x20: _PARAMETERS, _PARAMETERS + 0x28: 0x60 if process.output else 0}
        if address in values:
            at(buffer, "<u8", 1)[0] = values[address]
        return address in values

    def DuplicateHandle(
        self, source: int, handle: int, target: int, copy: int, rights: int, inherit: int, options: int
    ) -> int:
        """A handle of ours on the same object."""
        if handle != 0x60:
            return self._fail(winapi.ERROR_INVALID_HANDLE)
        ours = self._handle(-1)
        self._outputs[ours] = self.processes[self._held(source)[0]].output
        at(copy, "<u8", 1)[0] = ours
        return 1

    def CompareObjectHandles(self, one: int, other: int) -> int:
        """Whether both are on one object."""
        if self.no_comparison:
            raise winapi.failed("CompareObjectHandles", winapi.ERROR_PROC_NOT_FOUND)
        return int(self._outputs[one] == self._outputs[other])
