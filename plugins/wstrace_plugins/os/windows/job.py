"""Job: two nested jobs around a launched process, which report the processes that it and its children start.

A program may create a child that leaves its jobs, and the jobs that launchers and libuv make let every child leave.
Such a child leaves one job after the other up to the first that does not permit it, here the outer one; the inner one
permits it, as CreateProcess would fail otherwise.
While the process is suspended, the end of the tracer terminates it, so that it is not left behind.
Source: Microsoft Learn, Nested Jobs; jobapi2.h: SetInformationJobObject, QueryInformationJobObject;
winnt.h: JOBOBJECT_ASSOCIATE_COMPLETION_PORT (its messages are not guaranteed), JOBOBJECT_EXTENDED_LIMIT_INFORMATION,
JOBOBJECT_BASIC_PROCESS_ID_LIST (of nested jobs, too).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi

_PROCESS_ID_LIST, _ASSOCIATE_COMPLETION_PORT, _EXTENDED_LIMITS = 3, 7, 9  # JOBOBJECTINFOCLASS
#: JOBOBJECT_EXTENDED_LIMIT_INFORMATION: its size in bytes, and the offset of LimitFlags.
_LIMITS_BYTES, _LIMIT_FLAGS_AT = 144, 16
_BREAKAWAY_OK = 0x800  # for children that are created with CREATE_BREAKAWAY_FROM_JOB
_KILL_ON_JOB_CLOSE = 0x2000
_NEW_PROCESS = 6  # JOB_OBJECT_MSG_NEW_PROCESS
_LIST_HEAD = 8  # NumberOfAssignedProcesses, NumberOfProcessIdsInList
_MAX_MEMBERS = 1 << 16


class Job:
    """The jobs of a process that is created in them, so that its descendants are in the outer one too.

    Until release(), the end of this tracer terminates the process. Afterwards the outer job has no limits.
    pid: the process, set once it is created. handles: the outer job and the inner one, in the order in which a process
    enters them. Raises Unavailable: Windows refuses the jobs.
    """

    def __init__(self, api: WindowsApi) -> None:
        self._api, self.pid = api, 0
        self._message, self._key, self._about = np.zeros(1, "<u4"), np.zeros(1, "<u8"), np.zeros(1, "<u8")
        self._handles: list[int] = []
        try:
            made = [self._made("CreateJobObjectW", api.CreateJobObjectW(None, None)) for _ in range(2)]
            self.handles = self._outer, inner = made[0], made[1]
            self._port = self._made(
                "CreateIoCompletionPort", api.CreateIoCompletionPort(winapi.INVALID_HANDLE_VALUE, None, 0, 1)
            )
            self._set(self._outer, _ASSOCIATE_COMPLETION_PORT, np.array([1, self._port], "<u8"))
            self._limit(self._outer, _KILL_ON_JOB_CLOSE)
            self._limit(inner, _BREAKAWAY_OK)
        except BaseException:
            self.close()
            raise

    def _made(self, call: str, result: Any) -> int:
        self._handles.append(winapi.checked(self._api, call, result))
        return self._handles[-1]

    def _set(self, job: int, what: int, value: Any) -> None:
        done = self._api.SetInformationJobObject(job, what, value.ctypes.data, value.nbytes)
        winapi.checked(self._api, "SetInformationJobObject", done)

    def _limit(self, job: int, flags: int) -> None:
        limits = np.zeros(_LIMITS_BYTES, "|u1")
        limits[_LIMIT_FLAGS_AT : _LIMIT_FLAGS_AT + 4].view("<u4")[0] = flags
        self._set(job, _EXTENDED_LIMITS, limits)

    def release(self) -> None:
        """Lets the process outlive this tracer from now on. Raises Unavailable when the system refuses."""
        self._limit(self._outer, 0)

    def news(self) -> list[int]:
        """The pids of the processes that were created in the job since the last call; they may have ended by now."""
        born: list[int] = []
        places = (self._message.ctypes.data, self._key.ctypes.data, self._about.ctypes.data)
        while self._api.GetQueuedCompletionStatus(self._port, *places, 0):
            if self._message[0] == _NEW_PROCESS and int(self._about[0]) != self.pid:
                born.append(int(self._about[0]))
        return born

    def members(self) -> list[int]:
        """The pids of the processes that are in the job now; [] when the system does not say."""
        room = 256
        while room <= _MAX_MEMBERS:
            listed = np.zeros(_LIST_HEAD + 8 * room, "|u1")
            done = self._api.QueryInformationJobObject(
                self._outer, _PROCESS_ID_LIST, listed.ctypes.data, listed.nbytes, None
            )
            if done:
                pids: list[int] = listed[_LIST_HEAD:].view("<u8").tolist()
                return pids[: int(listed[4:8].view("<u4")[0])]
            if self._api.GetLastError() != winapi.ERROR_MORE_DATA:
                break
            room *= 4
        return []

    def has(self, process: int) -> bool:
        """Whether the process of a handle is in the job, because a pid may be reused before it is opened.

        True also when the system does not say. Under Wine the handle needs PROCESS_QUERY_INFORMATION.
        """
        result = np.zeros(1, "<u4")
        known = self._api.IsProcessInJob(process, self._outer, result.ctypes.data)
        return bool(result[0]) or not known

    def close(self) -> None:
        """Closes the handles. The processes go on and stay in the job; before release() they are terminated."""
        for handle in self._handles:
            self._api.CloseHandle(handle)
        self._handles.clear()
