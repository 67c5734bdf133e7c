"""What the tests of the Windows watch share: a stand-in machine with process 7, and a source that traces it."""

import numpy as np

from kit.fake_windows import FakeAllocation, FakeWindows
from wstrace.interfaces import Context
from wstrace.testing import ScriptedTarget
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.job import Job
from wstrace_plugins.page_faults.windows.backend import PageFaults

EXE, DLL, HEAP = 0x140000000, 0x7FFB10000000, 0x20000000
DEVICE = "\\Device\\HarddiskVolume3"


def machine(**options) -> FakeWindows:
    """A fake machine with process 7: an exe, a DLL, a heap and a stack."""
    windows = FakeWindows(**options)
    windows.process(7).allocations += [
        FakeAllocation(EXE, 0x5000, winapi.MEM_IMAGE, winapi.PAGE_EXECUTE_WRITECOPY,
                       DEVICE + "\\apps\\app.exe"),
        FakeAllocation(DLL, 0x200000, winapi.MEM_IMAGE, winapi.PAGE_EXECUTE_WRITECOPY,
                       DEVICE + "\\Windows\\System32\\cwdll32.dll"),
        FakeAllocation(HEAP, 0x10000),
        FakeAllocation(HEAP + 0x100000, 0x100000, guard=True),
        FakeAllocation(HEAP + 0x300000, 0x1000, winapi.MEM_MAPPED),
        FakeAllocation(HEAP + 0x400000, 0x1000, winapi.MEM_MAPPED, winapi.PAGE_READONLY,
                       "\\Device\\Mup\\server\\share\\data.bin"),
    ]  # fmt: skip
    return windows


def job_of(windows, pid=7) -> Job:
    """A job in which that process is."""
    job = Job(windows)
    try:
        with processes.opened(windows, pid, winapi.QUERY_RIGHTS) as handle:
            for one in job.handles:
                if not windows.AssignProcessToJobObject(one, handle):
                    raise winapi.failed("AssignProcessToJobObject", windows.GetLastError())
    except BaseException:
        job.close()
        raise
    job.pid = pid
    return job


def traced(windows, *pids, launched=True, context=None, listing=(0, 0), **options):
    source = PageFaults(poll_ms=1, **options)
    source.api, source.exits_seconds, source.listing_seconds, source.own_thread = windows, 0, listing, False
    context = context or Context(targets=tuple(ScriptedTarget(pid, launched=launched) for pid in pids or (7,)))
    source.start(context)
    return source, context


def faults(batches):
    batches = [b for b in batches if b.schema.name == "page_fault"]
    return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]} if batches else {}
