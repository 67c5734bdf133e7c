"""Figures of the calling process on Windows, by the Platform.

Source: Microsoft Learn, PROCESS_MEMORY_COUNTERS: PageFaultCount, which has soft and hard faults in one; WorkingSetSize.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import NoReturn

import wstrace_plugins.os
from wstrace.errors import Unavailable
from wstrace.interfaces import Platform, ProcessNow


def without_free_memory() -> AbstractContextManager[None]:
    """Nothing: the heap of Windows gives free memory back by itself."""
    return nullcontext()


def end_with(parent: int) -> None:
    """Nothing: Windows would need a job object."""


def faults() -> tuple[int, int | None]:
    """PageFaultCount."""
    return _now().faults, None


def resident() -> int:
    """WorkingSetSize."""
    return _now().resident


@cache
def _platform() -> Platform:
    platform: Platform = wstrace_plugins.os.backend("wstrace_plugins.os").platform()
    return platform


def _now() -> ProcessNow:
    found = _platform().process(os.getpid())
    if found is None:
        raise Unavailable("Windows does not tell the memory of this process")
    return found


def reset_peak() -> NoReturn:
    """Refused: PeakWorkingSetSize is that of the whole life of a process."""
    raise Unavailable("Windows counts the highest working set of a process's whole life only, and not of a test")


#: Refused, too.
peak = reset_peak
