"""A trace under hardship: a memory limit, a terminal that closes, a tracer that is stopped, a pid given out anew."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kit.cgroups import made_cgroup
from kit.command_line import WSTRACE, begun, until, wstrace
from kit.recorded_run import compiled

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
def touches(tmp_path_factory):
    """The program TOUCHES."""
    return compiled(tmp_path_factory.mktemp("touches"), TOUCHES)


@pytest.fixture
def limited():
    """limited(mib): a cgroup whose processes may have that much memory, and no swap."""
    with made_cgroup("-little") as made:

        def limit(mib):
            made.limit(mib << 20)
            return made

        yield limit


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
    ran = wstrace("run", "-o", tmp_path / "x.wst", "--", *limited(24).joining(), touches, 20_000, 1)
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
    outside = (group.memory or group.folder).parent / "cgroup.procs"
    target = f"echo $$ > {outside}; exec {touches} 10000 30 > {said}"
    words = [*group.joining(), *WSTRACE, "run", "-o", tmp_path / "x.wst", "--", "sh", "-c", target]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if ran.returncode == -signal.SIGKILL:
        if not said.exists():
            return  # before the target was started
        until(lambda: "300000" in said.read_text())
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
    script = f"{trap}exec {touches} 2000 {300 if ignored else 10**9} > {said}"
    words = ["run", "-o", path, "--", "sh", "-c", script]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*WSTRACE, *map(str, words)], buffered)
    until(lambda: said.exists() and said.read_text())
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
    words = ("-s", f"page_faults:ring_bytes={ring}", "-o", path, "--", "sh", "-c", f"exec {touches} 2000 150 > {said}")
    with begun("run", "--fail-on-loss", *words) as tracer:
        until(lambda: said.exists() and said.read_text())
        tracer.send_signal(signal.SIGSTOP)
        until(lambda: "300000" in said.read_text())  # the target is not held up by it
        tracer.send_signal(signal.SIGCONT)
        _, words_said = tracer.communicate(timeout=60)
    assert said.read_text().split() == ["up", "300000"]
    shown = figures(path)
    lost = sum(n for stage, n in shown["ledger"].items() if stage.startswith("lost_kernel"))
    assert tracer.returncode == (121 if lost else 0), words_said
    assert lost > 100_000, "rings of this size do not hold what came meanwhile"
    assert shown["rows"]["page_fault"] + lost >= 300_000
    assert_nothing_is_lost_without_count(shown["ledger"], shown["rows"]["page_fault"])
