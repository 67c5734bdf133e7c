"""Creates a suspended process that is in a job from its creation on.

`subprocess` cannot name a job. A process that is put into its job only later is left suspended for ever by a tracer
that is killed in between.
Source: Microsoft Learn, CreateProcessW, STARTUPINFOEXW, UpdateProcThreadAttribute (PROC_THREAD_ATTRIBUTE_JOB_LIST:
Windows 10).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from wstrace.errors import Unavailable
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.job import Job
from wstrace_plugins.os.windows.layouts import PROCESS_INFORMATION, STARTUPINFOEXW
from wstrace_plugins.os.windows.resolve import Program

_CREATE_SUSPENDED, _UNICODE_ENVIRONMENT, _EXTENDED_STARTUPINFO = 0x4, 0x400, 0x8_0000  # processthreadsapi.h
_JOB_LIST = 0x2_000D  # PROC_THREAD_ATTRIBUTE_JOB_LIST


class NotCreated(Exception):  # noqa: N818 - the launch makes an error of it that names the command
    """CreateProcessW failed; `code` is the error code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CreateProcessW failed with {code} ({winapi.meaning(code)})")
        self.code = code


class Created(NamedTuple):
    """A suspended process, with a handle of all rights.

    Attributes:
        pid, handle: the process.
        job: its job, which terminates it at the end of this tracer until Job.release(); None without one.
        unguarded: why it was in no job at its creation, "" if it was.
    """

    pid: int
    handle: int
    job: Job | None
    unguarded: str = ""


def create(api: WindowsApi, program: Program, *, job: bool = True) -> Created:
    """Creates the process of a program, suspended.

    Where the system refuses a job, the process is in none.

    Args:
        api: wstrace_plugins.os.windows.api or a stand-in.
        program: what to start.
        job: whether it is to be in a job.

    Raises:
        NotCreated: the system refuses the program.
    """
    why, made = "", None
    try:
        if job:
            made = Job(api)
            with _job_list(api, made) as attributes:
                made.pid, handle = _create_process(api, program, attributes)
            return Created(made.pid, handle, made)
    except BaseException as refused:  # in a job that forbids others in it
        if made is not None:
            made.close()
        if not isinstance(refused, Unavailable | NotCreated):
            raise
        why = str(refused)
    return Created(*_create_process(api, program), None, why)


@contextmanager
def _job_list(api: WindowsApi, job: Job) -> Iterator[int]:
    """Yields the address of a PROC_THREAD_ATTRIBUTE_LIST with the job. Raises Unavailable before Windows 10."""
    size, jobs = np.zeros(1, "<u8"), np.array([job.handle], "<u8")
    api.InitializeProcThreadAttributeList(None, 1, 0, size.ctypes.data)  # fails, and gives the size
    attributes = np.zeros(int(size[0]), "u1")
    at = attributes.ctypes.data
    if not api.InitializeProcThreadAttributeList(at, 1, 0, size.ctypes.data):
        raise winapi.failed("InitializeProcThreadAttributeList", api.GetLastError())
    try:
        if not api.UpdateProcThreadAttribute(at, 0, _JOB_LIST, jobs.ctypes.data, jobs.nbytes, None, None):
            raise winapi.failed("UpdateProcThreadAttribute", api.GetLastError())
        yield at
    finally:
        api.DeleteProcThreadAttributeList(at)


def _create_process(api: WindowsApi, program: Program, attributes: int = 0) -> tuple[int, int]:
    """Calls CreateProcessW without inherited handles, as subprocess does; returns the pid and a handle."""
    startup, made = np.zeros(1, STARTUPINFOEXW), np.zeros(1, PROCESS_INFORMATION)
    startup["cb"], startup["lpAttributeList"] = startup.itemsize, attributes
    line = _utf16(subprocess.list2cmdline(program.arguments))  # writable, as CreateProcessW requires
    block = None if program.environment is None else _block(program.environment)
    flags = _CREATE_SUSPENDED | _UNICODE_ENVIRONMENT | _EXTENDED_STARTUPINFO
    done = api.CreateProcessW(
        program.path, line.ctypes.data, None, None, 0, flags, None if block is None else block.ctypes.data, None,
        startup.ctypes.data, made.ctypes.data,
    )  # fmt: skip
    if not done:
        raise NotCreated(api.GetLastError())
    api.CloseHandle(int(made["hThread"][0]))
    return int(made["dwProcessId"][0]), int(made["hProcess"][0])


def _block(environment: Mapping[str, str]) -> Any:
    return _utf16("".join(f"{name}={value}\0" for name, value in environment.items()))


def _utf16(text: str) -> Any:
    return np.frombuffer((text + "\0").encode("utf-16-le", "surrogatepass"), "<u2").copy()
