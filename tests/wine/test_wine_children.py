"""Children: births reported by a job object, and what was missed until a child was found."""

import os
import re
import subprocess
import sys

import pytest
from kit.command_line import until

import wstrace
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.backend import platform

KNOWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "known_faults.py")
PY = os.path.join(os.path.dirname(sys.executable), "py.exe")
BREAKAWAY = 0x0100_0000  # CREATE_BREAKAWAY_FROM_JOB
NO_LISTING = """
from wstrace_plugins.page_faults.windows.backend import PageFaults
PageFaults.listing_seconds = 1e9, 1e9
"""

pytestmark = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") != "1", reason="only on the Python with the stand-in")


def run_with(setup, path, *command, program=sys.executable):
    """`wstrace run -o path -- program command` after some lines of Python in the tracer."""
    script = f"{setup}\nimport sys\nfrom wstrace.cli import main\nsys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", script, "run", "-o", str(path), "--", program, *command]
    return subprocess.run(words, capture_output=True, timeout=60)


def test_a_job_tells_each_birth_once():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass']); sys.exit(3)"
    target = platform().launch([sys.executable, "-c", code])
    job = target.job
    assert not job.news()  # the target itself is no news
    target.resume()
    until(job.news)
    assert not job.news()
    target.job = None
    job.close()
    assert target.wait(20) == 3  # without a job handle, too
    target.close()


RUN = "import subprocess, sys, time; subprocess.run([sys.executable, *sys.argv[1:]], creationflags={})"
START = "import subprocess, sys; subprocess.Popen([sys.executable, *sys.argv[1:]])"


@pytest.mark.parametrize(("program", "words"), [
    (sys.executable, [RUN.format(0)]),
    (sys.executable, [RUN.format(BREAKAWAY)]),  # as it may where nobody traces
    (sys.executable, [RUN.format(0) + "; time.sleep(4)", "-c", START]),  # cmd /c, make: their child has ended at once
    (PY, [RUN.format(0)]), (PY, [RUN.format(BREAKAWAY)]),  # the interpreter is in a job that its children leave
])  # fmt: skip
def test_a_child_is_followed_by_the_job_s_word_alone(tmp_path, monkeypatch, program, words):
    """No listing by time: the outer job holds every child, and reports it."""
    monkeypatch.setenv("LAUNCHED", sys.executable)
    done = run_with(NO_LISTING, tmp_path / "x.wst", "-c", *words, KNOWN, "2", "50", program=program)
    assert done.returncode == 0, done.stderr
    with wstrace.open_trace(str(tmp_path / "x.wst")) as trace:
        assert sum(len(batch) for batch in trace.batches("page_fault")) == 100
        assert trace.ledger.get("before_watch") == 0


def test_a_child_s_missed_start_stands_in_the_ledger_and_in_the_report(command, tmp_path):
    """The tracer does not see the child before it has made 40 faults; then come 10 that are watched."""
    seen, path = tmp_path / "seen", tmp_path / "x.wst"
    child = tmp_path / "child.py"
    child.write_text(f"""
import pathlib, sys, time
import faulting
faulting.faults((0x7F0000001000, 0x20000 + 4096 * n, 5, False) for n in range(40))
pathlib.Path({str(seen)!r}).touch()
until = time.monotonic() + 20
while not faulting.enabled() and time.monotonic() < until:
    time.sleep(0.001)
faulting.faults((0x7F0000002000, 0x90000 + 4096 * n, 6, False) for n in range(10))
while faulting.waiting() and time.monotonic() < until:
    time.sleep(0.001)
""")
    unseen = f"""
import os
from wstrace_plugins.os.windows.job import Job
from wstrace_plugins.page_faults.windows.drainer import Drainer
listed = Drainer.list_children
Drainer.list_children = lambda self: os.path.exists({str(seen)!r}) and listed(self)
Job.news = Job.members = lambda self: []
"""
    parent = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]])"
    done = run_with(unseen, path, "-c", parent, str(child))
    assert done.returncode == 0, done.stderr
    with wstrace.open_trace(str(path)) as trace:
        assert trace.ledger.get("before_watch") == 40
        addresses = [va for batch in trace.batches("page_fault") for va in batch["va"].tolist()]
        assert addresses == [0x90000 + 4096 * n for n in range(10)]
        assert trace.ledger.get("counted") == 10
    for said in (done.stderr.decode(), command("report", path)[1]):
        assert re.search(r"note +40  faults of a child before it could be watched", said), said


def test_a_job_lists_its_members_and_knows_a_stranger():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; sys.stdin.read()'])"
    target = platform().launch([sys.executable, "-c", code])
    target.resume()
    until(lambda: len(target.job.members()) == 2)
    assert target.pid in target.job.members()
    with processes.opened(winapi, os.getpid(), winapi.QUERY_RIGHTS) as us:
        assert not target.job.has(us)
    for pid in target.job.members():
        with processes.opened(winapi, pid, winapi.QUERY_RIGHTS | winapi.PROCESS_TERMINATE) as handle:
            assert target.job.has(handle)
            assert processes.parent(winapi, handle) == (os.getpid() if pid == target.pid else target.pid)
            winapi.TerminateProcess(handle, 0)
    target.wait(20)
    target.close()
