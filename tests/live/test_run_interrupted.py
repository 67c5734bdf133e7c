"""The second Ctrl-C under `run` ends the trace: it is the way to end it, and no reason to leave the file cut."""

import os
import signal
import subprocess
import sys
import time

from kit.command_line import wstrace as command

import wstrace

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
    with wstrace.open_trace(path) as trace:
        assert trace.clean


def test_a_trace_of_no_time_ends_at_once():
    """0 s is a duration, and not none."""
    with subprocess.Popen(["sleep", "600"]) as target:
        try:
            done = command("attach", target.pid, "--duration", "0s")
        finally:
            target.kill()
    assert done.returncode == 0, done.stderr
