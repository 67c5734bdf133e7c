"""Real Windows: what only its kernel can show. Touch N pages: N addresses; and the documents' statements held to it."""

import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from kit.command_line import answer, begun
from kit.command_line import wstrace as wstrace_of

if sys.platform != "win32":
    pytest.skip("only on Windows: the kernel's own watch", allow_module_level=True)

from wstrace_plugins.os.windows import process as processes

if processes.wine_version():
    pytest.skip("only on Windows itself: Wine's watch is a stub", allow_module_level=True)

import wstrace
from wstrace.schema import FAULT_MAJOR, FAULT_PC_KERNEL, PAGE_LOCKED
from wstrace.session import Session
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.page_faults.windows.watch import KERNEL_RECORDS, Watch
from wstrace_plugins.working_set.windows.backend import Space, size

PAGE = 4096
ALLOCATE = """
    import ctypes, sys, time
    k = ctypes.WinDLL("kernel32")
    k.VirtualAlloc.restype = ctypes.c_void_p
    k.VirtualAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint32]
    def region(pages):
        return k.VirtualAlloc(None, pages * 4096, 0x3000, 4)
    def touch(start, pages, pause=0):
        for page in range(pages):
            ctypes.c_char.from_address(start + page * 4096).value = b"x"
            if pause and page % pause == pause - 1:
                time.sleep(0.02)
"""


@pytest.fixture
def child():
    """A Python that runs lines sent to it and answers each with what it prints."""
    code = (
        textwrap.dedent(ALLOCATE)
        + "print('ready', flush=True)\nfor line in sys.stdin:\n    exec(line)\n    print(flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().strip() == "ready"

    def tell(line):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    tell.pid, tell.process = process.pid, process
    yield tell
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def run(tmp_path, script, *options):
    path = tmp_path / "x.wst"
    return answer("run", *options, "-o", path, "--", sys.executable, "-c", textwrap.dedent(script)), path


def addresses(path):
    with wstrace.open_trace(str(path)) as trace:
        return np.concatenate([batch["va"] for batch in trace.batches("page_fault")])


def test_n_pages_touched_are_n_addresses(tmp_path):
    pages = 3000
    script = ALLOCATE + f"\n    at = region({pages})\n    print(f'{{at:x}}')\n    touch(at, {pages}, pause=200)\n"
    printed, path = run(tmp_path, script)
    start = int(printed, 16)
    found = addresses(path)
    ours = found[(found >= start) & (found < start + pages * PAGE)]
    assert sorted(set((ours // PAGE).tolist())) == [start // PAGE + n for n in range(pages)]


def test_an_overflow_is_counted(child):
    watch = Watch(winapi, child.pid)
    watch.discard()
    child(f"touch(region({4 * KERNEL_RECORDS}), {4 * KERNEL_RECORDS})")
    changes = watch.drain()
    assert len(changes) == KERNEL_RECORDS
    assert changes.lost >= 3 * KERNEL_RECORDS - 64
    counted = watch.counted()
    assert counted == pytest.approx(len(changes) + changes.lost, abs=64)
    watch.close()


def test_soft_faults_of_user_code_are_distinguished_from_the_kernels(child):
    watch = Watch(winapi, child.pid)
    watch.discard()
    start = int(child("at = region(64); print(f'{at:x}', end='')"), 16)
    child("touch(at, 64)")
    columns = watch.drain().columns
    ours = (columns["va"] >= start) & (columns["va"] < start + 64 * PAGE)
    assert ours.sum() == 64
    assert not (columns["flags"][ours] & (FAULT_MAJOR | FAULT_PC_KERNEL)).any()
    assert len(set(columns["tid"][ours].tolist())) == 1
    watch.close()


def test_the_rest_is_drained_after_the_exit(child):
    watch = Watch(winapi, child.pid)
    watch.discard()
    start = int(child("at = region(100); print(f'{at:x}', end='')"), 16)
    child("touch(at, 100)")
    child.process.stdin.close()
    child.process.wait(10)
    assert watch.exited()
    found = watch.drain().columns["va"]
    assert ((found >= start) & (found < start + 100 * PAGE)).sum() == 100
    watch.close()


def test_attach_and_a_session_in_the_own_process(child):
    with Session(pid=child.pid) as session:
        start = int(child("at = region(500); print(f'{at:x}', end='')"), 16)
        child("touch(at, 500, pause=100)")
        time.sleep(0.2)
    found = session.faults["va"]
    assert len(set((found[(found >= start) & (found < start + 500 * PAGE)] // PAGE).tolist())) == 500
    with Session() as session:
        buffer = bytearray(4 << 20)
    assert len(session.faults) > 0
    del buffer


def test_the_total_is_the_working_set_size(child):
    child("touch(region(2000), 2000)")
    with Space(child.pid) as space:
        snapshot = space.runs(space.mappings(wstrace.Dictionary()))
        total, _ = size(child.pid)
    assert int(snapshot["pages"].sum()) * PAGE == pytest.approx(total, rel=0.02)


def test_emptying_makes_pages_leave(child):
    child("at = region(5000); touch(at, 5000)")
    done = wstrace.empty_working_set(child.pid)
    assert done.left > 4000 * PAGE
    assert done.after < done.before


def test_a_locked_page_is_reported_and_stays(child):
    start = int(
        child("at = region(8); touch(at, 8); k.VirtualLock(ctypes.c_void_p(at), 4096); print(f'{at:x}', end='')"), 16
    )
    with Space(child.pid) as space:
        runs = space.runs(space.mappings(wstrace.Dictionary()))
        ours = (runs["start"] >= start) & (runs["start"] < start + 8 * PAGE)
    assert runs["pages"][ours].tolist() == [1, 7]
    assert ((runs["flags"][ours] & PAGE_LOCKED) != 0).tolist() == [True, False]


def test_children_are_followed(tmp_path):
    script = """
        import subprocess, sys, time
        child = "import time; time.sleep(1); b = bytearray(8 << 20); time.sleep(0.2)"
        subprocess.run([sys.executable, "-c", child])
    """
    _, path = run(tmp_path, script)
    with wstrace.open_trace(str(path)) as trace:
        pids = {pid for batch in trace.batches("page_fault") for pid in np.unique(batch["pid"]).tolist()}
    assert len(pids) >= 2


def test_the_commands_work(child):
    for words in (["ps"], ["snapshot", str(child.pid)], ["delta", str(child.pid), "--duration", "1s"],
                  ["empty", str(child.pid), "--yes"], ["doctor"], ["snapshot", str(child.pid), "--sections"],
                  ["wss", str(child.pid), "--for", "1s", "--by-emptying", "--yes"]):  # fmt: skip
        answer(*words)


def test_ctrl_break_ends_an_attach_with_a_whole_file(child, tmp_path):
    """The console event that one process can send to another one's group alone."""
    path = tmp_path / "x.wst"
    tracer = begun("attach", child.pid, "-o", path, creationflags=subprocess.CREATE_NEW_PROCESS_GROUP)
    time.sleep(3)
    child("start = region(100); touch(start, 100)")
    tracer.send_signal(signal.CTRL_BREAK_EVENT)
    _, said = tracer.communicate(timeout=30)
    assert tracer.returncode == 0, said
    with wstrace.open_trace(str(path)) as trace:
        assert trace.clean
        assert sum(len(batch) for batch in trace.batches("page_fault")) >= 100


def test_a_process_of_the_system_is_refused_with_what_to_do():
    done = wstrace_of("attach", 4)
    assert done.returncode == 122
    assert done.stderr.count("\n") == 1
