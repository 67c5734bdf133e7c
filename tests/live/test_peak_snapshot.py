"""The source `peak_snapshot` on real processes: the largest look, its size against the kernel's peak, the start."""

from __future__ import annotations

import sys
import time

import pytest
from held_memory import holding
from recorded_run import record

import wstrace
from wstrace.testing import RecordingExporter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: /proc/PID/pagemap")

PEAK = """
import mmap, time
def held(size, seconds):
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size, 4096): memory[at] = 1
    time.sleep(seconds)
    memory.close()
held(200 << 20, 0.8)
held(50 << 20, 0.5)
"""


def test_a_peak_that_lasts_is_seen_whole(tmp_path):
    """GIVEN a peak of 0.8 s, then less WHEN the trace ends THEN the snapshot has 95 % of what the kernel counted."""
    with record(tmp_path, [sys.executable, "-c", PEAK], "-s", "peak_snapshot") as trace:
        told = trace.info.extra["peak_snapshot"]
        parts = [part.snapshot for part in trace.batches("resident")]
        seen = sum(part.pages for part in parts if part.time_ns == told["time_ns"]) * 4096
        assert told["bytes"] <= seen  # runs of zero pages are no part of it
        assert told["bytes"] >= 0.95 * trace.info.usage.peak_resident_bytes
        assert told["bytes"] > 200 << 20


def test_an_attached_process_is_read_at_the_start_and_at_its_peak():
    keep = RecordingExporter()
    with (
        holding(30 << 20) as target,
        wstrace.Session(target.pid, sources=["peak_snapshot"], exporters=[keep]) as session,
    ):
        time.sleep(0.5)
    numbers = [batch.snapshot.number for batch in keep.of("resident")]
    assert numbers[0] == 1
    assert len(set(numbers)) == len({batch.snapshot.time_ns for batch in keep.of("resident")})
    assert session.info.extra["peak_snapshot"]["bytes"] > 30 << 20


def test_an_interval_is_positive():
    from wstrace.errors import UsageError
    from wstrace_working_set.peak import PeakSnapshotSource

    with pytest.raises(UsageError, match="interval is 0"):
        PeakSnapshotSource(interval=0)
