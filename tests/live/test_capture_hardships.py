"""A trace under hardship: a memory limit, a terminal that closes, a tracer that is stopped, a pid given out anew."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from kit.command_line import wstrace

pytestmark = pytest.mark.usefixtures("full_level")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes a cgroup or a pid namespace: needs root")

#: touches PAGES pages of fresh memory, TIMES times; says "up" when the first have been touched, and the sum at its end
TOUCHES = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
int main(int argc, char **argv) {
    long pages = atol(argv[1]), times = atol(argv[2]);
    for (long turn = 0; turn < times; turn++) {
        char *p = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(p, pages * 4096, MADV_NOHUGEPAGE);
        for (long i = 0; i < pages; i++) ((volatile char *)p)[i * 4096] = 1;
        munmap(p, pages * 4096);
        if (!turn) { puts("up"); fflush(stdout); }
    }
    printf("%ld\n", pages * times);
    return 0;
}
"""


@pytest.fixture(scope="module")
def touches():
    """The program TOUCHES."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (tests/install-peers)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "touches.c").write_text(TOUCHES)
        subprocess.run(["gcc", "-O1", "-o", folder / "touches", folder / "touches.c"], check=True)
        yield folder / "touches"


@pytest.fixture
def limited():
    """limited(mib): the file `cgroup.procs` of a group whose processes may have that much memory, and no swap."""
    made = []

    def make(mib):
        old = next((line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()
                    if line.split(":")[1] == "memory"), None)  # fmt: skip
        try:
            if old is not None:
                group, limits = Path(f"/sys/fs/cgroup/memory{old}"), ("memory.limit_in_bytes",)
            else:  # below the root group only: a group that has processes gives its children no controllers
                group, limits = Path("/sys/fs/cgroup"), ("memory.max", "memory.swap.max")
                (group / "cgroup.subtree_control").write_text("+memory")
            group = group / f"wstrace-{os.getpid()}-{len(made)}"
            group.mkdir()
            made.append(group)
            (group / limits[0]).write_text(str(mib << 20))
            with contextlib.suppress(OSError):
                (group / limits[-1]).write_text("0" if len(limits) > 1 else str(mib << 20))
        except OSError as error:
            pytest.skip(f"no group with a memory limit can be made here: {error}")
        return group / "cgroup.procs"

    yield make
    for group in made:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


def figures(path: Path) -> dict[str, Any]:
    """What `info` tells of a file."""
    return json.loads(wstrace("info", path, "--json").stdout)


def assert_nothing_is_lost_without_count(ledger: dict[str, int], rows: int) -> None:
    """recorded + what is counted as lost = what the kernel's own counter saw."""
    counted = sum(n for stage, n in ledger.items() if stage.startswith("counted:"))
    lost = sum(n for stage, n in ledger.items() if stage.partition(":")[0] in ("lost_kernel", "lost_tracer"))
    assert ledger["recorded:page_fault"] == rows
    assert rows + lost + sum(n for stage, n in ledger.items() if stage.startswith("unaccounted")) == counted
    assert not [stage for stage in ledger if stage.startswith("unaccounted")]


@needs_root
def test_a_target_that_the_kernel_kills_for_its_memory(touches, tmp_path, limited):
    enter = f"echo $$ > {limited(24)}; exec {touches} 20000 1"
    ran = wstrace("run", "-o", tmp_path / "x.wst", "--", "sh", "-c", enter)
    assert ran.returncode == 128 + signal.SIGKILL, ran.stderr
    assert ran.stderr.splitlines()[0].endswith("; killed by SIGKILL")
    shown = figures(tmp_path / "x.wst")
    assert shown["state"] == "clean"
    assert 20_000 > shown["rows"]["page_fault"] > 4000  # 6,144 pages is all that it may have at once
    assert_nothing_is_lost_without_count(shown["ledger"], shown["rows"]["page_fault"])


@needs_root
@pytest.mark.parametrize("mib", [16, 24, 32, 256])
def test_a_tracer_with_little_memory(touches, tmp_path, limited, mib):
    """It is killed, or it goes on: what the file holds can be read, and the target runs to its end."""
    group, said = limited(mib), tmp_path / "said"
    outside = group.parent.parent / "cgroup.procs"
    target = f"echo $$ > {outside}; exec {touches} 10000 30 > {said}"
    enter = f"echo $$ > {group}; exec {sys.executable} -m wstrace run -o {tmp_path / 'x.wst'} -- sh -c '{target}'"
    ran = subprocess.run(["sh", "-c", enter], capture_output=True, text=True, timeout=120)
    until = time.monotonic() + 60
    if ran.returncode == -signal.SIGKILL:
        if not said.exists():
            return  # before the target was started
        while "300000" not in said.read_text() and time.monotonic() < until:
            time.sleep(0.05)
    else:
        assert ran.returncode in (0, 122, 123), ran.stderr
        assert "internal error" not in ran.stderr
        assert mib < 256 or ran.returncode == 0
    if ran.returncode != 122:
        assert said.read_text().split() == ["up", "300000"]
    if (tmp_path / "x.wst").exists():
        shown = figures(tmp_path / "x.wst")
        assert shown["state"] in (("clean",) if mib == 256 else ("clean", "incomplete", "cut"))
        if shown["state"] == "clean":
            assert shown["rows"]["page_fault"] + sum(
                n for stage, n in shown["ledger"].items() if stage.startswith("lost_kernel")) >= 300_000  # fmt: skip
            assert_nothing_is_lost_without_count(shown["ledger"], shown["rows"]["page_fault"])


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_closes(touches, tmp_path, ignored):
    """The kernel hangs up both: the trace is whole, and a target that ignores it is traced to its end."""
    path, said = tmp_path / "x.wst", tmp_path / "said"
    trap = "trap '' HUP; " * ignored
    words = [
        "run",
        "-o",
        path,
        "--",
        "sh",
        "-c",
        f"{trap}exec {touches} 2000 {300 if ignored else 10**9} > {said}",
    ]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "wstrace", *map(str, words)], buffered)
    until = time.monotonic() + 60
    while not (said.exists() and said.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    # 123: the report had nowhere to go; a command's own code that is not 0 comes before that
    assert os.waitstatus_to_exitcode(status) == (123 if ignored else 128 + signal.SIGHUP)
    shown = figures(path)
    assert shown["state"] == "clean"
    assert_nothing_is_lost_without_count(shown["ledger"], shown["rows"]["page_fault"])
    if ignored:
        assert said.read_text().split() == ["up", "600000"]
        assert shown["rows"]["page_fault"] >= 600_000
    else:
        assert shown["facts"]["exit_signal"] == "SIGHUP"
        assert shown["rows"]["page_fault"] >= 2000


@pytest.mark.parametrize("ring", [8192, 1 << 20])
def test_a_tracer_that_is_stopped_and_goes_on(touches, tmp_path, ring):
    path, said = tmp_path / "x.wst", tmp_path / "said"
    words = ["run", "--fail-on-loss", "-s", f"page_faults:ring_bytes={ring}", "-o", path, "--",
             "sh", "-c", f"exec {touches} 2000 150 > {said}"]  # fmt: skip
    command = [sys.executable, "-m", "wstrace", *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tracer:
        until = time.monotonic() + 60
        while not (said.exists() and said.read_text()) and time.monotonic() < until:
            time.sleep(0.01)
        tracer.send_signal(signal.SIGSTOP)
        while "300000" not in said.read_text() and time.monotonic() < until:  # the target is not held up by it
            time.sleep(0.05)
        tracer.send_signal(signal.SIGCONT)
        _, words_said = tracer.communicate(timeout=60)
    assert said.read_text().split() == ["up", "300000"]
    shown = figures(path)
    lost = sum(n for stage, n in shown["ledger"].items() if stage.startswith("lost_kernel"))
    assert tracer.returncode == (121 if lost else 0), words_said
    assert lost > 100_000, "rings of this size do not hold what came meanwhile"
    assert shown["rows"]["page_fault"] + lost >= 300_000
    assert_nothing_is_lost_without_count(shown["ledger"], shown["rows"]["page_fault"])
