"""The whole path on the real kernel: Session on ourselves and on others, the command line, and Ctrl-C."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import warnings

import pytest
from kit.command_line import WSTRACE, wstrace

from wstrace import open_trace

pytestmark = pytest.mark.usefixtures("full_level")

EMBEDDED = """
import contextlib, mmap, os, sys
import numpy as np
from wstrace.session import Session
fds = sorted(os.listdir("/proc/self/fd"))
def touch(n):
    m = mmap.mmap(-1, n * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        m.madvise(mmap.MADV_NOHUGEPAGE)
    base = np.frombuffer(m, np.uint8).__array_interface__["data"][0]
    for i in range(n): m[mmap.PAGESIZE * i] = 1
    return m, base
with Session() as session:
    with Session() as other:
        kept, base = touch(3000)
    pid = os.fork()
    if pid == 0:
        more, there = touch(50)
        os._exit(0 if "perf" not in str([os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{fd}")]) else 1)
    code = os.waitpid(pid, 0)[1]
for one in (session, other):
    faults = one.faults
    here = (faults["va"] >= base) & (faults["va"] < base + 3000 * mmap.PAGESIZE)
    inside = faults[here & (faults["pid"] == os.getpid())]
    assert len(inside) == 3000 == len(set(inside["va"].tolist())), (len(faults), len(inside), one.ledger.as_dict())
    assert not set(faults["tid"].tolist()) & set(one.context.own_threads())
    ledger = one.ledger
    gone = ledger.get("lost_kernel") + ledger.get("foreign_clock") + ledger.get("unaccounted")
    assert ledger.get("recorded", "page_fault") + gone == ledger.get("counted"), ledger.as_dict()
    assert ledger.losses() == [], ledger.losses()
assert pid in set(session.faults["pid"].tolist())
assert pid not in set(other.faults["pid"].tolist())
session.stop()
assert code == 0
assert session.ledger.get("recorded", "page_fault") == len(session.faults)
assert sorted(os.listdir("/proc/self/fd")) == fds
print("fine")
"""


def test_a_program_that_traces_itself():
    quiet = "-Wignore:This process:DeprecationWarning"  # Python 3.12 and newer, at a fork() beside any thread
    run = subprocess.run([sys.executable, quiet, "-c", EMBEDDED], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr, run.returncode) == ("fine\n", "", 0)


def test_run_hands_the_target_through(touch):
    run = wstrace("run", "-P", "no:console", "--", "sh", "-c", f"{touch} 100; cat; exit 7", input="given\n")
    assert run.returncode == 7
    assert run.stdout.endswith("\ngiven\n")


def test_wait_children(touch, tmp_path):
    """A daemon holds nothing up, unless it shall."""
    script = f"(sleep 0.7; exec {touch} 700) >/dev/null 2>&1 &"
    began = time.monotonic()
    without = wstrace("run", "-P", "no:console", "--", "sh", "-c", script)
    assert without.returncode == 0
    short = time.monotonic() - began
    path = str(tmp_path / "x.wst")
    assert wstrace("run", "-q", "--wait-children", "-o", path, "--", "sh", "-c", script).returncode == 0
    with open_trace(path) as trace:
        assert any(row.label.startswith("touch") for row in trace.report(by="process").rows)
    assert short < 20


def test_processes_that_go_on_behind_the_command_are_named(tmp_path):
    """GIVEN a process that outlives the command THEN a line names it, and says how it would have been traced on."""
    holds = tmp_path / "holds"
    os.mkfifo(holds)
    script = f"cat {holds} >/dev/null 2>&1 & cat {holds} >/dev/null 2>&1 & sleep 0.1"
    run = wstrace("run", "-P", "no:console", "--", "sh", "-c", script)
    with holds.open("w"):
        pass
    (line,) = run.stderr.splitlines()
    assert re.fullmatch(
        r"wstrace: no longer traced, still running: cat \(\d+\), cat \(\d+\); `wstrace run --wait-children` "
        r"waits for them, `wstrace attach \d+ \d+` traces them from now on", line), line  # fmt: skip
    waited = wstrace("run", "--wait-children", "-P", "no:console", "--", "sh", "-c", "sleep 0.2 & sleep 0.1")
    assert waited.stderr == ""


def test_ctrl_c_reaches_the_target_and_we_wait():
    # Without print: the signal may come while it still holds the stream, which may not be written to then.
    code = """
import os, signal, sys, time
def taken(*_):
    os.write(1, b"taken\\n"); time.sleep(0.3); os.write(1, b"done\\n"); sys.exit(5)
signal.signal(signal.SIGINT, taken)
os.write(1, b"ready\\n")
time.sleep(60)
"""
    command = [*WSTRACE, "run", "-P", "no:console", "--", sys.executable, "-S", "-c", code]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork() beside numpy's threads: the child only executes
        pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # EIO: the terminal's other end is closed
        while more := os.read(terminal, 1000):
            shown += more
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    assert shown.decode().replace("^C", " ").split() == ["ready", "taken", "done"]


@pytest.mark.skipif(os.geteuid() != 0, reason="plays sudo: needs root")
def test_under_sudo_the_target_is_the_callers(touch):
    environment = {**os.environ, "SUDO_UID": "65534", "SUDO_GID": "65534", "SUDO_USER": "nobody"}
    run = wstrace("run", "-P", "no:console", "--", "sh", "-c", "id -un; echo $HOME", environment=environment)
    assert run.stdout == "nobody\n/nonexistent\n"
    run = wstrace("run", "-P", "no:console", "--user", "root", "--", "id", "-un", environment=environment)
    assert run.stdout == "root\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="plays sudo: needs root")
def test_under_sudo_a_trace_that_is_kept_for_one_answer_only_is_written():
    """It was opened with the caller's rights in a folder of root's."""
    environment = {**os.environ, "SUDO_UID": "65534", "SUDO_GID": "65534", "SUDO_USER": "nobody"}
    run = wstrace("report", "--json", "--", "true", environment=environment)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)


SLOW_DISK = """
import os, sys, time
def slowly(sync):
    def slow(fd):
        time.sleep(0.7)
        return sync(fd)
    return slow
os.fsync, os.fdatasync = slowly(os.fsync), slowly(os.fdatasync)
from wstrace.cli import main
sys.exit(main(sys.argv[1:]))
"""
TARGET = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True); time.sleep(30)"


def test_the_file_is_whole_on_a_disk_that_needs_longer_than_a_second(tmp_path):
    path = str(tmp_path / "x.wst")
    words = [sys.executable, "-c", SLOW_DISK, "run", "-o", path, "--", sys.executable, "-c", TARGET]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as tracing:
        assert tracing.stdout.readline() == b"ready\n"
        try:
            for _ in range(2):
                tracing.send_signal(signal.SIGINT)
                time.sleep(0.5)  # two at once are one
            code = tracing.wait(20)
        finally:
            os.killpg(tracing.pid, signal.SIGKILL)
        assert code == 0, tracing.stderr.read()
    with open_trace(path) as trace:
        assert trace.clean


def test_a_trace_of_no_time_ends_at_once():
    """0 s is a duration, and not none."""
    with subprocess.Popen(["sleep", "600"]) as target:
        try:
            done = wstrace("attach", target.pid, "--duration", "0s")
        finally:
            target.kill()
    assert done.returncode == 0, done.stderr
