"""wstrace as a user without privilege, also under a seccomp filter: what is left, and the reasons are the true ones."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kit.nobody as kit_nobody
import pytest
from kit.refused import AS_WSTRACE, refusing, wstrace_refused

import wstrace

PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes nobody: needs root")

#: perf_event_mlock_kb (516 KiB a CPU) and this are all that may be locked: rings are halved to it
LITTLE_LOCKED = "import resource; resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))"


@pytest.fixture(scope="module")
def nobody():
    """nobody(code, *words): a Python of the user nobody that executes that; AS_WSTRACE goes on as `wstrace WORDS`."""
    with kit_nobody.nobody() as user:

        def start(code, *words):
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            return subprocess.Popen(
                [*user.command, "-c", code, *map(str, words)], env=user.environment, cwd="/", **pipes
            )

        yield start


@pytest.fixture(autouse=True)
def paranoid():
    """paranoid(2): at 2, which is set first, the kernel gives a user his own faults."""
    before = PARANOID.read_text()
    PARANOID.write_text("2")
    yield lambda level: PARANOID.write_text(str(level))
    PARANOID.write_text(before)


def said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert "internal error" not in err
    return out + err


@pytest.fixture
def recorded(nobody, open_folder):
    """recorded(code, *command): what nobody's `run` of a command said, and its trace."""
    open_folder.chmod(0o777)
    opened = []

    def run(code, *command):
        text = said(nobody(code + AS_WSTRACE, "run", "-f", "-o", open_folder / "x.wst", "--", *command))
        opened.append(wstrace.open_trace(str(open_folder / "x.wst")))
        return text, opened[-1]

    yield run
    for trace in opened:
        trace.close()


def counts(trace: Any) -> tuple[int, int, int]:
    """Recorded faults, those that the kernel lost, and those that it counted."""
    return trace.rows.get("page_fault", 0), trace.ledger.get("lost_kernel"), trace.ledger.get("counted")


def test_at_1_a_user_gets_all(recorded, paranoid, touch):
    paranoid(1)
    _, trace = recorded(LITTLE_LOCKED, touch, 2000)
    faults, lost, counted = counts(trace)
    assert trace.info.level_name == "full"
    assert faults > 2000
    assert faults + lost == counted


@pytest.mark.parametrize("setting", [2, 3, 4])
def test_without_a_filter_the_setting_is_the_reason(recorded, nobody, paranoid, setting):
    """Debian's kernels give a user no event from 3 on; others know nothing above 2."""
    paranoid(setting)
    level = "counters" if setting > 2 and "Debian" in os.uname().version else "user"
    # dd's read() makes the kernel write to 1,024 pages of a buffer that is new
    text, trace = recorded(LITTLE_LOCKED, "dd", "if=/dev/zero", "of=/dev/null", "bs=4M", "count=1")
    assert f"level {level}: kernel.perf_event_paranoid is {setting}" in text
    assert "kernel.perf_event_paranoid=1" in text
    assert "seccomp" not in text
    faults, lost, counted = counts(trace)
    assert trace.info.usage.faults > faults
    assert lost == 0
    if level == "user":
        batches = list(trace.batches("page_fault"))
        assert not any((batch["flags"] & 2).any() for batch in batches)
        names = {batch.strings[code] for batch in trace.batches("mapping") for code in batch["file"].tolist()}
        assert {"/usr/bin/dd", "[stack]"} <= names
        assert counted == faults > 50
        assert any("kernel code" in note for note in trace.info.notes)
    refused = said(nobody(AS_WSTRACE, "run", "--require", "full", "--", "true"))
    assert f"page faults: only level {level} works here: kernel.perf_event" in refused


@pytest.mark.parametrize("answer", [errno.EPERM, errno.EACCES, errno.ENOSYS])
def test_under_a_filter_the_filter_is_the_reason(nobody, answer):
    code = refusing("perf_event_open", answer) + AS_WSTRACE
    text = said(nobody(code, "run", "--", "true"))
    [why] = [line for line in text.splitlines() if line.startswith("level counters: ")]
    if answer == errno.EACCES:  # which is the kernel's own answer, too
        return
    assert "a seccomp filter" in why
    assert "--cap-add PERFMON" in why
    assert "sysctl" not in why, "this does not lift it"
    sources = json.loads(said(nobody(code, "doctor", "--json")))["sources"]
    for source, level in (("page_faults", "counters"), ("page_faults:stacks=native", "none")):
        found = sources[source]
        assert found["level"] == level
        assert "a seccomp filter" in found["why"]
        assert "sysctl" not in found["remedy"]


def test_root_under_a_filter_has_the_counts(tmp_path):
    """The level is tried: perf_event_paranoid allows everything here, and the kernel still says no."""
    path, code = tmp_path / "x.wst", "import time; b = bytearray(50 << 20); time.sleep(0.5)"
    done = wstrace_refused("perf_event_open", errno.EPERM, "run", "-o", path, "--", sys.executable, "-S", "-c", code)
    assert done.returncode == 0, done.stderr
    with wstrace.open_trace(str(path)) as trace:
        faults, _, counted = counts(trace)
        assert (faults, trace.info.level_name) == (0, "counters")
        assert counted == trace.info.usage.faults == trace.ledger.get("unaccounted") > 100
        assert any("level counters" in note for note in trace.info.notes)
    for words in (("run", "--require", "full", "--", "true"), ("imports", "--", "true")):
        done = wstrace_refused("perf_event_open", errno.EPERM, *words)
        assert done.returncode == 122, done.stderr
        assert "perf_event_open" in done.stderr
        assert "seccomp" in done.stderr


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="stacks are read on x86-64 only")
def test_doctor_says_that_a_user_has_native_stacks_of_user_code_and_no_python_stacks(nobody):
    found = json.loads(said(nobody(AS_WSTRACE, "doctor", "--json")))["sources"]
    native, python = found["page_faults:stacks=native"], found["page_faults:stacks=python"]
    assert native["level"] == "sampled"
    assert "faults taken by kernel code are not shown" in native["why"]
    assert (python["level"], "CAP_BPF" in python["why"]) == ("none", True)


def test_what_a_user_does_not_see_is_ascribed_to_the_kernel_only_where_that_is_proven(nobody):
    """A loop of touch and munmap: all faults are the program's own; what is missing came while it was attached."""
    code = "import mmap\nwhile True:\n m = mmap.mmap(-1, 1 << 20, 34); m[::4096] = bytes(256); m.close()"
    with nobody(code) as target:
        time.sleep(1)
        try:
            text = said(nobody(AS_WSTRACE, "attach", target.pid, "--duration", "1s"))
        finally:
            target.kill()
    assert "level user" in text
    assert "while it was being attached" in text.splitlines()[1]
    assert "(faults that kernel code took" not in text
