"""Ctrl-C while a trace is under way, brought to wstrace the way the system brings them.

Windows (csrss) and Wine start a thread in the process at CtrlRoutine, with the event's number as its argument; it calls
the handlers, the latest first. The same thread is started here from outside.
"""

import ctypes
import os
import subprocess
import sys
from ctypes import c_size_t, c_uint32, c_void_p

import pytest

import wstrace
from wstrace_plugins.os.windows import api as winapi

pytestmark = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") != "1", reason="only on the Python with the stand-in")

CTRL_C = 0
CREATE_THREAD, VM_OPERATION, VM_WRITE = 0x2, 0x8, 0x20


def deliver(pid):
    """Has the process's handlers called for Ctrl-C; gives the thread's handle."""
    kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel32.CreateRemoteThread.argtypes = [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_uint32, c_void_p]
    kernel32.CreateRemoteThread.restype = c_void_p
    routine = ctypes.cast(ctypes.WinDLL("kernelbase").CtrlRoutine, c_void_p)  # at one address in every process
    handle = winapi.open_process(winapi, pid, winapi.QUERY_RIGHTS | CREATE_THREAD | VM_OPERATION | VM_WRITE)
    thread = kernel32.CreateRemoteThread(handle, None, 0, routine, CTRL_C, 0, None)
    assert thread, ctypes.get_last_error()
    winapi.CloseHandle(handle)
    return thread


#: The command line, which says when a session has started: Ctrl-C before that abandons the start, with exit code 130.
NOTED = """
import sys
from wstrace.cli import main
from wstrace.session import Session
start = Session.start
def noted(session, **options):
    start(session, **options)
    print("started", flush=True)
    return session
Session.start = noted
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def tracer():
    """Starts `wstrace ARGUMENTS` up to the start of its session; ended in any case."""
    started = []

    def start(*words):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen([sys.executable, "-c", NOTED, *map(str, words)], **pipes))
        assert started[-1].stdout.readline().strip() == b"started"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def whole(path):
    """Opens a trace that must have its footer; gives the number of faults that it accounts for.

    A target that faults as soon as it is watched may be quicker than the attach, which leaves its first look out.
    """
    with wstrace.open_trace(str(path)) as trace:
        assert trace.clean
        return sum(len(batch) for batch in trace.batches("page_fault")) + trace.ledger.get("before_start")


def test_an_attach_ends_with_a_whole_file(target, tracer, tmp_path):
    process = target("fault_on_request.py")
    assert process.stdout.readline().strip() == "ready"
    tracing = tracer("attach", process.pid, "-o", tmp_path / "x.wst")
    process.stdin.write("wait 200\n")
    process.stdin.flush()
    assert process.stdout.readline().strip() == "done 200"
    thread = deliver(tracing.pid)
    _, said = tracing.communicate(timeout=20)
    winapi.CloseHandle(thread)
    assert tracing.returncode == 0, said
    assert b"saved" in said
    assert b"Traceback" not in said
    assert whole(tmp_path / "x.wst") == 200
    assert process.poll() is None  # the target goes on


def test_a_run_ends_although_its_target_goes_on(tracer, tmp_path):
    """By the second Ctrl-C: the first one is the target's (which shares the console, here it has none)."""
    script = "import faulting, time; " \
             "faulting.faults((0x7f0000001000, 0x20000 + i * 4096, 5, False) for i in range(300)); " \
             "print('done', flush=True); time.sleep(8)"  # fmt: skip
    tracing = tracer("run", "-o", tmp_path / "x.wst", "--", sys.executable, "-c", script)
    assert tracing.stdout.readline().strip() == b"done"
    deliver(tracing.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        tracing.wait(0.7)
    deliver(tracing.pid)
    code = tracing.wait(6)  # the target sleeps longer
    assert code == 0, tracing.stderr.read()
    assert whole(tmp_path / "x.wst") == 300


def test_ctrl_break_is_a_signal_like_ctrl_c(target, tmp_path):
    """Wine's C runtime makes no SIGBREAK of the console's event, so it is raised: see tests/live/test_windows.py."""
    process = target("fault_on_request.py")
    process.stdout.readline()
    script = """
import signal, sys, threading, time
from wstrace.cli import main
before = signal.getsignal(signal.SIGBREAK)
def press():
    while not any(thread.name == "wstrace-drain" for thread in threading.enumerate()):  # however long the start takes
        time.sleep(0.05)
    assert signal.getsignal(signal.SIGBREAK) != before
    time.sleep(0.5)
    signal.raise_signal(signal.SIGBREAK)
threading.Thread(target=press, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""
    words = ["attach", str(process.pid), "-o", str(tmp_path / "x.wst")]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert whole(tmp_path / "x.wst") == 0
