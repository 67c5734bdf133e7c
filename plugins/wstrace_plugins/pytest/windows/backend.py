"""Figures of the calling process on Windows: GetProcessMemoryInfo, by the Platform.

Source: Microsoft Learn, PROCESS_MEMORY_COUNTERS: PageFaultCount, WorkingSetSize.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from wstrace.errors import Unavailable
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes


def without_free_memory() -> AbstractContextManager[None]:
    """Nothing: the heap of Windows gives free memory back by itself."""
    return nullcontext()


def end_with(parent: int) -> None:
    """Nothing: Windows would need a job object."""


def faults() -> tuple[int, int | None]:
    """PageFaultCount, which has soft and hard faults in one."""
    return _counters().page_faults, None


def resident() -> int:
    """WorkingSetSize."""
    return _counters().working_set


def _counters() -> processes.Counters:
    found = processes.counters(winapi, winapi.GetCurrentProcess())
    if found is None:
        raise Unavailable("Windows does not tell the memory of this process")
    return found


def reset_peak() -> None:
    """Refused: PeakWorkingSetSize is that of the whole life of a process."""
    raise Unavailable("Windows counts the highest working set of a process's whole life only, and not of a test")


def peak() -> int:
    """Refused, as reset_peak()."""
    raise Unavailable("Windows counts the highest working set of a process's whole life only, and not of a test")
