"""The pages of a launched target at its exit: held over its end, reported exactly, let go again."""

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
from pathlib import Path
from typing import Any

import pytest
from kit import held_program
from kit.command_line import answer, begun
from kit.command_line import wstrace as command
from kit.recorded_run import compiled

import wstrace
from wstrace.interfaces import Context
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.backend import LinuxPlatform
from wstrace_plugins.working_set.peak import FinalSnapshotSource

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
