"""The pages of a launched target at its exit: held over its end, reported exactly, let go again."""

import contextlib
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import held_program
from kit.command_line import answer, begun, until
from kit.command_line import wstrace as command
from kit.recorded_run import compiled

import wstrace
from wstrace.batch import Dictionary
from wstrace.interfaces import Context
from wstrace.schema import PAGE_SHARED
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.backend import LinuxPlatform
from wstrace_plugins.working_set.peak import FinalSnapshotSource
from wstrace_plugins.working_set.working_set import WorkingSet, read

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: userfaultfd and /proc/PID/pagemap"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lets the kernel wait at a page: needs root"),
]
PAGE = mmap.PAGESIZE
#: touches every other page of 8 MiB, leaves /proc/self alone and ends on request, once the file $UNTIL is there
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
    for (size_t i = 0; i < size; i += 2 * sysconf(_SC_PAGESIZE)) p[i] = 1;
    printf("%lu\n", (unsigned long)p);
    fflush(stdout);
    for (int i = 0; i < 12000 && access(getenv("UNTIL"), F_OK); i++) usleep(10000);
    if (!strcmp(argv[1], "killed")) kill(getpid(), SIGKILL);
    _exit(7);
}
"""


@pytest.fixture(scope="module")
def touches(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("touches"), TOUCHES)


def run(*command: str | Path, tmp_path: Path, touches: Path) -> tuple[Any, dict[str, Any], str]:
    """(what it ran, report --json of the file, stderr) of `wstrace run`; `touches` goes on when it is held."""
    file, reported = str(tmp_path / "t.wst"), str(tmp_path / "held")
    telling = [sys.executable, held_program.__file__, reported, str(touches)]
    words = [*telling, "run", "-f", "-o", file, "--", *map(str, command)]
    environment = {**os.environ, "UNTIL": reported}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment)
    return done, json.loads(answer("report", "--by", "file", "--json", file)), done.stderr


def pages(file: Path, start: int, size: int) -> set[int]:
    """The resident pages of a trace file's last snapshot within these addresses."""
    found = set()
    with wstrace.open_trace(str(file)) as trace:
        for batch in trace.batches("resident"):
            for at, n in zip(batch["start"].tolist(), batch["pages"].tolist(), strict=True):
                found |= {a for a in range(at, at + n * PAGE, PAGE) if start <= a < start + size}
    return found


@pytest.mark.parametrize(("end", "code"), [("exits", 7), ("killed", 128 + signal.SIGKILL)])
def test_exactly_the_pages_that_the_target_had(end, code, touches, tmp_path):
    done, report, shown = run(touches, end, tmp_path=tmp_path, touches=touches)
    assert done.returncode == code
    start = int(done.stdout)
    assert pages(tmp_path / "t.wst", start, 8 << 20) == set(range(start, start + (8 << 20), 2 * PAGE)), shown
    assert " at the exit: " in shown.splitlines()[0]
    by_file = {row["label"]: row["resident"] for row in report["rows"]}
    assert by_file["[anon]"] >= (8 << 20) // 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may hold a command at its start")
@pytest.mark.parametrize("words", [["true"], ["sh", "-c", "kill -9 $$"]])
def test_a_command_that_ends_at_once_has_its_pages(words, tmp_path):
    for number in range(5):
        path = str(tmp_path / f"{number}.wst")
        command("run", "-q", "-o", path, "--", *words)
        with wstrace.open_trace(path) as trace:
            assert trace.info.lacking == []
            assert " at the exit: " in trace.report().answer


def test_a_target_that_outlives_the_trace(touches, tmp_path):
    """It goes on until it was read, however slow the tracer is."""
    file, reported = tmp_path / "t.wst", tmp_path / "reported"
    words = ("-f", "-o", file, "--duration", "0.3s", "--", touches, "exits")
    environment = {**os.environ, "UNTIL": str(reported)}
    with begun("run", *words, env=environment, stdout=subprocess.PIPE) as tracer:
        shown = ""
        while "trace ended" not in shown and (line := tracer.stderr.readline()):
            shown += line
        reported.touch()
        shown += tracer.communicate(timeout=60)[1]
    assert tracer.returncode == 7  # the trace waits for the command
    assert re.search(r"wstrace: trace ended; program \(\d+\) goes on", shown)
    assert pages(file, 0, 1 << 63)


def test_the_program_that_was_executed_last_counts(touches, tmp_path):
    done, _, shown = run("sh", "-c", f"exec env {touches} exits", tmp_path=tmp_path, touches=touches)
    start = int(done.stdout)
    assert len(pages(tmp_path / "t.wst", start, 8 << 20)) == (8 << 20) // PAGE // 2, shown


def test_a_target_is_held_so_long_and_no_longer():
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
        why = "the command ran longer than 0.2 s (-s final_snapshot:longest=SECONDS)"
        assert context.info.lacking == [f"the resident pages at the exit: {why}"]
    finally:
        target.signal(signal.SIGKILL)
        target.wait(5)
        target.close()


def test_memory_of_a_killed_keeper_is_reported_as_that():
    target = LinuxPlatform().launch(["sleep", "30"])
    source, context = FinalSnapshotSource(), Context(targets=(target,))
    source.start(context)
    try:
        target.resume()
        assert list(source.drain(0.5)) == []
        children = procfs.descendants(os.getpid())
        (keeper,) = [pid for pid in children if any(word.endswith("keeper.py") for word in procfs.arguments(pid))]
        os.kill(keeper, signal.SIGKILL)
        os.waitid(os.P_PID, keeper, os.WEXITED | os.WNOWAIT)
        target.signal(signal.SIGKILL)
        target.wait(5)
        assert list(source.stop()) == []
        assert context.info.lacking == ["the resident pages at the exit: the process that kept its memory was killed"]
    finally:
        target.signal(signal.SIGKILL)
        target.wait(5)
        target.close()


UNPRIVILEGED = """
import ctypes, os, sys
from wstrace.errors import Unavailable
from wstrace.interfaces import Context, Level
from wstrace_plugins.os.linux.backend import LinuxPlatform
# all is imported while folders that only root can read are in reach
from wstrace_plugins.working_set import working_set
from wstrace_plugins.working_set.linux import backend, space
from wstrace_plugins.working_set.peak import FinalSnapshotSource
import resource
os.setgroups([]), os.setgid(65534), os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: else /proc/self is root's after setuid
# this Python and this folder may be root's alone
space.__file__ = sys.argv[1]
sys.executable = next(path for path in (sys.executable, "/usr/bin/python3") if os.access(path, os.X_OK))
try:
    level = FinalSnapshotSource.probe()
except Unavailable as refused:
    level = Level("none", refused.why, refused.remedy)
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
def test_without_privilege_it_works_where_the_kernel_allows_it(allowed):
    from wstrace_plugins.working_set.linux import keeper

    setting = Path("/proc/sys/vm/unprivileged_userfaultfd")
    before = setting.read_text()
    try:
        setting.write_text(str(allowed))
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            shutil.copy(keeper.__file__, folder)
            words = [sys.executable, "-c", UNPRIVILEGED, f"{folder}/space.py"]
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
