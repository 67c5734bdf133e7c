"""The part of the fake Windows that is not about one process's memory: listings, jobs, tokens, the system itself."""

import ctypes
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.layouts import (
    OSVERSIONINFOW,
    PROCESS_BASIC_INFORMATION,
    PROCESS_INFORMATION,
    STARTUPINFOEXW,
    SYSTEM_PROCESS_INFORMATION,
)

BREAKAWAY_OK, SILENT_BREAKAWAY_OK, KILL_ON_JOB_CLOSE = 0x800, 0x1000, 0x2000


@dataclass(slots=True, eq=False)
class FakeJob:
    """A job object: its members with those of its child jobs, its limits, the messages that its completion port holds.

    parent: the job that it is nested in. nests: whether it may be in others and have others in it (no UI limits).
    """

    members: set[int] = field(default_factory=set)
    limits: int = 0
    parent: "FakeJob | None" = None
    nests: bool = True
    port: int = 0
    messages: list[tuple[int, int]] = field(default_factory=list)


class FakeSystem:
    """What FakeWindows inherits. `processes`, `handles`, `opened` and `_fail` are FakeWindows' own."""

    processes: dict[int, Any]
    handles: dict[int, tuple[int, int]]
    opened: int

    def __init__(self) -> None:
        self.build = 19045
        self.drives = {"C:": "\\Device\\HarddiskVolume3"}
        self.wanted = []
        self.privileges = set()  # switched on
        self.held = {"SeDebugPrivilege"}  # may be switched on
        self.jobs = {}
        self.no_listing = False
        self.no_jobs = False  # as on a machine whose own jobs let nobody in
        self.no_job_lists = False  # as before Windows 10
        self.missing = 0  # the error code of a program that cannot be started
        self.created = []  # (path, command line, flags, environment)
        self.lost_messages = False  # a job's messages are not guaranteed
        self._job_lists = {}
        self.priorities, self.periods = [], []
        self.timeBeginPeriod, self.timeEndPeriod = self.periods.append, self.periods.remove
        self._tokens = {}
        self._error = threading.local()

    def _fail(self, code: int) -> int:
        self._error.code = code
        return 0

    def _held(self, handle: int) -> tuple[int, int]:
        """(process, rights) of a handle; the pseudo handle -1 is process 1, with all rights."""
        return (1, 0xFFFFFFFF) if handle == -1 else self.handles.get(handle, (0, 0))

    def GetLastError(self) -> int:
        """As kernel32's: each thread has its own."""
        return getattr(self._error, "code", 0)

    # -- the system -----------------------------------------------------------------------------------------------

    def RtlGetVersion(self, information: int) -> int:
        """The build; STATUS_SUCCESS."""
        at(information, OSVERSIONINFOW, 1)["dwBuildNumber"] = self.build
        return 0

    def RtlNtStatusToDosError(self, status: int) -> int:
        """ERROR_ACCESS_DENIED for STATUS_ACCESS_DENIED, else ERROR_MR_MID_NOT_FOUND."""
        return 5 if status & 0xFFFFFFFF == 0xC0000022 else 317

    def QueryDosDeviceW(self, name: str, buffer: int, chars: int) -> int:
        """The device of a drive letter or a volume, with its two closing zeros."""
        self.wanted.append(name)
        device = self.drives.get(name)
        return write_utf16(buffer, device + "\0\0", chars) if device else self._fail(2)

    def GetCurrentThread(self) -> int:
        """The pseudo handle -2."""
        return -2

    def SetThreadPriority(self, thread: int, priority: int) -> int:
        """Keeps the priority."""
        self.priorities.append(priority)
        return 1

    # -- listings -------------------------------------------------------------------------------------------------

    def NtQueryInformationProcess(self, handle: int, kind: int, buffer: int, size: int, returned: int | None) -> int:
        """ProcessBasicInformation: its number and its parent's; STATUS_INVALID_HANDLE for no handle."""
        process = self.processes.get(self._held(handle)[0])
        if process is None or kind != 0:
            return -0x3FFFFFF8
        row = at(buffer, PROCESS_BASIC_INFORMATION, 1)[0]
        row["UniqueProcessId"], row["InheritedFromUniqueProcessId"] = process.pid, process.parent
        row["PebBaseAddress"] = 0x1000
        return 0

    def NtQuerySystemInformation(self, kind: int, buffer: int, size: int, returned: int) -> int:
        """Every process, by an entry that tells where the next one begins; names lie behind the entries."""
        layout = SYSTEM_PROCESS_INFORMATION
        there = [process for process in self.processes.values() if not process.exited]
        needed = sum(layout.itemsize + 64 + 2 * len(process.name) for process in there)
        at(returned, "<u4", 1)[0] = needed
        if self.no_listing:
            return -0x3FFFFFFD  # STATUS_INVALID_INFO_CLASS
        if size < needed:
            return -0x3FFFFFFC  # STATUS_INFO_LENGTH_MISMATCH
        place = buffer
        for process in there:
            text = place + layout.itemsize + 64  # a thread
            row = at(place, layout, 1)[0]
            row["UniqueProcessId"], row["InheritedFromUniqueProcessId"] = process.pid, process.parent
            row["WorkingSetSize"], row["CreateTime"] = len(process.working_set) * 4096, process.created
            row["ImageNameLength"], row["ImageNameBuffer"] = 2 * len(process.name), text
            write_utf16(text, process.name, len(process.name))
            following = text + 2 * len(process.name)
            row["NextEntryOffset"] = 0 if process is there[-1] else following - place
            place = following
        return 0

    # -- jobs -----------------------------------------------------------------------------------------------------

    def CreateJobObjectW(self, security: None, name: None) -> int:
        """A job without members; 5 on a machine that has none for us."""
        if self.no_jobs:
            return self._fail(winapi.ERROR_ACCESS_DENIED)
        self.opened += 4
        self.jobs[self.opened] = FakeJob()
        self.handles[self.opened] = (-1, 0)
        return self.opened

    def CreateIoCompletionPort(self, file: int, existing: None, key: int, threads: int) -> int:
        """A port."""
        self.opened += 4
        self.handles[self.opened] = (-1, 0)
        return self.opened

    def SetInformationJobObject(self, job: int, what: int, value: int, size: int) -> int:
        """Limits (9) and the completion port (7)."""
        if what == 9:
            self.jobs[job].limits = int(at(value + 16, "<u4", 1)[0])
        elif what == 7:
            self.jobs[job].port = int(at(value, "<u8", 2)[1])
        return 1

    def AssignProcessToJobObject(self, job: int, process: int) -> int:
        """The process is a member of the job and of those around it; 5 where they would form no hierarchy."""
        return self._enters(self.jobs[job], self._held(process)[0]) or self._fail(winapi.ERROR_ACCESS_DENIED)

    def _immediate(self, pid: int) -> FakeJob | None:
        """The end of a process's job chain."""
        own = [job for job in self.jobs.values() if pid in job.members]
        return next((job for job in own if not any(other.parent is job for other in own)), None)

    def _enters(self, job: FakeJob, pid: int) -> int:
        """As the page of nested jobs: a child job has a subset of the processes of its parent job."""
        now = self._immediate(pid)
        if now is not None and now not in chain(job):
            if job.members or job.parent is not None or not (job.nests and now.nests):
                return 0
            job.parent = now
        for one in chain(job):
            if pid not in one.members:
                one.members.add(pid)
                if not self.lost_messages:
                    one.messages.append((6, pid))
        return 1

    def InitializeProcThreadAttributeList(self, attributes: int, count: int, flags: int, size: int) -> int:
        """122 where the list is shorter than the 48 bytes that one attribute takes."""
        return 1 if at(size, "<u8", 1)[0] >= 48 else self._fail(winapi.ERROR_INSUFFICIENT_BUFFER)

    def UpdateProcThreadAttribute(
        self, attributes: int, flags: int, which: int, value: int, size: int, old: None, returned: None
    ) -> int:
        """PROC_THREAD_ATTRIBUTE_JOB_LIST: ERROR_NOT_SUPPORTED before Windows 10."""
        if self.no_job_lists:
            return self._fail(50)
        assert which == 0x2000D
        self._job_lists[attributes] = at(value, "<u8", size // 8)
        return 1

    def CreateProcessW(
        self, path: str, line: int, process: None, thread: None, inherit: int, flags: int, environment: int | None,
        folder: None, startup: int, made: int,
    ) -> int:  # fmt: skip
        """Process 100, 101 ... of process 1, in its jobs and in those of the list, one after the other."""
        if self.missing:
            return self._fail(self.missing)
        pid = 100 + len(self.created)
        self.born(pid, 1, name=path.rpartition("\\")[2])
        for handle in self._job_lists.get(int(at(startup, STARTUPINFOEXW, 1)["lpAttributeList"][0]), ()):
            if not self._enters(self.jobs[int(handle)], pid):
                self.dies(pid)
                return self._fail(winapi.ERROR_ACCESS_DENIED)
        self.created.append((path, read_utf16(line, 1), flags, read_utf16(environment, 2) if environment else ""))
        self.handles.update({self.opened + 4: (pid, 0xFFFFFFFF), self.opened + 8: (pid, 0)})
        row = at(made, PROCESS_INFORMATION, 1)
        row["hProcess"], row["hThread"], row["dwProcessId"] = self.opened + 4, self.opened + 8, pid
        self.opened += 8
        return 1

    def TerminateProcess(self, handle: int, code: int) -> int:
        """It has ended."""
        process = self.processes[self._held(handle)[0]]
        process.exited, process.exit_code = True, code
        return 1

    def IsProcessInJob(self, process: int, job: int, result: int) -> int:
        """Whether the process is a member."""
        at(result, "<u4", 1)[0] = self._held(process)[0] in self.jobs[job].members
        return 1

    def QueryInformationJobObject(self, job: int, what: int, buffer: int, size: int, returned: int | None) -> int:
        """JobObjectBasicProcessIdList (3): 234 (ERROR_MORE_DATA) when they do not fit."""
        pids = sorted(pid for pid in self.jobs[job].members if pid in self.processes)
        room = (size - 8) // 8
        counts = at(buffer, "<u4", 2)
        counts[:] = len(pids), min(len(pids), room)
        at(buffer + 8, "<u8", room)[: len(pids)] = pids[:room]
        return 1 if len(pids) <= room else self._fail(234)

    def GetQueuedCompletionStatus(self, port: int, number: int, key: int, about: int, milliseconds: int) -> int:
        """The next message; 258 when there is none."""
        for job in self.jobs.values():
            if job.port == port and job.messages:
                message, pid = job.messages.pop(0)
                at(number, "<u4", 1)[0], at(about, "<u8", 1)[0] = message, pid
                return 1
        return self._fail(258)

    def born(self, pid: int, parent: int, *, breakaway: bool = False, **attributes: Any) -> Any:
        """A new process: its parent's jobs are its own, and tell of it, but for those that it leaves.

        As the page of nested jobs: if the immediate job allows breakaway, the child leaves it and each parent job up to
        the first that does not. breakaway: whether it is created with CREATE_BREAKAWAY_FROM_JOB, which a job that does
        not allow it refuses.
        """
        job = self._immediate(parent)
        permits = BREAKAWAY_OK | SILENT_BREAKAWAY_OK
        if breakaway and job is not None and not job.limits & permits:
            raise PermissionError(f"CreateProcess of {pid}: ERROR_ACCESS_DENIED")
        if breakaway or (job is not None and job.limits & SILENT_BREAKAWAY_OK):
            while job is not None and job.limits & permits:
                job = job.parent
        process = self.process(pid, parent=parent, **attributes)
        if job is not None:
            self._enters(job, pid)
        return process

    def dies(self, pid: int, code: int = 0) -> None:
        """A process ends; with no handle left its number is free."""
        self.processes[pid].exited, self.processes[pid].exit_code = True, code
        if not any(held == pid for held, _ in self.handles.values()):
            del self.processes[pid]
            for job in self.jobs.values():
                job.members.discard(pid)

    # -- tokens ---------------------------------------------------------------------------------------------------

    def OpenProcessToken(self, process: int, rights: int, token: int) -> int:
        """A handle on its token; 5 where it is refused."""
        pid = self._held(process)[0]
        if self.processes[pid].token_denied:
            return self._fail(winapi.ERROR_ACCESS_DENIED)
        self.opened += 4
        self._tokens[self.opened] = pid
        at(token, "<u8", 1)[0] = self.opened
        return 1

    def GetTokenInformation(self, token: int, what: int, buffer: int, size: int, returned: int) -> int:
        """TokenUser (1): its user as a SID; TokenElevation (20)."""
        process = self.processes[self._tokens[token]]
        if what == 20:
            at(buffer, "<u4", 1)[0], at(returned, "<u4", 1)[0] = process.elevated, 4
            return 1
        sid = process.user.encode().ljust(12, b"\0")
        ctypes.memmove(buffer + 16, sid, len(sid))
        at(returned, "<u4", 1)[0] = 16 + len(sid)
        return 1

    def LookupPrivilegeValueW(self, system: None, name: str, luid: int) -> int:
        """20 for SeDebugPrivilege, as on Windows."""
        at(luid, "<u8", 1)[0] = {"SeDebugPrivilege": 20}[name]
        return 1

    def AdjustTokenPrivileges(self, token: int, none: int, new: int, size: int, old: None, returned: None) -> int:
        """TRUE with 1300 when it is not held."""
        on = int(at(new + 12, "<u4", 1)[0]) & 2
        if "SeDebugPrivilege" not in self.held:
            self._error.code = 1300
        else:
            self._error.code = 0
            self.privileges = {"SeDebugPrivilege"} if on else set()
        return 1

    def PrivilegeCheck(self, token: int, required: int, result: int) -> int:
        """Whether it is switched on."""
        at(result, "<u4", 1)[0] = "SeDebugPrivilege" in self.privileges
        return 1


def chain(job: FakeJob | None) -> list[FakeJob]:
    """A job and its parent job chain."""
    return [] if job is None else [job, *chain(job.parent)]


def read_utf16(address: int, zeros: int) -> str:
    """The text up to that many zeros in a row, without the last one."""
    count = 0
    while at(address + 2 * count, "<u2", zeros).any():
        count += 1
    return at(address, "<u2", count + zeros - 1).tobytes().decode("utf-16-le", "surrogatepass")


def at(address: int, dtype: Any, count: int) -> Any:
    """The memory at an address as an array: what a kernel would write into."""
    layout = np.dtype(dtype)
    memory = (ctypes.c_char * (layout.itemsize * count)).from_address(address)
    return np.frombuffer(memoryview(memory), layout)


def write_utf16(buffer: int, text: str, chars: int) -> int:
    """Text into a buffer of that many characters; how many were written."""
    units = np.frombuffer(text.encode("utf-16-le"), "<u2")[:chars]
    at(buffer, "<u2", len(units))[:] = units
    return len(units)
