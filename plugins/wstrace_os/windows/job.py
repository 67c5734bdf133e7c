"""Births in the family of a launched process, told by a job object when they happen.

Source: Microsoft Learn, jobapi2.h: AssignProcessToJobObject, SetInformationJobObject; winnt.h:
JOBOBJECT_ASSOCIATE_COMPLETION_PORT, JOBOBJECT_EXTENDED_LIMIT_INFORMATION.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wstrace_os.windows import api as winapi

_RIGHTS = winapi.PROCESS_SET_QUOTA | winapi.PROCESS_TERMINATE  # what its page asks for
_ASSOCIATE_COMPLETION_PORT, _EXTENDED_LIMITS = 7, 9  # JOBOBJECTINFOCLASS
#: JOBOBJECT_EXTENDED_LIMIT_INFORMATION: bytes by pointer width, and where LimitFlags stands
_LIMITS_BYTES, _LIMIT_FLAGS_AT = {8: 144, 4: 112}, 16
_BREAKAWAY_OK = 0x800  # else a child that asks to be outside of its parent's job could not be made
_NEW_PROCESS = 6  # JOB_OBJECT_MSG_NEW_PROCESS


class Job:
    """A job without limits around a process that has not run yet: its descendants are born into it.

    Args:
        api: wstrace_os.windows.api or a stand-in.
        pid: the process.

    Raises:
        Unavailable: Windows lets the process into no job of ours (it may be in one that forbids it).
    """

    def __init__(self, api: Any, pid: int) -> None:
        self._api, self._pid = api, pid
        self._message, self._key, self._about = np.zeros(1, "<u4"), np.zeros(1, "<u8"), np.zeros(1, "<u8")
        self._handles: list[int] = []
        try:
            self._job = self._made("CreateJobObjectW", api.CreateJobObjectW(None, None))
            self._port = self._made(
                "CreateIoCompletionPort", api.CreateIoCompletionPort(winapi.INVALID_HANDLE_VALUE, None, 0, 1)
            )
            limits = np.zeros(_LIMITS_BYTES[api.POINTER], "|u1")
            limits[_LIMIT_FLAGS_AT : _LIMIT_FLAGS_AT + 4].view("<u4")[0] = _BREAKAWAY_OK
            self._set(_EXTENDED_LIMITS, limits)
            self._set(_ASSOCIATE_COMPLETION_PORT, np.array([1, self._port], f"<u{api.POINTER}"))
            process = winapi.open_process(api, pid, _RIGHTS)
            try:
                self._made("AssignProcessToJobObject", api.AssignProcessToJobObject(self._job, process), keep=False)
            finally:
                api.CloseHandle(process)
        except BaseException:
            self.close()
            raise

    def _made(self, call: str, result: Any, *, keep: bool = True) -> int:
        if not result:
            raise winapi.failed(call, self._api.GetLastError(), f"for pid {self._pid}")
        if keep:
            self._handles.append(int(result))
        return int(result)

    def _set(self, what: int, value: Any) -> None:
        done = self._api.SetInformationJobObject(self._job, what, value.ctypes.data, value.nbytes)
        self._made("SetInformationJobObject", done, keep=False)

    def news(self) -> bool:
        """Whether a process was born in it since the last call."""
        born = False
        places = (self._message.ctypes.data, self._key.ctypes.data, self._about.ctypes.data)
        while self._api.GetQueuedCompletionStatus(self._port, *places, 0):
            born |= self._message[0] == _NEW_PROCESS and int(self._about[0]) != self._pid
        return bool(born)

    def close(self) -> None:
        """Closes the handles: its processes go on, and stay in the job."""
        for handle in self._handles:
            self._api.CloseHandle(handle)
        self._handles.clear()
