"""The system's own counts of page faults of this process and of the calling thread.

Source: getrusage(2), RUSAGE_THREAD (Linux 2.6.26), ru_minflt and ru_majflt: 0.6 us per call, no privilege. Where
threads have no such counter, the records of a running session are used instead.
"""

from __future__ import annotations

import functools
import importlib
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from wstrace.analysis.tally import group
from wstrace.batch import Batch
from wstrace.plugins import own_platform
from wstrace.schema import FAULT_MAJOR

_resource: Any
try:
    _resource = importlib.import_module("resource")
except ImportError:  # Windows has none.
    _resource = None

#: The bytes of a base page.
PAGE_SIZE = mmap.PAGESIZE


class ThreadFaults:
    """(minor, major) page faults of the calling thread so far.

    exact: the system counts by thread. Otherwise the counts are those of the records that a session in this process
    passed to add(); they lag behind by what has not been drained yet.
    """

    MAX_THREADS = 16_384

    def __init__(self, *, system: bool = True) -> None:
        who = getattr(_resource, "RUSAGE_THREAD", None) if system else None
        self.exact = who is not None
        self._read: Callable[[], Any] | None = None if who is None else functools.partial(_resource.getrusage, who)
        self._recorded: dict[int, tuple[int, int]] = {}

    def __call__(self) -> tuple[int, int]:
        """The counts of the calling thread."""
        if self._read is not None:
            return self._read()[6:8]  # type: ignore[no-any-return]  # ru_minflt and ru_majflt, cheaper than by name
        return self._recorded.get(threading.get_native_id(), (0, 0))

    def add(self, batch: Batch) -> None:
        """Counts records of this process by thread; does nothing where the system counts."""
        if self.exact or not len(batch) or "tid" not in batch:
            return
        major = (batch["flags"] & FAULT_MAJOR) != 0 if "flags" in batch else np.zeros(len(batch), np.bool_)
        (tids, majors), counts = group(batch["tid"], major)
        for tid, is_major, count in zip(tids.tolist(), majors.tolist(), counts.tolist(), strict=True):
            minor, many = self._recorded.get(tid, (0, 0))
            if (minor, many) == (0, 0) and len(self._recorded) >= self.MAX_THREADS:
                # These are mostly ids of threads that ended long ago; spans that are open lose their base.
                self._recorded.clear()
            self._recorded[tid] = (minor, many + count) if is_major else (minor + count, many)


thread_faults = ThreadFaults()


def process_faults() -> tuple[int, int] | None:
    """(minor, major) page faults of this process by the system's counter, including threads that ended; else None."""
    if _resource is not None:
        used = _resource.getrusage(_resource.RUSAGE_SELF)
        return used.ru_minflt, used.ru_majflt
    platform = own_platform()
    this = platform.process(os.getpid()) if platform is not None else None
    return None if this is None else (this.faults, 0)  # On Windows, one number for both types.
