"""The peak of line 1 is that of the largest process, whoever started it, waits for it, or not; never a smaller one."""

import os
import platform
import re
import subprocess
import sys
import time
from contextlib import closing

import pytest
from kit.command_line import wstrace

from wstrace import Session, open_trace
from wstrace.plugins import own_platform
from wstrace.trace_info import Usage

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux") or os.geteuid() != 0, reason="needs root on Linux")

MIB = 1 << 20
# not `python3`, which may be a script that takes as long to find one as the trace lasts
LARGE = (
    f"{sys.executable} -IS -c "
    "'import time; held = bytearray({0} << 20); held[::4096] = b\"x\" * ({0} << 8); time.sleep({1})'"
)


def traced(tmp_path, *arguments: str) -> Usage:
    """What a trace says of the memory of `wstrace run ARGUMENTS`."""
    path = tmp_path / "x.wst"
    wstrace("run", "-q", "-f", "-o", path, *arguments, start_new_session=True)
    with open_trace(str(path)) as trace:
        return trace.info.usage


@pytest.mark.parametrize(
    ("options", "script"),
    [
        (("--duration",), f"{LARGE.format(80, 60)} & wait"),  # it lives on
        (("--duration",), f"{LARGE.format(80, 1)}; sleep 60"),  # it has ended, and who waited for it has not
        ((), f"( {LARGE.format(80, 1)} & ); sleep 2"),  # nobody of the family waits for it
        (("--wait-children",), f"setsid {LARGE.format(80, 1)} &"),  # it outlives the command
    ],
)
def test_a_descendant_that_nobody_has_waited_for_counts(tmp_path, options, script):
    for seconds in (3, 9, 27):  # on a busy machine it may not have run in so short a time
        duration = [f"{seconds}s"] if options == ("--duration",) else []
        usage = traced(tmp_path, *options, *duration, "--", "timeout", str(seconds + 7), "bash", "-c", script)
        if not duration or (usage.peak_resident_bytes or 0) > 80 * MIB:
            break
    assert usage.peak_resident_bytes is not None
    assert 80 * MIB < usage.peak_resident_bytes < 110 * MIB
    assert usage.peak_pid is not None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the launcher is as large as Python elsewhere")
def test_the_peak_of_a_command_that_is_hardly_larger_than_its_launcher_is_known():
    for _ in range(8):  # 7 of 12 runs said nothing
        with closing(own_platform().launch(["true"])) as target:
            target.resume()
            while target.wait(1) is None:
                pass
            usage = target.usage()
        assert not usage.peak_sampled
        assert 0.3 * MIB < usage.peak_resident_bytes < 4 * MIB


def test_line_1_names_the_child_that_had_the_peak_though_rusage_does_not():
    shown = wstrace("run", "--", "sh", "-c", f"true; {LARGE.format(60, 3)}; true")
    line = r"[67]\d\.\d MiB at the peak in \d processes, .*: ~?[56]\d\.\d "
    assert re.match(line, shown.stderr), shown.stderr


def test_without_children_the_peak_and_the_faults_are_the_command_s_own(tmp_path):
    usage = traced(tmp_path, "--no-children", "--", "bash", "-c", f"{LARGE.format(50, 0)}; true")
    assert usage.peak_resident_bytes is not None
    assert usage.peak_resident_bytes < 10 * MIB
    assert usage.minor is not None
    assert usage.minor < 3000


def test_what_an_attached_process_had_before_is_no_peak_of_the_trace():
    code = (
        "import mmap, sys; m = mmap.mmap(-1, 200 << 20); m[::4096] = b'x' * (200 << 8); m.close(); print(1, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", f"{code}; sys.stdin.read()"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as target:  # fmt: skip
        target.stdout.readline()
        with Session(target.pid) as session:
            time.sleep(0.5)
        usage = session.info.usage
        target.kill()
    assert usage.peak_resident_bytes is not None
    assert usage.peak_resident_bytes < 100 * MIB
    assert usage.peak_sampled
