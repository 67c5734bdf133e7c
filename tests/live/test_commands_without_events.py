"""Commands that need page faults, where recording them is refused: why, what lifts it, and the exit code for that."""

import os
import sys

import pytest
from kit.no_events import wstrace_without_events

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="only on x86-64: the number of the system call"
)


def test_that_faults_may_not_be_recorded_is_reported_with_its_exit_code():
    done = wstrace_without_events("imports", "--", "true")
    assert done.returncode == 122, done.stderr
    assert "perf_event_open" in done.stderr
    assert "seccomp" in done.stderr
