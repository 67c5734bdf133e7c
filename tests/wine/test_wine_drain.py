"""A drain of 50 processes beside another thread: it keeps the GIL, loses no process, and its time is printed."""

import os
import subprocess
import sys
import threading
import time

import pytest

from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.job import Job
from wstrace_plugins.page_faults.windows.backend import _SWITCH_SECONDS
from wstrace_plugins.page_faults.windows.drainer import Drainer

CMD = [os.path.join(os.environ["SYSTEMROOT"], "system32", "cmd.exe"), "/q"]

pytestmark = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") != "1", reason="only on the Python with the stand-in")


def drains(drainer, *, exits=True):
    """(median, p99) of the milliseconds that a drain takes."""
    taken = []
    for _ in range(200):
        time.sleep(0.001)
        before = time.perf_counter()
        drainer.drain(exits=exits)
        taken.append((time.perf_counter() - before) * 1000)
    return sorted(taken)[100], sorted(taken)[197]


def turns_during_drains(drainer, running):
    """How often another thread ran during 20 drains, which let it only by giving the GIL away; ends seen too late."""
    turns, ending = [], threading.Event()
    thread = threading.Thread(target=lambda: [(turns.append(0), time.sleep(0)) for _ in iter(ending.is_set, True)])
    sys.setswitchinterval(100)
    thread.start()
    found, late = 0, 0
    for _ in range(20):
        running.pop().communicate()
        before = len(turns)
        drainer.drain(exits=True)
        found += len(turns) - before
        late += len(drainer.processes) != len(running)
    ending.set()
    thread.join()
    return found, late


def test_a_drain_of_many_processes_keeps_the_gil_and_loses_none(capsys):
    running = [subprocess.Popen(CMD, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) for _ in range(70)]
    jobs = [Job(winapi) for _ in range(10)]
    drainer, ending, interval = Drainer(winapi, 0.01, 1e9, jobs), threading.Event(), sys.getswitchinterval()
    for process in running:
        drainer.watch(process.pid, 0)
    computing = threading.Thread(target=lambda: all(sum(range(1000)) for _ in iter(ending.is_set, True)))
    try:
        # fewer than one a drain; where the calls of any kind give the GIL away there are 10 and more in each
        turns, late = turns_during_drains(drainer, running)
        assert (turns < 20, late) == (True, 0)
        while jobs:
            jobs.pop().close()
        sys.setswitchinterval(_SWITCH_SECONDS)
        assert drains(drainer)[0] < 10 * drains(drainer, exits=False)[0], "one call asks whether any has ended"
        alone = drains(drainer)[1]
        computing.start()
        beside = drains(drainer)[1]
    finally:
        sys.setswitchinterval(interval)
        ending.set()
        for process in running:
            process.communicate()
    with capsys.disabled():
        print(f"\n50 processes: p99 of a drain {alone:.2f} ms, beside a computing thread {beside:.2f} ms")
    assert list(drainer.processes) == [process.pid for process in running]
    drainer.drain(exits=True)
    assert [found.last for found in drainer.take()] == [True] * 70
