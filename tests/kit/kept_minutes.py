"""What tests of the flight recorder wait for: that it has begun to trace."""

import subprocess
from pathlib import Path

import wstrace
from kit.command_line import until
from wstrace.errors import TraceFileError


def wait_until_traced(ring: Path, tracer: subprocess.Popen[str], seconds: float = 60.0) -> None:
    """Waits until a ring has rows of processes, which come when these are armed; fails when its tracer ends."""
    until(lambda: tracer.poll() is not None or _has_processes(ring), seconds)
    assert tracer.poll() is None, tracer.communicate()


def _has_processes(ring: Path) -> bool:
    try:
        with wstrace.open_trace(ring) as trace:
            return bool(trace.rows.get("process"))
    except TraceFileError:  # it is not there yet, or has no header yet
        return False
