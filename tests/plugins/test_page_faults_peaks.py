"""The peaks of the processes that a target started, with processes that end while they are asked for."""

from __future__ import annotations

import sys

import pytest

from wstrace.errors import TargetExited
from wstrace.interfaces import Context
from wstrace.testing import ScriptedTarget

if sys.platform != "linux":
    pytest.skip("only on Linux: /proc", allow_module_level=True)

from wstrace.trace_info import PEAK_SEEN
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux.polling import Peaks

MIB = 1 << 20


def test_a_process_that_ends_before_the_first_look_is_left_out(monkeypatch):
    """GIVEN a process that is attached to, with children WHEN one of these has just ended THEN the others are read."""
    sizes = {7: procfs.Resident(50 * MIB, 20 * MIB), 9: procfs.Resident(30 * MIB, 10 * MIB)}

    def resident(pid: int) -> procfs.Resident:
        if pid not in sizes:
            raise TargetExited(f"there is no process {pid}")
        return sizes[pid]

    monkeypatch.setattr(procfs, "resident", resident)
    context = Context(targets=(ScriptedTarget(1, launched=False),))
    peaks = Peaks(context)
    peaks.look([7, 8, 9])
    assert peaks.usage([], orphaned=False).peak_resident_bytes == 20 * MIB, (
        "what came before the trace is no peak of it"
    )
    sizes[9] = procfs.Resident(60 * MIB, 10 * MIB)
    peaks.look([7, 8, 9])
    told = peaks.usage([], orphaned=False)
    assert (told.peak_resident_bytes, told.peak_pid) == (60 * MIB, 9)
    assert context.info.extra[PEAK_SEEN] == {"bytes": 60 * MIB, "pid": 9}, (
        "for a larger one that rusage tells of nobody"
    )
