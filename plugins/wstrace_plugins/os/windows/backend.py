"""Launches and attaches processes on Windows."""

from __future__ import annotations

import mmap
import os
import platform as machine
import time
from collections.abc import Mapping, Sequence

from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Platform, ProcessNow, Target, Usage
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows import token
from wstrace_plugins.os.windows.creation import create
from wstrace_plugins.os.windows.job import Job
from wstrace_plugins.os.windows.resolve import resolve

ATTACH_RIGHTS = winapi.QUERY_RIGHTS | winapi.SYNCHRONIZE
_SLICE_SECONDS = 0.2  # a wait cannot be interrupted, so it is split for Ctrl-C
_SIGTERM_CODE = 1
_EPOCH_SECONDS = 11_644_473_600  # from 1601 to 1970
#: The environment variable that keeps the target out of a job with `no`, for some sandboxes and brokers.
JOB_VARIABLE = "WSTRACE_JOB"


def node_faults() -> Usage:
    """Nothing: Windows does not count the faults of all processes."""
    return Usage()


class WindowsTarget(Target):
    """A process and its handle. A launched process is created suspended, and runs from resume() on."""

    def __init__(self, pid: int, name: str, handle: int, *, launched: bool = False) -> None:
        self.pid, self.name, self.launched = pid, name, launched
        #: The job that reports its children; None for an attached process, or when Windows refuses the job.
        self.job: Job | None = None
        #: Why a launched process is in no job; "" if it is in one.
        self.unguarded = ""
        self.exit_code: int | None = None
        self._handle, self._suspended = handle, launched
        self._last = Usage()

    def resume(self) -> None:
        """Lets a launched target run. Windows accepted the command at launch()."""
        if not self._suspended:
            return
        if self.job is not None:
            self.job.release()  # from here on, the end of this tracer does not end the process
        if (status := winapi.NtResumeProcess(self._handle)) < 0:
            raise winapi.failed("NtResumeProcess", winapi.RtlNtStatusToDosError(status), f"of pid {self.pid}")
        self._suspended = False

    def wait(self, timeout: float) -> int | None:
        """The exit code as a signed 32-bit number, 0 for an attached process; None after `timeout` seconds."""
        deadline = time.perf_counter() + timeout
        while self.exit_code is None:
            left = deadline - time.perf_counter()
            if processes.exited(winapi, self._handle, max(0, int(min(left, _SLICE_SECONDS) * 1000))):
                self.exit_code = processes.exit_code(winapi, self._handle) if self.launched else 0
            elif left <= 0:
                return None
            else:
                self.usage()  # Wine forgets the peak of a process that has ended
        return self.exit_code

    def usage(self) -> Usage:
        """The peak of the working set and the CPU time; Windows counts minor and major faults together only."""
        if self._handle:
            counters = processes.counters(winapi, self._handle)
            seen = self._last.peak_resident_bytes
            peak = max(counters.peak_working_set, seen or 0) if counters is not None else seen
            cpu = sum(processes.times(winapi, self._handle)[2:]) / 1e7
            self._last = Usage(peak_resident_bytes=peak, cpu_seconds=cpu, peak_pid=self.pid)
        return self._last

    def signal(self, number: int) -> None:
        """Terminates the process, as Windows has no signals; Ctrl-C reaches it from the console by itself."""
        if self.wait(0) is not None:
            return
        with processes.opened(winapi, self.pid, winapi.PROCESS_TERMINATE) as handle:
            winapi.TerminateProcess(handle, _SIGTERM_CODE)

    def close(self) -> None:
        """Closes the handle; a launched target that was never resumed is terminated."""
        if self._suspended and self._handle:
            winapi.TerminateProcess(self._handle, _SIGTERM_CODE)
            self.wait(5)
        if self.job is not None:
            self.job.close()
            self.job = None
        if self._handle:
            self.usage()
            winapi.CloseHandle(self._handle)
            self._handle = 0


class WindowsPlatform(Platform):
    """Processes by CreateProcess and handles."""

    name = "windows"
    page_size = mmap.PAGESIZE

    def is_administrator(self) -> bool:
        """Whether this process is elevated."""
        return token.elevated(winapi)

    def launch(self, command: Sequence[str], *, user: str | None = None) -> Target:
        """Creates a process, suspended, in a job that reports its children; `resolve` finds the program.

        Raises CommandNotFound: there is no such program; CannotExecute: Windows refuses to execute it; Unavailable:
        `user` is given, which Windows does not support here.
        """
        if user is not None:
            raise Unavailable("wstrace launches as another user on POSIX systems only", "use runas or psexec for it")
        program = resolve(command, elevated=self.is_administrator())
        wanted = os.environ.get(JOB_VARIABLE, "").lower() not in ("no", "off", "false", "0")
        unguarded = "" if wanted else f"{JOB_VARIABLE}=no"
        pid, handle, job, unguarded = create(winapi, command[0], program, unguarded=unguarded)
        target = WindowsTarget(pid, os.path.basename(command[0]), handle, launched=True)
        target.job, target.unguarded = job, unguarded
        return target

    def attach(self, pid: int) -> Target:
        """A handle on a running process. Raises TargetExited, or Unavailable when access is denied."""
        handle = winapi.open_process(winapi, pid, ATTACH_RIGHTS)
        if processes.exited(winapi, handle):  # an ended process can be opened while anyone has a handle on it
            winapi.CloseHandle(handle)
            raise TargetExited(f"process {pid} has ended")
        return WindowsTarget(pid, processes.name(winapi, handle, pid), handle)

    def process(self, pid: int) -> ProcessNow | None:
        """What GetProcessMemoryInfo says of a process, its virtual bytes those committed; None where it has ended."""
        try:
            with processes.opened(winapi, pid, winapi.PROCESS_QUERY_LIMITED_INFORMATION) as handle:
                counters, name = processes.counters(winapi, handle), processes.name(winapi, handle, pid)
                started = processes.times(winapi, handle)[0] / 1e7 - _EPOCH_SECONDS
        except Unavailable:
            return None
        if counters is None:
            return None
        return ProcessNow(name, counters.working_set, counters.committed, started, counters.page_faults)

    def process_names(self) -> Mapping[int, str]:
        """pid -> name of all processes, also of those that may not be opened."""
        return {one.pid: one.name for one in processes.listed(winapi)}

    def descendants(self, pid: int) -> list[int]:
        """The pids of all descendants; a pid may be an earlier process's: each is younger than its parent."""
        return processes.born_since(winapi, pid)

    def environment(self) -> Mapping[str, str]:
        """The version of Windows, the machine, Python with its width, the privilege, and Wine if it is that."""
        shown = {
            "system": f"Windows {machine.version()}",
            "machine": machine.machine(),
            "python": machine.python_version(),
            "privilege": "administrator" if token.elevated(winapi) else "user",
        }
        wine = processes.wine_version()
        return {**shown, "wine": f"{wine}: the watch of working sets is a stub there"} if wine else shown

    def versions(self) -> Mapping[str, str]:
        """The version of Windows and the processor."""
        return {"system": f"Windows {machine.version()}", "cpu": machine.processor()}

    def remedies(self) -> Mapping[str, str]:
        """Commands that lift the level, for PowerShell."""
        return {
            "elevated": "Start-Process -Verb RunAs powershell",
            "other users": "wstrace attach PID --debug-privilege   (in an elevated terminal)",
        }

    def debug_privilege(self) -> None:
        """Enables SeDebugPrivilege."""
        token.set_debug_privilege(winapi)

    def output_owner(self) -> tuple[int, int] | None:
        """None: a file belongs to the user who created it."""
        return None


def platform() -> Platform:
    """The Platform of Windows."""
    return WindowsPlatform()
