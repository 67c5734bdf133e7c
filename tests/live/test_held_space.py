"""A process whose memory is held over its end: what can be read of it then, and what frees it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.command_line import until

import wstrace
from wstrace.batch import Dictionary
from wstrace.schema import PAGE_SHARED
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.working_set.working_set import WorkingSet, read

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: userfaultfd and /proc/PID/pagemap"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lets the kernel wait at a page: needs root"),
]
HUGE = 3 << 20


class Held:
    """A process held by the source's own means, and the kernel's account of it."""

    def __init__(self, code: str) -> None:
        from wstrace_plugins.working_set.linux import backend as linux

        self.target = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.target.stdout.readline()
        self.keeper = linux.make_keeper()
        self.space = self.keeper.hold(self.target.pid)
        self.rollup = os.open(f"/proc/{self.target.pid}/smaps_rollup", os.O_RDONLY)

    def end(self) -> None:
        """Kills it and leaves the zombie."""
        self.target.kill()
        os.waitid(os.P_PID, self.target.pid, os.WEXITED | os.WNOWAIT)

    def kernels(self) -> dict[str, int]:
        """smaps_rollup, in bytes; empty when there is no address space."""
        os.lseek(self.rollup, 0, os.SEEK_SET)
        try:
            lines = os.read(self.rollup, 8192).decode().splitlines()[1:]
        except ProcessLookupError:
            return {}
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}

    def ours(self) -> WorkingSet:
        return read(self.space, Dictionary())


@pytest.fixture
def held():
    made = []

    def hold(code):
        made.append(Held(code))
        return made[-1]

    yield hold
    for one in made:
        one.space.close()
        one.keeper.close()
        one.target.kill()
        one.target.communicate()
        os.close(one.rollup)


HOLDS = f"""
import mmap, sys
m = mmap.mmap(-1, {HUGE}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(0, {HUGE}, 3 * 4096): m[i] = 1
print(flush=True); sys.stdin.read()
"""


def test_after_the_end_it_equals_what_the_kernel_counts(held):
    one = held(HOLDS)
    alive = wstrace.working_set(one.target.pid)
    one.end()
    assert one.space.is_same()
    taken, kernels = one.ours(), one.kernels()
    assert taken.total_bytes == kernels["Rss"]
    assert taken.private_bytes == kernels["Private_Clean"] + kernels["Private_Dirty"]
    assert taken.total_bytes == alive.total_bytes
    assert (taken.runs["flags"] & PAGE_SHARED).any()
    assert taken.page_table_bytes is None


def test_it_is_the_same_while_it_has_no_memory_and_has_not_ended(held):
    """As between exit_mm() and exit_notify(), which is too short to be met: its first thread has ended, another not."""
    one = held(f"""
import ctypes, mmap, sys, threading
m = mmap.mmap(-1, {HUGE}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(0, {HUGE}, 3 * 4096): m[i] = 1
threading.Thread(target=threading.Event().wait, args=(60,)).start()
print(flush=True); sys.stdin.readline()
ctypes.CDLL(None).syscall({60 if os.uname().machine == "x86_64" else 93}, 0)  # exit(2)
""")
    one.target.stdin.write(b"\n")
    one.target.stdin.flush()
    until(lambda: not procfs.stat(one.target.pid).mapped_bytes)
    assert one.space.is_same()
    one.end()
    assert one.space.is_same()
    assert one.ours().total_bytes == one.kernels()["Rss"]


TRACER = """
from wstrace_plugins.working_set.linux import backend as linux
keeper = linux.make_keeper()
space = keeper.hold({pid})
print(keeper._pid, flush=True)
input()
"""


@contextlib.contextmanager
def tracer(one: Held) -> Iterator[tuple[Any, int]]:
    """A process that holds it instead of this one, and the pid of its keeper."""
    one.keeper.close()
    code = TRACER.format(pid=one.target.pid)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    # a group of its own: SIGTSTP does not stop an orphaned one, which that of the tests is below nohup
    with subprocess.Popen([sys.executable, "-c", code], process_group=0, **pipes) as process:
        yield process, int(process.stdout.readline())
        process.kill()


def test_it_is_freed_too_when_the_tracer_is_killed(held):
    one = held(HOLDS)
    with tracer(one) as (process, keeper):
        one.end()
        assert one.kernels()
        process.kill()
    until(lambda: one.kernels() == {})
    until(lambda: not Path(f"/proc/{keeper}/fd").exists() or procfs.stat(keeper).gone)


def test_a_tracer_that_is_stopped_stops_and_holds_on(held):
    """Ctrl-Z: what waits at a page cannot be stopped, so it must not be a thread of the tracer."""
    one = held(HOLDS)
    with tracer(one) as (process, keeper):
        before = procfs.stat(keeper).cpu_seconds
        for number in (signal.SIGSTOP, signal.SIGTSTP):
            process.send_signal(number)
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            process.send_signal(signal.SIGCONT)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(keeper, number)
        time.sleep(0.3)
        one.end()
        assert one.kernels()
        assert procfs.stat(keeper).cpu_seconds - before < 0.1  # it waits, it does not turn in a circle
        assert os.getsid(keeper) == keeper


def test_another_program_under_the_same_pid_is_found_out(held):
    one = held("import os, sys; print(flush=True); sys.stdin.readline(); os.execvp('sleep', ['sleep', '30'])")
    assert one.space.is_same()
    one.target.stdin.write(b"\n")
    one.target.stdin.flush()
    until(lambda: not one.space.is_same())
    one.end()
    assert not one.space.is_same()
