"""The watch calls through the real ctypes ABI: run, attach, API, children; every record and loss known in advance."""

import os
import sys

import numpy as np
import pytest

import wstrace
from wstrace.errors import TargetExited
from wstrace.schema import FAULT_MAJOR
from wstrace.session import Session
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.backend import platform
from wstrace_plugins.page_faults.windows.watch import KERNEL_RECORDS, Watch

KNOWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "known_faults.py")

pytestmark = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") != "1", reason="only on the Python with the stand-in")


def known(ntdll, heap, rounds, count):
    """What known_faults.py does: (pc, va, tid, hard)."""
    return [(ntdll + n, heap + i * 4096 + 16 * n, 100 + n, i % 4 == 0) for n in range(rounds) for i in range(count)]


def rows(batches):
    batches = [b for b in batches if b.schema.name == "page_fault" and len(b)]
    column = {name: np.concatenate([b[name] for b in batches]).tolist() for name in ("pc", "va", "tid", "flags")}
    return [(pc, va, tid, bool(flags & FAULT_MAJOR)) for pc, va, tid, flags in zip(*column.values(), strict=True)]


def test_run_writes_every_record_into_a_file_that_linux_can_read(command, out):
    code, printed, said = command("run", "-o", out / "wine.wst", "--", sys.executable, KNOWN, 3, 500)
    assert code == 3, said  # the target's own
    ntdll, heap = (int(word, 16) for word in printed.split())
    with wstrace.open_trace(str(out / "wine.wst")) as trace:
        assert rows(trace.batches("page_fault")) == known(ntdll, heap, 3, 500)
        assert trace.ledger.get("recorded", "page_fault") == 1500
    assert "1,500 faults, 375 from disk" in said
    assert "complete: 1,500 faults, 0 lost" in said
    assert "saved" in said
    assert "ntdll.dll!" in said  # the function of the instruction, by VirtualQueryEx and GetMappedFileName


def test_loss_is_a_number_and_fails_on_request(command, tmp_path):
    path = tmp_path / "loss.wst"
    script = "import faulting; " \
             "faulting.faults((0x7f0000001000, 0x20000 + i * 4096, 5, False) for i in range(1500))"  # fmt: skip
    code, _, said = command("run", "--fail-on-loss", "-o", path, "--", sys.executable, "-c", script)
    assert code == 121, said
    assert "1,024 faults, 476 lost" in said
    with wstrace.open_trace(str(path)) as trace:
        assert trace.ledger.get("lost_kernel") == 476


def test_a_session_on_the_calling_process():
    import faulting

    with Session(sources=["page_faults:poll_ms=1"], pid=os.getpid()) as session:
        faulting.faults((0x7F0000001000 + n, 0x30000 + 4096 * n, 9, False) for n in range(300))
    faults = session.faults
    mine = faults[faults["tid"] == 9]
    assert sorted(mine["va"].tolist()) == [0x30000 + 4096 * n for n in range(300)]
    assert not session.ledger.losses()


def test_the_raw_watch_keeps_the_contract_also_after_the_exit(target):
    process = target("fault_on_request.py")
    process.stdout.readline()
    watch = Watch(winapi, process.pid)
    assert len(watch.drain()) == 0
    process.stdin.write(f"now {KERNEL_RECORDS + 10}\n")
    process.stdin.flush()
    process.stdout.readline()
    changes = watch.drain()
    assert (len(changes), changes.lost) == (KERNEL_RECORDS, 10)
    assert watch.counted() == KERNEL_RECORDS + 10
    process.stdin.write("now 7\n")
    process.stdin.close()
    process.wait(20)
    assert watch.exited()
    assert len(watch.drain()) == 7
    watch.close()


@pytest.mark.parametrize("code", [0, 1, 255, 0xC0000005 - (1 << 32)])
def test_exit_codes_pass_through(command, code):
    script = f"import ctypes; ctypes.windll.kernel32.ExitProcess({code & 0xFFFFFFFF})"
    assert command("run", "-q", "--", sys.executable, "-c", script)[0] == code


def test_a_target_is_suspended_until_it_is_resumed():
    target = platform().launch([sys.executable, "-c", "raise SystemExit(5)"])
    assert target.wait(0.3) is None
    target.resume()
    assert target.wait(20) == 5
    usage = target.usage()
    assert usage.cpu_seconds is not None
    target.close()
    assert target.wait(0) == 5


@pytest.mark.parametrize("job", ["yes", "no"])
def test_a_target_that_never_ran_is_ended_on_close(monkeypatch, job):
    monkeypatch.setenv("WSTRACE_JOB", job)
    target = platform().launch([sys.executable, "-c", "pass"])
    pid = target.pid
    assert (target.job is None) is (job == "no")
    target.close()
    with pytest.raises(TargetExited):
        platform().attach(pid).signal(15)  # what is left suspended would hold our pipes


def test_attach_names_the_process_and_sees_it_end(target):
    process = target("fault_on_request.py")
    process.stdout.readline()
    attached = platform().attach(process.pid)
    assert attached.name.lower() == "python.exe"
    assert not attached.launched
    assert attached.wait(0.1) is None
    attached.signal(15)
    assert attached.wait(10) == 0
    attached.close()


def test_doctor_says_what_works_here(command):
    code, said, _ = command("doctor")
    assert code == 0
    for source in ("page_faults", "working_set", "write_watch"):
        assert any(line.split()[:2] == [source, "full"] for line in said.splitlines()), said
    assert "wine" in said
