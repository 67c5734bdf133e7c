"""What tests of the flight recorder wait for: that it has begun to trace."""

import subprocess
import time
from pathlib import Path

import wstrace
from wstrace.errors import TraceFileError


def wait_until_traced(ring: Path, tracer: subprocess.Popen[str], seconds: float = 60.0) -> None:
    """Waits until a ring has rows of processes, which come when these are armed; fails when its tracer ends."""
    end = time.monotonic() + seconds
    while not _has_processes(ring):
        assert tracer.poll() is None, tracer.communicate()
        assert time.monotonic() < end, "nothing was traced"
        time.sleep(0.05)


def _has_processes(ring: Path) -> bool:
    try:
        with wstrace.open_trace(ring) as trace:
            return bool(trace.rows.get("process"))
    except TraceFileError:  # it is not there yet, or has no header yet
        return False
