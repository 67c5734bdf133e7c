"""Attaching that is refused, in whole or in part, or comes too late."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from kit.open_files import descriptors, handles

from wstrace.errors import TargetExited
from wstrace.interfaces import Context
from wstrace_plugins.os.linux.backend import platform
from wstrace_plugins.page_faults.linux import perf_event
from wstrace_plugins.page_faults.linux.backend import PageFaults

pytestmark = pytest.mark.usefixtures("full_level")


def test_too_few_descriptors(child, attach):
    code = """
import threading, time
[threading.Thread(target=time.sleep, args=(60,), daemon=True).start() for _ in range(30)]
print(flush=True); input()
"""
    one = child(code)
    one.read()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    used = max(map(int, before))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, limit[1]))
    try:
        trace = attach(one.pid)  # the soft limit is raised for the time of the trace
        trace.stop()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (used + 20, limit[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert descriptors() <= before  # what an earlier test left may be closed meanwhile
    script = f"""
import resource, sys
sys.path[:0] = {sys.path!r}
import numpy
from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace_plugins.os.linux.backend import platform
from wstrace_plugins.page_faults.linux.backend import PageFaults
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
target = platform().attach({one.pid})
try: PageFaults().start(Context(targets=(target,)))
except Unavailable as error: print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    cpus = len(perf_event.online_cpus())
    assert said.startswith(f"31 threads x {cpus} CPUs x 3 events need {31 * cpus * 3} file descriptors, wstrace itself")
    assert "RLIMIT_NOFILE allows 80; ulimit -Hn" in said


def test_refusals(child, attach):
    one = child("input()")
    target = platform().attach(one.pid)
    one.process.kill()
    one.process.wait()
    with pytest.raises(TargetExited, match=f"no process {one.pid}"):
        PageFaults().start(Context(targets=(target,)))
    target.close()


def test_processes_that_end_while_they_are_attached(attach):
    before = handles()
    ended = 0
    for delay in range(30):
        one = subprocess.Popen(["sleep", f"{delay / 5000}"])
        try:
            attach(one.pid).stop()
        except TargetExited:
            ended += 1
        one.wait()
    assert ended > 0
    assert handles() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
def test_another_users_process(child):
    one = child("input()")
    script = f"""
import os, sys
sys.path[:0] = {sys.path!r}
import numpy
from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace_plugins.os.linux.backend import platform
from wstrace_plugins.page_faults.linux.backend import PageFaults
import resource
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try: PageFaults().start(Context(targets=(platform().attach({one.pid}),)))
except Unavailable as error: print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    refused = f"process {one.pid} of uid 0 may not be traced by uid 65534; run wstrace as that user or as root\n"
    # Where no user has perf events at all, what is left is the counters, which anyone may read of each process.
    counters = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) >= 3
    assert said == ("" if counters else refused)
