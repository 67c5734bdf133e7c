"""Attaching on the real kernel: running threads, ourselves, another tracer beside us, what is refused and why."""

import collections
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from kit.open_files import descriptors, handles

from wstrace.errors import TargetExited
from wstrace.interfaces import Context
from wstrace.schema import PROCESS_SEEN, SPACE_REPLACE
from wstrace_plugins.os.linux.backend import platform
from wstrace_plugins.os.linux.versions import kernel
from wstrace_plugins.page_faults.linux import perf_event
from wstrace_plugins.page_faults.linux.backend import PageFaults

pytestmark = pytest.mark.usefixtures("full_level")

#: whether a fault's events have one time between them: 6.1 takes it for each, 6.12 and later ones do not
SHARED_TIMES = kernel() >= (6, 12)
#: eight threads, and new ones all the time, that each touch pages of their own; at the end: time, tid, address, pages
SWARM = """
import contextlib, ctypes, mmap, sys, threading, time
N, rows, kept, on = 16, [], [], True
def touch():
    m = mmap.mmap(-1, N * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        m.madvise(mmap.MADV_NOHUGEPAGE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(m))
    began = time.monotonic_ns()
    for i in range(N): m[i * mmap.PAGESIZE] = 1
    kept.append(m); rows.append((began, threading.get_native_id(), at, N))
def steady():
    while on: touch(); time.sleep(0.01)
def spawner():
    while on:
        t = threading.Thread(target=touch); t.start(); t.join()
threads = [threading.Thread(target=steady) for _ in range(7)] + [threading.Thread(target=spawner)]
[t.start() for t in threads]
print("go", flush=True)
sys.stdin.readline(); on = False
[t.join() for t in threads]
for row in rows: print(*row)
print("end", flush=True)
sys.stdin.readline()
"""


def pages_of(rows: list[tuple[int, int, int, int]]) -> set[tuple[int, int]]:
    return {(tid, at + mmap.PAGESIZE * i) for _, tid, at, n in rows for i in range(n)}


def test_threads_that_make_threads(child, attach):
    swarm = child(SWARM)
    assert swarm.read() == "go"
    time.sleep(0.1)
    trace = attach(swarm.pid)
    armed_ns = time.monotonic_ns()
    end = time.monotonic() + 0.8
    trace.drain(lambda: time.monotonic() > end)
    swarm.say()
    rows = []
    while (line := swarm.read()) != "end":
        rows.append(tuple(map(int, line.split())))
    trace.stop()
    assert len({tid for _, tid, _, _ in rows}) > 20
    faults = trace.faults()
    seen = collections.Counter(zip(faults.tid.tolist(), (faults.va & ~np.uint64(4095)).tolist(), strict=True))
    known = pages_of(rows)
    after = pages_of([row for row in rows if row[0] > armed_ns])
    assert len(after) > 300
    assert {page: seen[page] for page in known if seen[page] > 1} == {}
    assert {page for page in after if seen[page] != 1} == set()
    trace.assert_balanced()
    trace.assert_ordered()
    swarm.say()
    assert swarm.process.wait(20) == 0


def test_what_is_there_already_is_reported_first(child, attach):
    code = """
import subprocess, sys
command = [sys.executable, '-S', '-c', 'print(flush=True); input()']
sub = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
sub.stdout.readline(); print(sub.pid, flush=True); input(); sub.stdin.close(); sub.wait()
"""
    parent = child(code)
    sub = int(parent.read())
    trace = attach(parent.pid)
    trace.drain(lambda: {parent.pid, sub} <= set(trace.column("address_space", "pid").tolist()))
    seen = trace.processes(PROCESS_SEEN)
    assert list(seen.pid) == [parent.pid, sub]
    assert list(seen.ppid) == [os.getpid(), parent.pid]
    pids, events, files = (trace.column("address_space", name) for name in ("pid", "event", "file"))
    assert list(dict.fromkeys(pids.tolist())) == [parent.pid, sub]
    for pid in (parent.pid, sub):
        own = events[pids == pid].tolist()
        assert own == [SPACE_REPLACE] + [1] * (len(own) - 1)
        names = {trace.context.strings[code] for code in files[pids == pid]}
        assert {os.path.realpath(sys.executable), "[heap]", "[stack]"} <= names
    parent.say()
    trace.drain(lambda: trace.context.targets[0].wait(0) is not None)
    trace.stop()
    assert {parent.pid, sub} <= set(trace.faults().pid)
    trace.assert_balanced()


@pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf (tests/install-peers)")
def test_another_tracers_clock(child, attach, tmp_path):
    """perf uses another clock, and the kernel hands its time on to our rows: these are counted, not believed.

    One that lets each event take the time for itself does not.
    """
    # not malloc()'s memory, which is kept and takes no faults any more when a slow perf begins
    code = "while True: input(); m = mmap.mmap(-1, 1 << 20); m.write(bytes(1 << 20)); m.close(); print(flush=True)"
    one = child(f"import mmap\nprint(flush=True)\n{code}")
    one.read()
    armed = time.monotonic_ns()
    trace = attach(one.pid)
    perf = subprocess.Popen(
        ["perf", "record", "-q", "-k", "CLOCK_REALTIME", "-e", "minor-faults", "-c", "1", "-d", "-p", str(one.pid),
         "-o", str(tmp_path / "perf.data")], stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        maps = Path(f"/proc/{perf.pid}/maps")
        while "[perf_event]" not in maps.read_text() and perf.poll() is None:  # then its events are open
            time.sleep(0.05)
        end = time.monotonic() + (60 if SHARED_TIMES else 5)  # it enables them later, on a busy machine much later
        while trace.ledger("foreign_clock", "minor") <= 10 and time.monotonic() < end:
            one.say()
            one.read()
            trace.batches += trace.source.drain(0.1)
        trace.stop()
    finally:
        perf.send_signal(signal.SIGINT)
        perf.wait()
    times = trace.faults().time_ns
    assert ((times >= armed) & (times <= time.monotonic_ns())).all()
    assert (trace.ledger("foreign_clock", "minor") > 10) is SHARED_TIMES
    trace.assert_balanced()


def test_side_band_loss_is_reported_and_mended(child, attach):
    code = """
import mmap
print(flush=True); input()
for i in range(3000): mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
print(flush=True); input()
mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # the kernel tells of the loss with the next row
print(flush=True); input()
"""
    one = child(code)
    one.read()
    trace = attach(one.pid, ring_bytes=4096)
    one.say()
    one.read()
    trace.batches += trace.source.drain(0)  # room again
    one.say()
    one.read()
    trace.batches += trace.source.drain(0)
    one.say()
    trace.drain(lambda: trace.context.targets[0].wait(0) is not None)
    trace.stop()
    assert trace.ledger("lost_side_band") > 1000
    events = trace.column("address_space", "event")
    assert list(events).count(SPACE_REPLACE) >= 1


def test_an_orphan_of_a_lost_birth_is_read(child, attach):
    """No record tells of it and no parent leads to it: its faults do."""
    code = """
import mmap, os, time
print(flush=True); input()
for i in range(3000): mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
if os.fork() == 0:
    if os.fork() != 0: os._exit(0)
    while os.getppid() == parent: time.sleep(0.01)
    print(os.getpid(), flush=True)
    for i in range(500): bytearray(300_000); time.sleep(0.02)
    os._exit(0)
input()
"""
    # on one CPU, whose ring is full by then
    one = child("import os; parent = os.getpid(); os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})" + code)
    one.read()
    trace = attach(one.pid, ring_bytes=4096)
    one.say()
    orphan = int(one.read())

    def listed():
        pids, events = (trace.column("address_space", name) for name in ("pid", "event"))
        return bool(((pids == orphan) & (events == SPACE_REPLACE)).any())

    try:
        trace.drain(listed)
        assert listed()
    finally:
        os.kill(orphan, signal.SIGKILL)
        trace.stop()
    assert trace.ledger("lost_side_band") > 1000


def test_side_band_loss_at_the_very_end_is_reported(child, attach):
    one = child(
        "import mmap; print(flush=True); input()\n"
        "for i in range(3000): mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)"
    )
    one.read()
    trace = attach(one.pid, ring_bytes=4096)
    one.say()
    assert trace.context.targets[0].wait(10) is not None
    trace.stop()
    assert trace.ledger("lost_side_band") > 1000
    trace.assert_balanced()


def test_buffers_are_read_as_seldom_as_was_requested(child, attach):
    toucher = child("import mmap, sys\nfor line in sys.stdin:\n    m = mmap.mmap(-1, 200 * mmap.PAGESIZE)\n"
                    "    for i in range(200): m[i * mmap.PAGESIZE] = 1\n    print('done', flush=True)\n")  # fmt: skip
    trace = attach(toucher.pid, poll_ms=60_000, stacks="none")
    trace.batches += trace.source.drain(0.01)  # the first read is at once
    seen = len(trace.faults())
    toucher.say()
    assert toucher.read() == "done"
    for _ in range(5):
        trace.batches += trace.source.drain(0.05)
    assert len(trace.faults()) == seen, "no buffer is a quarter full, and a minute has not passed"
    trace.stop()
    assert len(trace.faults()) >= seen + 200
    trace.assert_balanced()


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
