"""The source `write_watch`, of other processes through their agent."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from private_memory import PRIVATE

import wstrace
from wstrace import schema
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace.interfaces import Context
from wstrace.testing import RecordingExporter
from wstrace_plugins.os.linux.backend import LinuxPlatform
from wstrace_plugins.os.linux.pagemap import PAGE
from wstrace_plugins.write_watch.linux import backend as linux
from wstrace_plugins.write_watch.source import WriteWatchSource

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: userfaultfd"),
    pytest.mark.usefixtures("watchable"),
]
TARGET = """
import ctypes, mmap, os, sys, wstrace
m = mmap.mmap(-1, 64 * mmap.PAGESIZE, flags=34)
m[:] = b"x" * len(m)
agent = wstrace.agent({path})
print(ctypes.addressof(ctypes.c_ubyte.from_buffer(m)), agent.path, flush=True)
for line in sys.stdin:
    if line == "exec\\n":
        os.execv("/bin/sh", ["sh", "-c", "exec sleep 60 >/dev/null"])
    if line == "unmap\\n":
        line, at = "", ctypes.addressof(ctypes.c_ubyte.from_buffer(m)) + mmap.PAGESIZE
        assert ctypes.CDLL(None).munmap(ctypes.c_void_p(at), ctypes.c_size_t(mmap.PAGESIZE)) == 0
    for page in line.split():
        m[int(page) * mmap.PAGESIZE] = 1
    print(flush=True)
"""


class Target:
    """A process with an agent, that writes the pages it is told to."""

    def __init__(self, path: str | None = None, **options) -> None:
        code = TARGET.format(path=repr(path))
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, **options)  # fmt: skip
        self.pid = self.process.pid
        start, _, self.path = self.process.stdout.readline().strip().partition(" ")
        self.start = int(start)

    def write(self, *pages: int) -> None:
        self.tell(" ".join(map(str, pages)))

    def tell(self, words: str) -> None:
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def execute(self) -> None:
        """Becomes another program; its end of the pipe closes."""
        self.tell("exec")
        while Path(f"/proc/{self.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.001)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.communicate()


def pages(start, number, base: int, count: int = 64) -> list[int]:
    found = []
    for at, n in zip(start.tolist(), number.tolist(), strict=True):
        found += [page for page in range((at - base) // PAGE, (at - base) // PAGE + n) if 0 <= page < count]
    return found


def test_another_process_through_its_agent():
    with Target() as target:
        watcher = linux.open_watcher(target.pid)
        target.write(3, 9)
        assert pages(*watcher.written(), target.start) == [3, 9]
        target.write(9, 60)
        assert pages(*watcher.written(), target.start) == [9, 60]
        watcher.close()
        target.write(1)  # goes on unwatched


def test_the_source_in_a_session():
    keep = RecordingExporter()
    with Target() as target:
        with wstrace.Session(target.pid, sources=["write_watch:interval=0.1,max_cpu=1"], exporters=[keep]):
            target.write(5, 6, 7)
            time.sleep(0.3)
            target.write(40)
        name = f"process {target.pid}"
    written = keep.of("written")
    assert {b.snapshot.pid for b in written} == {target.pid}, name
    assert [b.snapshot.number for b in written] == list(range(1, len(written) + 1))
    assert all(b.snapshot.last and b.snapshot.pages == int(b["pages"].sum()) for b in written)
    seen = [page for b in written for page in pages(b["start"], b["pages"], target.start)]
    assert seen == [5, 6, 7, 40]
    assert len(written) >= 2


def test_the_own_process_with_its_mappings_first_and_each_run_in_one():
    memory = mmap.mmap(-1, 8 * PAGE, flags=PRIVATE)
    start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + 4 * PAGE), ctypes.c_size_t(4 * PAGE), 7) == 0
    source = WriteWatchSource(interval=0.01)
    source.start(Context())
    memory[:] = b"x" * len(memory)
    time.sleep(0.02)
    space, written = list(source.drain(0.1))
    assert (space["event"][0], space["pid"][0]) == (schema.SPACE_REPLACE, os.getpid())
    runs = dict(zip(written["start"].tolist(), written["pages"].tolist(), strict=True))
    assert (runs[start], runs[start + 4 * PAGE]) == (4, 4)
    assert len(list(source.stop())) == 2
    assert list(source.stop()) == []


def test_a_process_that_ends_ends_the_source():
    with Target() as target:
        source = WriteWatchSource(interval=0.01)
        source.start(Context(targets=(LinuxPlatform().attach(target.pid),)))
        target.process.kill()
        target.process.wait()
        until = time.monotonic() + 5
        while not source.finished and time.monotonic() < until:
            list(source.drain(0.05))
        assert source.finished
        assert list(source.stop()) == []


def test_a_process_that_executes_another_program_is_not_watched_on_in_silence():
    """Its memory is another one; the scan of the old one finds nothing, and no error."""
    with Target() as target:
        watcher = linux.open_watcher(target.pid)
        target.write(3)
        assert pages(*watcher.written(), target.start) == [3]
        target.execute()
        with pytest.raises(TargetExited, match="executed another program"):
            watcher.written()
        watcher.close()


def test_the_source_says_why_its_stream_ended():
    with Target() as target:
        context = Context(targets=(LinuxPlatform().attach(target.pid),))
        source = WriteWatchSource(interval=0.01)
        source.start(context)
        list(source.drain(0.1))
        target.execute()
        while not source.finished:
            list(source.drain(0.1))
        assert ["executed another program" in reason for reason in context.info.notes] == [True]
        list(source.stop())


def test_a_zombie_and_a_kernel_thread_have_no_memory_to_watch():
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(TargetExited, match="zombie"):
            linux.open_watcher(child.pid)
    if Path("/proc/2/comm").exists() and Path("/proc/2/comm").read_text() == "kthreadd\n":  # not in a container
        with pytest.raises(Unavailable, match="kernel thread"):
            linux.open_watcher(2)


def test_without_an_agent_its_remedy_is_named():
    with subprocess.Popen(["sleep", "60"]) as target:
        try:
            source = WriteWatchSource()
            with pytest.raises(Unavailable) as refused:
                source.start(Context(targets=(LinuxPlatform().attach(target.pid),)))
            assert "agent" in str(refused.value)
            assert list(source.stop()) == []
        finally:
            target.kill()


def test_a_launched_command_is_refused_with_the_way_that_works():
    target = LinuxPlatform().launch(["/bin/true"])
    try:
        with pytest.raises(Unavailable, match="agent"):
            WriteWatchSource().start(Context(targets=(target,)))
    finally:
        target.close()


@pytest.mark.parametrize("options", [{"interval": 0.0}, {"max_cpu": 7.0}])
def test_options_out_of_range(options):
    with pytest.raises(UsageError):
        WriteWatchSource(**options)
