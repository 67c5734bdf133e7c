"""Children: births told by a job object, and what was missed until a child was found."""

import os
import re
import subprocess
import sys
import time

import pytest

import wstrace
from wstrace.errors import Unavailable
from wstrace_os.windows import api as winapi
from wstrace_os.windows.backend import platform
from wstrace_os.windows.job import Job

HERE = os.path.dirname(os.path.abspath(__file__))
KNOWN = os.path.join(HERE, "known_faults.py")
BREAKAWAY = 0x0100_0000  # CREATE_BREAKAWAY_FROM_JOB

pytestmark = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") != "1", reason="only on the Python with the stand-in")


def run_with(setup, path, *command):
    """`wstrace run -o path -- command` after some lines of Python in the tracer."""
    script = f"{setup}\nimport sys\nfrom wstrace.cli import main\nsys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", script, "run", "-o", str(path), "--", sys.executable, *command]
    return subprocess.run(words, capture_output=True, timeout=60)


def wait_for_news(job):
    until = time.monotonic() + 20
    while not job.news():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_job_tells_each_birth_once():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'])"
    target = platform().launch([sys.executable, "-c", code])
    job = Job(winapi, target.pid)
    assert not job.news()  # the target itself is no news
    target.resume()
    wait_for_news(job)
    assert not job.news()
    job.close()
    assert target.wait(20) == 0  # without a job handle, too
    target.close()


def test_a_process_that_cannot_be_opened_is_in_no_job():
    with pytest.raises(Unavailable):
        Job(winapi, 999999)


def test_no_handle_of_a_job_is_left_open():
    target = platform().launch([sys.executable, "-c", "pass"])
    first, jobs = Job(winapi, target.pid), []
    handles = set(first._handles)
    first.close()
    for _ in range(5):
        jobs.append(Job(winapi, target.pid))
        jobs[-1].close()
    again = Job(winapi, target.pid)
    assert set(again._handles) == handles  # the system gives the lowest free ones
    again.close()
    target.close()


def test_a_child_is_followed_by_the_job_s_word_alone(tmp_path):
    """No listing by time: the tracer asks for the processes when the job tells of a birth."""
    parent = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"
    never = "import wstrace_page_faults.windows.backend as half; half._STRAYS_SECONDS = 1e9"
    done = run_with(never, tmp_path / "x.wst", "-c", parent, KNOWN, "2", "50")
    assert done.returncode == 0, done.stderr
    with wstrace.open_trace(str(tmp_path / "x.wst")) as trace:
        assert sum(len(batch) for batch in trace.batches("page_fault")) == 100
        assert trace.ledger.get("before_watch") == 0


def test_a_child_may_leave_its_parents_job(tmp_path):
    """As it may where nobody traces; the listing by time finds it while it lives."""
    child = "import sys; sys.path.insert(0, sys.argv[1]); sys.stdin = ['wait 20']; import fault_on_request, time; " \
            "time.sleep(0.3)"  # fmt: skip
    parent = f"import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], creationflags={BREAKAWAY})"
    done = run_with("", tmp_path / "x.wst", "-c", parent, "-c", child, HERE)
    assert done.returncode == 0, done.stderr
    with wstrace.open_trace(str(tmp_path / "x.wst")) as trace:
        assert sum(len(batch) for batch in trace.batches("page_fault")) == 20


def test_a_child_s_missed_start_stands_in_the_ledger_and_in_the_report(command, tmp_path):
    """The tracer does not see the child before it has made 40 faults; then come 10 that are watched."""
    seen, path = tmp_path / "seen", tmp_path / "x.wst"
    child = tmp_path / "child.py"
    child.write_text(f"""
import pathlib, sys, time
sys.path.insert(0, {HERE!r})
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
from wstrace_os.windows import process as windows_process
listed = windows_process.descendants
windows_process.descendants = lambda *a: listed(*a) if os.path.exists({str(seen)!r}) else []
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
