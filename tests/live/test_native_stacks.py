"""`stacks=native` from end to end: the right callers, nothing of the target's memory in a file, no record lost."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kit import nobody
from kit.command_line import answer
from kit.recorded_run import compiled
from kit.stack_truth import PAGES, SOURCE, StackNames, assert_right, of_region, regions

import wstrace
from wstrace.schema import HOW_NOT_SAMPLED, STACK_DUMP, STREAMS

pytestmark = pytest.mark.usefixtures("full_level")
SECRET = bytes(byte - 3 for byte in b"hvwuhw0zrug0ri0wkh0vwdfn")
#: wstrace that gives up no sample for its age
PATIENT = """
import sys
from wstrace.cli import main
from wstrace_plugins.stacks import enricher
enricher.BEHIND_NS = 1 << 60
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def program(tmp_path):
    return compiled(tmp_path, SOURCE)


@pytest.fixture
def recorded(tmp_path, program):
    """recorded(option, rounds): the trace, and the regions that the program printed; or another command."""
    with contextlib.ExitStack() as opened:

        def run(options, rounds=2, *command):
            trace = tmp_path / "trace.wst"
            words = [sys.executable, "-c", PATIENT, "run", "-q", "-f", "-o", trace, "-s", f"page_faults:{options}",
                     "--", *(command or (program, rounds))]  # fmt: skip
            done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=100)
            assert done.returncode == 0, done.stderr
            assert "detached" not in done.stderr, done.stderr
            return opened.enter_context(wstrace.open_trace(str(trace))), regions(done.stdout)

        yield run


def test_every_fault_has_its_own_callers(recorded):
    """Many faults sampled: functions, memset of libc, read() in the kernel, recursion, a thread, a forked child."""
    trace, known = recorded("stacks=native,stack_period=3,ring_bytes=67108864")
    names = StackNames(trace)
    assert_right(names, known)
    where = zip(names.faults["pid"].tolist(), names.faults["va"].tolist(), strict=True)
    in_region = np.array([of_region(known, *place) is not None for place in where])
    assert in_region.sum() == PAGES * len(known)
    lost = trace.ledger.get("stacks_lost") + trace.ledger.get("unconsumed")
    assert int((names.faults["native_stack"][in_region] > 0).sum()) >= PAGES * len(known) / 3 - lost - 10
    # the dynamic linker's trampoline finds its caller by rbx, which only the second, slower way of unwinding follows
    bound = [one for one in names.sampled() if any(name.startswith("_dl_runtime_resolve") for name in one[2])]
    assert all(one[2][-1] in ("_start", "clone3", "__clone3") for one in bound), bound
    kernel = [one[2] for one in names.sampled() if getattr(of_region(known, *one[:2]), "function", "") == "three"]
    assert kernel
    assert {frames[0] for frames in kernel} <= {"read", "__read", "__libc_read"}


def test_samples_stand_for_the_faults_of_their_thread(recorded):
    # 18 MB of samples come in 0.1 s, and on a busy machine the tracer may not run in it
    trace, known = recorded("stacks=native,stack_period=8,ring_bytes=67108864", rounds=4)
    names = StackNames(trace)
    assert assert_right(names, known) > PAGES * len(known) / 16
    columns = names.faults
    assert int(columns["weight"].sum()) <= len(columns["pid"])
    assert columns["weight"].sum() > 0.9 * len(columns["pid"]) - trace.ledger.get("stacks_lost") * 8
    assert ((columns["weight"] > 0) == (columns["native_stack"] > 0)).all()
    assert set(columns["native_how"][columns["native_stack"] == 0].tolist()) == {HOW_NOT_SAMPLED}


def test_stack_bytes_reach_no_file(tmp_path, program, trace, recorded):
    """The source has the secret in its samples; no column, no name and no text of any output has it."""
    taken = trace([program, 1], stacks="native", stack_period=8)
    dumps = [batch for batch in taken.batches if batch.schema.name == STACK_DUMP.name]
    assert any(SECRET[:8] in batch["dump"].tobytes() for batch in dumps), "the test would find nothing"
    written, _ = recorded("stacks=native,stack_period=8", rounds=1)
    assert STACK_DUMP.name not in written.streams
    held = b""
    for stream in STREAMS:
        for batch in written.batches(stream) if stream in written.streams else ():
            held += b"".join(batch[name].tobytes() for name in batch)
            names = "\n".join(batch.strings.names(0, len(batch.strings)))
            held += names.encode("utf-8", "surrogateescape")
    assert SECRET[:8] not in held
    assert SECRET[:8].decode() not in answer("report", "--format", "jsonl", tmp_path / "trace.wst")


def test_a_small_ring_loses_stacks_and_counts_them(recorded):
    """64 KiB hold three samples: most are lost. The rest is right, and stands for the lost ones."""
    trace, known = recorded("stacks=native,stack_period=1,ring_bytes=65536,poll_ms=100", rounds=12)
    assert trace.ledger.get("stacks_lost") > 100
    names = StackNames(trace)
    assert assert_right(names, known) > 0
    assert names.faults["weight"].max() > 1, "each fault was sampled"


def test_what_ended_long_before_it_is_unwound_has_its_callers(recorded, program):
    """GIVEN a tracer that reads its rings but once, seconds after the first processes have ended."""
    options = "stacks=native,stack_period=8,ring_bytes=67108864,poll_ms=60000"
    trace, known = recorded(options, 0, "sh", "-c", f"{program} 1; sleep 3; {program} 1")
    assert assert_right(StackNames(trace), known) > PAGES * len(known) / 10


@pytest.mark.skipif(os.geteuid() != 0, reason="changes a sysctl and becomes nobody: needs root")
def test_nobody_gets_the_stacks_of_its_own_processes(program, open_folder):
    paranoid = Path("/proc/sys/kernel/perf_event_paranoid")
    before = paranoid.read_text()
    open_folder.chmod(0o777)
    own, trace = open_folder / "program", open_folder / "trace.wst"
    shutil.copy(program, own)
    own.chmod(0o755)
    try:
        paranoid.write_text("2")
        words = ["run", "-q", "-o", trace, "-s", "page_faults:stacks=native,stack_period=4", "--", own, "3"]
        with nobody.nobody() as user:
            done = subprocess.run([*user.command, "-m", "wstrace", *words], env=user.environment, cwd="/",
                                  capture_output=True, text=True, timeout=100)  # fmt: skip
        assert done.returncode == 0, done.stderr
        with wstrace.open_trace(str(trace)) as opened:
            known = [one for one in regions(done.stdout) if one.function != "three"]  # the kernel's: level user
            assert assert_right(StackNames(opened), known) > 50
    finally:
        paranoid.write_text(before)
