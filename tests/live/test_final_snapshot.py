"""The pages of a launched target at its exit: held over its end, told exactly, let go again."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wstrace
from wstrace.batch import Dictionary
from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace.schema import PAGE_SHARED
from wstrace.testing import RecordingExporter
from wstrace_os.linux import procfs
from wstrace_os.linux.backend import LinuxPlatform
from wstrace_working_set.final import FinalSnapshotSource
from wstrace_working_set.working_set import WorkingSet, read

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: userfaultfd and /proc/PID/pagemap"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lets the kernel wait at a page: needs root"),
]
PAGE = mmap.PAGESIZE
HUGE = 3 << 20
#: touches every other page of 8 MiB, leaves /proc/self alone and ends as it is told to
TOUCHES = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t size = 8 << 20;
    char *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, size, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < size; i += 2 * 4096) p[i] = 1;
    printf("%lu\n", (unsigned long)p);
    fflush(stdout);
    usleep(500000);
    if (!strcmp(argv[1], "killed")) kill(getpid(), SIGKILL);
    if (!strcmp(argv[1], "stays")) sleep(30);
    _exit(7);
}
"""


@pytest.fixture(scope="module")
def touches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("touches")
    (folder / "touches.c").write_text(TOUCHES)
    subprocess.run(["gcc", "-O1", "-o", str(folder / "touches"), str(folder / "touches.c")], check=True)
    return folder / "touches"


def run(*command: str | Path, tmp_path: Path, options: tuple[str, ...] = ()) -> tuple[Any, dict[str, Any], str]:
    """(what it ran, report --json of the file, stderr) of `wstrace run`."""
    file = str(tmp_path / "t.wst")
    words = [sys.executable, "-m", "wstrace", "run", "-v", "-f", "-o", file, *options, "--", *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    words = [sys.executable, "-m", "wstrace", "report", "--json", file]
    return done, json.loads(subprocess.run(words, capture_output=True, check=True).stdout), done.stderr


def pages(file: Path, start: int, size: int) -> set[int]:
    """The resident pages of a trace file's last snapshot within these addresses."""
    found: set[int] = set()
    with wstrace.open_trace(str(file)) as trace:
        for batch in trace.batches("resident"):
            for at, n in zip(batch["start"].tolist(), batch["pages"].tolist(), strict=True):
                found |= {a for a in range(at, at + n * PAGE, PAGE) if start <= a < start + size}
    return found


@pytest.mark.parametrize(("end", "code"), [("exits", 7), ("killed", 128 + signal.SIGKILL)])
def test_exactly_the_pages_that_the_target_had(end: str, code: int, touches: Path, tmp_path: Path) -> None:
    done, report, shown = run(touches, end, tmp_path=tmp_path)
    assert done.returncode == code
    start = int(done.stdout)
    assert pages(tmp_path / "t.wst", start, 8 << 20) == set(range(start, start + (8 << 20), 2 * PAGE)), shown
    assert f"resident pages of process {report['facts']['final_snapshot']} as at its end" in shown
    assert "still resident" in shown
    by_file = {row["file"]: row["pages"] for row in report["summary"]["resident"]}
    assert by_file["[anon]"] >= (8 << 20) // PAGE // 2


def test_a_target_that_outlives_the_trace(touches: Path, tmp_path: Path) -> None:
    done, _, shown = run("timeout", "2.5", touches, "stays", tmp_path=tmp_path, options=("--duration", "0.3s"))
    assert done.returncode == 124  # the trace waits for the command
    assert "as at the trace's end" in shown
    assert re.search(r"wstrace: trace ended; timeout \(\d+\) goes on", shown)
    assert pages(tmp_path / "t.wst", 0, 1 << 47)  # of `timeout` itself, which is the target


def test_the_program_that_was_executed_last_counts(touches: Path, tmp_path: Path) -> None:
    done, _, _ = run("sh", "-c", f"exec env {touches} exits", tmp_path=tmp_path)
    start = int(done.stdout)
    assert len(pages(tmp_path / "t.wst", start, 8 << 20)) == (8 << 20) // PAGE // 2


def test_sleeping_shell_then_another_program(touches: Path, tmp_path: Path) -> None:
    """The shell is held first, and let go when it executes the next program."""
    done, report, _ = run("sh", "-c", f"sleep 0.3; exec {touches} exits", tmp_path=tmp_path)
    start = int(done.stdout)
    found = pages(tmp_path / "t.wst", start, 8 << 20)
    # `touches` lives 500 ms, and looks come up to 500 ms apart: all of it, or nothing and no word of it
    assert len(found) == (8 << 20) // PAGE // 2 if "final_snapshot" in report["facts"] else not found


class Held:
    """A process held by the source's own means, and the kernel's account of it."""

    def __init__(self, code: str) -> None:
        from wstrace_working_set.linux import backend as linux

        self.target = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.target.stdout is not None
        self.target.stdout.readline()
        self.keeper: Any = linux.make_keeper()
        self.space: Any = self.keeper.hold(self.target.pid)
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
def held() -> Iterator[Callable[[str], Held]]:
    made: list[Held] = []

    def hold(code: str) -> Held:
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


def test_after_the_end_it_equals_what_the_kernel_counts(held: Any) -> None:
    one = held(HOLDS)
    alive = wstrace.working_set(one.target.pid)
    one.end()
    assert one.space.look()
    taken, kernels = one.ours(), one.kernels()
    assert taken.total_bytes == kernels["Rss"]
    assert taken.private_bytes == kernels["Private_Clean"] + kernels["Private_Dirty"]
    assert taken.total_bytes == alive.total_bytes
    assert (taken.runs["flags"] & PAGE_SHARED).any()
    assert taken.totals.total is None


def test_its_memory_is_freed_when_it_is_let_go(held: Any) -> None:
    one = held(HOLDS)
    one.end()
    assert one.kernels()
    one.keeper.close()
    one.keeper.close()
    assert one.kernels() == {}


TRACER = """
from wstrace_working_set.linux import backend as linux
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
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def waited(done: Callable[[], bool]) -> bool:
    until = time.monotonic() + 10
    while not done() and time.monotonic() < until:
        time.sleep(0.01)
    return done()


def test_it_is_freed_too_when_the_tracer_is_killed(held: Any) -> None:
    one = held(HOLDS)
    with tracer(one) as (process, keeper):
        one.end()
        assert one.kernels()
        process.kill()
    assert waited(lambda: one.kernels() == {})
    assert waited(lambda: not Path(f"/proc/{keeper}/fd").exists() or procfs.stat(keeper).gone)


def test_a_tracer_that_is_stopped_stops_and_holds_on(held: Any) -> None:
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


def test_a_keeper_ends_silently_when_the_tracer_is_killed_before_it_reads_an_answer() -> None:
    from wstrace_os.linux import userfaultfd
    from wstrace_working_set.linux import keeper

    ours, its = socket.socketpair()
    words = [sys.executable, "-I", "-S", keeper.__file__, str(userfaultfd.system_call())]
    with subprocess.Popen(words, stdin=its, stderr=subprocess.PIPE, text=True) as process:
        its.close()
        assert ours.recv(1, socket.MSG_PEEK) == b"+"
        ours.close()  # what was not read resets the connection
        assert process.communicate(timeout=20)[1] == ""
        assert process.returncode == 0


def test_a_keeper_that_is_gone_is_told(held: Any) -> None:
    one = held("print(flush=True); input()")
    os.kill(one.keeper._pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="process that keeps memory"):
        one.keeper.hold(one.target.pid)


def test_a_target_is_held_so_long_and_no_longer() -> None:
    target = LinuxPlatform().launch(["sleep", "30"])
    source = FinalSnapshotSource(longest=0.2)
    began = time.monotonic()
    context = Context(targets=(target,))
    source.start(context)
    try:
        target.resume()
        while not source.finished and time.monotonic() < began + 10:
            assert list(source.drain(0.05)) == []
        assert time.monotonic() - began >= 0.2
        assert source.statistics()["missed"] == 1
        why = "the command ran longer than 0.2 s (option longest)"
        assert context.info.lacking == [f"the resident pages at the exit: {why}"]
    finally:
        target.signal(signal.SIGKILL)
        target.wait(5)
        target.close()


def test_another_program_under_the_same_pid_is_found_out(held: Any) -> None:
    one = held("import os, sys; print(flush=True); sys.stdin.readline(); os.execvp('sleep', ['sleep', '30'])")
    assert one.space.look()
    one.target.stdin.write(b"\n")
    one.target.stdin.flush()
    until = time.monotonic() + 10
    while one.space.look() and time.monotonic() < until:
        time.sleep(0.01)
    assert not one.space.look()
    one.end()
    assert not one.space.look()


def test_an_attached_process_is_not_held() -> None:
    source = FinalSnapshotSource()
    with subprocess.Popen(["sleep", "30"]) as target:
        source.start(Context(targets=(LinuxPlatform().attach(target.pid),)))
        assert source.finished
        assert list(source.stop()) == []
        target.kill()


def test_it_is_the_last_of_its_process_whoever_else_takes_snapshots(touches: Path) -> None:
    keep = RecordingExporter()
    target = LinuxPlatform().launch([str(touches), "exits"])
    with wstrace.Session(targets=[target], sources=["working_set:keep=last", "final_snapshot"], exporters=[keep]) as s:
        s.wait(30)
    taken = {batch.snapshot.number: batch for batch in keep.of("resident")}
    assert max(taken.values(), key=lambda batch: batch.snapshot.time_ns) is taken[0]
    assert sum(pages for _, _, pages in s.summary().resident()) == taken[0].snapshot.pages


UNPRIVILEGED = """
import ctypes, os, sys
from wstrace.interfaces import Context
from wstrace_os.linux.backend import LinuxPlatform
from wstrace_working_set import working_set  # all is imported while folders that only root can read are in reach
from wstrace_working_set.linux import backend, held_space
from wstrace_working_set.final import FinalSnapshotSource
import resource
os.setgroups([]), os.setgid(65534), os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: else /proc/self is root's after setuid
# this Python and this folder may be root's alone
held_space.__file__ = sys.argv[1]
sys.executable = next(path for path in (sys.executable, "/usr/bin/python3") if os.access(path, os.X_OK))
level = FinalSnapshotSource.probe()
source, target = FinalSnapshotSource(), LinuxPlatform().launch(["sleep", "0.3"])
source.start(Context(targets=(target,)))
target.resume()
batches = []
while not source.finished:
    batches += source.drain(0.1)
batches += source.stop()
target.wait(5)
print(level.name, len(batches), level.why, "|", level.remedy)
"""


@pytest.mark.parametrize("allowed", [0, 1])
def test_without_privilege_it_works_where_the_kernel_allows_it(allowed: int) -> None:
    from wstrace_working_set.linux import keeper

    setting = Path("/proc/sys/vm/unprivileged_userfaultfd")
    before = setting.read_text()
    try:
        setting.write_text(str(allowed))
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            shutil.copy(keeper.__file__, folder)
            words = [sys.executable, "-c", UNPRIVILEGED, f"{folder}/held_space.py"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    finally:
        setting.write_text(before)
    words = done.stdout.split()
    if allowed:
        assert words[:2] == ["full", "2"]
    else:
        assert words[:2] == ["none", "0"]
        assert "userfaultfd is refused" in done.stdout
        assert "sysctl -w vm.unprivileged_userfaultfd=1" in done.stdout
