"""Creates a suspended process that is in the jobs of its tracer from its creation on.

`subprocess` cannot name a job. A process that is put into one later is left suspended for ever by a tracer that is
killed in between.
Source: Microsoft Learn, CreateProcessW, STARTUPINFOEXW, UpdateProcThreadAttribute (PROC_THREAD_ATTRIBUTE_JOB_LIST:
Windows 10).
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.errors import CannotExecute, CommandNotFound, Unavailable
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.job import Job
from wstrace_plugins.os.windows.layouts import PROCESS_INFORMATION, STARTUPINFOEXW

if TYPE_CHECKING:
    from wstrace_plugins.os.windows.resolve import Program

_CREATE_SUSPENDED, _CREATE_UNICODE_ENVIRONMENT, _EXTENDED_STARTUPINFO_PRESENT = 0x4, 0x400, 0x8_0000
_JOB_LIST = 0x2_000D  # PROC_THREAD_ATTRIBUTE_JOB_LIST
_LIST_BYTES = 256  # of a PROC_THREAD_ATTRIBUTE_LIST: with one attribute it has 48, and nothing that must be freed
_ERROR_FILE_NOT_FOUND, _ERROR_PATH_NOT_FOUND, _ERROR_ELEVATION_REQUIRED = 2, 3, 740


def create(api: WindowsApi, command: str, program: Program, *, unguarded: str = "") -> tuple[int, int, Job | None, str]:
    """The pid of a new suspended process, a handle with all rights, and its jobs, or None and why it is in none.

    command: the word that the program was found by, for errors. unguarded: why no job is wanted, "" if it is. Raises
    CommandNotFound, CannotExecute: Windows refuses the program.
    """
    if not unguarded:
        try:
            return _in_jobs(api, program)
        except Unavailable as refused:  # or it refuses the program, as it will once more
            unguarded = f"{refused.why}, as before Windows 10 or in a job that lets nobody into another"
    try:
        return *_process(api, program, 0), None, unguarded
    except Unavailable:
        code = api.GetLastError()
    if code in (_ERROR_FILE_NOT_FOUND, _ERROR_PATH_NOT_FOUND):
        raise CommandNotFound(f"there is no command {command!r}", "give its path, or look at PATHEXT and PATH")
    remedy = "run wstrace in an elevated terminal" if code == _ERROR_ELEVATION_REQUIRED else ""
    raise CannotExecute(f"{command!r} cannot be executed: {winapi.meaning(code)} ({code})", remedy)


def _in_jobs(api: WindowsApi, program: Program) -> tuple[int, int, Job, str]:
    """The process in new jobs. Raises Unavailable: Windows refuses the jobs, or the program."""
    job, size, attributes = Job(api), np.array([_LIST_BYTES], "<u8"), np.zeros(_LIST_BYTES, "|u1")
    jobs, at = np.array(job.handles, "<u8"), attributes.ctypes.data
    try:
        done = api.InitializeProcThreadAttributeList(at, 1, 0, size.ctypes.data)
        winapi.checked(api, "InitializeProcThreadAttributeList", done)
        done = api.UpdateProcThreadAttribute(at, 0, _JOB_LIST, jobs.ctypes.data, jobs.nbytes, None, None)
        winapi.checked(api, "UpdateProcThreadAttribute", done)
        job.pid, handle = _process(api, program, at)
    except BaseException:
        job.close()
        raise
    return job.pid, handle, job, ""


def _process(api: WindowsApi, program: Program, attributes: int) -> tuple[int, int]:
    """The pid and the handle of a suspended process without inherited handles. Raises Unavailable."""
    startup, made = np.zeros(1, STARTUPINFOEXW), np.zeros(1, PROCESS_INFORMATION)
    startup["cb"], startup["lpAttributeList"] = startup.itemsize, attributes
    line = _utf16(subprocess.list2cmdline(program.arguments))  # writable, as CreateProcessW requires
    environment = None
    if program.environment is not None:
        environment = _utf16("".join(f"{name}={value}\0" for name, value in program.environment.items()))
    flags = _CREATE_SUSPENDED | _CREATE_UNICODE_ENVIRONMENT | _EXTENDED_STARTUPINFO_PRESENT
    done = api.CreateProcessW(
        program.path, line.ctypes.data, None, None, 0, flags,
        None if environment is None else environment.ctypes.data, None, startup.ctypes.data, made.ctypes.data,
    )  # fmt: skip
    winapi.checked(api, "CreateProcessW", done)
    api.CloseHandle(int(made["hThread"][0]))
    return int(made["dwProcessId"][0]), int(made["hProcess"][0])


def _utf16(text: str) -> Any:
    """UTF-16 with its closing zero; an unpaired surrogate of a name is passed on."""
    return np.frombuffer((text + "\0").encode("utf-16-le", "surrogatepass"), "<u2").copy()
