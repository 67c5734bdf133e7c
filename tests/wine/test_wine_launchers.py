"""Launchers that decide when they run (`py`, `uv run`): the trace is of the program that they start."""

import os
import shutil
import subprocess
import sys

import pytest

import wstrace
from wstrace.errors import Unavailable
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.backend import platform

HERE = os.path.dirname(os.path.abspath(__file__))
KNOWN = os.path.join(HERE, "known_faults.py")
PY = os.path.join(os.path.dirname(sys.executable), "py.exe")

pytestmark = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") != "1", reason="only on the Python with the stand-in")


def ended(pid):
    try:
        with processes.opened(winapi, pid, winapi.QUERY_RIGHTS | winapi.SYNCHRONIZE) as handle:
            return processes.exited(winapi, handle, 10_000)
    except Unavailable:
        return True


def test_the_program_behind_a_launcher_is_the_target(command, tmp_path):
    path = tmp_path / "x.wst"
    # Wine forgets the peak of a process that has ended, so it stays long enough to be asked for it
    lasting = f"import runpy, time\ntry: runpy.run_path({KNOWN!r})\nfinally: time.sleep(1)"
    code, _, err = command("run", "-o", path, "--", PY, sys.executable, "-c", lasting, "2", "50")
    assert code == 3, err
    with wstrace.open_trace(str(path)) as trace:
        info, first = trace.info, next(iter(trace.batches("process")))
        assert info.targets == (int(first["pid"][0]),)
        assert sum(len(batch) for batch in trace.batches("page_fault")) == 100
        assert trace.ledger.get("before_watch") == 0
        assert info.usage.peak_resident_bytes > 1 << 20
        assert info.usage.peak_pid == info.targets[0]
        note = f"python.exe ({info.targets[0]}) was started by py.exe ("
        assert [text for text in info.notes if text.startswith(note) and text.endswith("), which is not traced")]


def test_its_words_output_and_exit_code_are_the_programs(command):
    script = "import sys; print(sys.argv[1:]); sys.exit(7)"
    code, out, err = command("run", "--", PY, sys.executable, "-c", script, "two words", "x")
    assert (code, out) == (7, "['two words', 'x']\n"), err


def test_nothing_of_the_program_has_run_when_it_is_held(tmp_path):
    ran = tmp_path / "ran"
    script = f"import pathlib; pathlib.Path({str(ran)!r}).touch(); raise SystemExit(5)"
    target = platform().launch([PY, sys.executable, "-c", script])
    assert target.name == "python.exe"
    assert target.started_by.startswith("py.exe (")
    assert target.wait(1) is None
    assert not ran.exists()
    assert not target.job.news()  # neither the launcher nor what it asked before
    assert target.job.members() == [target.pid]
    target.resume()
    assert target.wait(20) == 5
    assert ran.exists()
    target.close()


def test_a_program_that_is_never_resumed_is_ended_with_its_launcher():
    target = platform().launch([PY, sys.executable, "-c", "import time; time.sleep(60)"])
    pid, launcher = target.pid, int(target.started_by.partition("(")[2][:-1])
    target.close()
    assert ended(pid)
    assert ended(launcher)


def test_a_launcher_that_starts_nothing(command):
    code, _, err = command("run", "--", PY)
    assert code == 122
    assert "py.exe ended without starting a program: there was nothing to trace (exit code 3)" in err


def test_a_launcher_behind_a_launcher_is_passed(tmp_path):
    shim = tmp_path / "tool.exe"
    shutil.copy(PY, shim)
    (tmp_path / "tool.shim").write_text("path = anything\n")
    target = platform().launch([str(shim), PY, sys.executable, "-c", "pass"])
    assert target.name == "python.exe"
    assert target.job.members() == [target.pid]
    target.resume()
    assert target.wait(20) == 0
    target.close()


def test_a_tracer_that_is_killed_leaves_neither_launcher_nor_program():
    tracer = f"""
import sys, time
from wstrace_plugins.os.windows.backend import platform
target = platform().launch([{PY!r}, sys.executable, "-c", "import time; time.sleep(20)"])
print(target.pid, target.started_by.partition("(")[2][:-1], flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", tracer], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in process.stdout.readline().split()]
    process.kill()
    process.wait(20)
    process.stdout.close()
    assert [ended(pid) for pid in pids] == [True, True]
