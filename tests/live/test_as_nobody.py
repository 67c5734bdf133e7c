"""wstrace as a user without privilege, also under a seccomp filter: the reasons that it gives are the true ones."""

import errno
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import kit.nobody as kit_nobody
import pytest

PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes nobody: needs root")

#: answers perf_event_open with an errno (or lets it pass: 0), then becomes wstrace
LAUNCHER = """
import ctypes, os, struct, sys
if sys.argv[1] == "-c":
    os.execv(sys.executable, [sys.executable, "-S", *sys.argv[1:]])
answer, number = int(sys.argv[1]), {"x86_64": 298, "aarch64": 241}[os.uname().machine]
if answer:
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | answer), (0x06, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in code))
    class Prog(ctypes.Structure):
        _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.c_void_p)]
    prog, libc = Prog(4, ctypes.cast(program, ctypes.c_void_p)), ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(prog), 0, 0) == 0  # PR_SET_SECCOMP
os.execv(sys.executable, [sys.executable, "-m", "wstrace", *sys.argv[2:]])
"""
Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def nobody():
    """nobody(answer, *words): wstrace as the user nobody; nobody("-c", code): a Python of his."""
    with kit_nobody.nobody() as user:

        def start(*arguments):
            return subprocess.Popen(
                [*user.command, "-c", LAUNCHER, *map(str, arguments)],
                env=user.environment,
                cwd="/",
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        yield start


@pytest.fixture(autouse=True)
def paranoid():
    """At 2 the kernel gives a user his own faults."""
    before = PARANOID.read_text()
    PARANOID.write_text("2")
    yield
    PARANOID.write_text(before)


def said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert "internal error" not in err
    return out + err


def test_without_a_filter_the_setting_is_the_reason(nobody):
    text = said(nobody(0, "run", "--", "true"))
    assert "level user: kernel.perf_event_paranoid is 2: " in text
    assert "seccomp" not in text


def test_debians_value_of_3_is_the_reason(nobody):
    """Debian's kernels give a user no event at 3; others take it for 2."""
    PARANOID.write_text("3")
    level = "counters" if "Debian" in os.uname().version else "user"
    text = said(nobody(0, "run", "--", "true"))
    assert f"level {level}: kernel.perf_event_paranoid is 3" in text
    assert "kernel.perf_event_paranoid=1" in text
    assert "seccomp" not in text


@pytest.mark.parametrize("answer", [errno.EPERM, errno.ENOSYS])
def test_under_a_filter_the_filter_is_the_reason(nobody, answer):
    text = said(nobody(answer, "run", "--", "true"))
    [why] = [line for line in text.splitlines() if line.startswith("level counters: ")]
    assert "a seccomp filter" in why
    assert "sysctl" not in why, "this does not lift it"
    sources = json.loads(said(nobody(answer, "doctor", "--json")))["sources"]
    for source, level in (("page_faults", "counters"), ("page_faults:stacks=native", "none")):
        found = sources[source]
        assert found["level"] == level
        assert "a seccomp filter" in found["why"]
        assert "sysctl" not in found["remedy"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="stacks are read on x86-64 only")
def test_doctor_says_that_a_user_has_native_stacks_of_user_code_and_no_python_stacks(nobody):
    found = json.loads(said(nobody(0, "doctor", "--json")))["sources"]
    native, python = found["page_faults:stacks=native"], found["page_faults:stacks=python"]
    assert native["level"] == "sampled"
    assert "faults taken by kernel code are not shown" in native["why"]
    assert (python["level"], "CAP_BPF" in python["why"]) == ("none", True)


def test_what_a_user_does_not_see_is_ascribed_to_the_kernel_only_where_that_is_proven(nobody):
    """A loop of touch and munmap: all faults are the program's own; what is missing came while it was attached."""
    code = "import mmap\nwhile True:\n m = mmap.mmap(-1, 1 << 20, 34); m[::4096] = bytes(256); m.close()"
    with nobody("-c", code) as target:
        time.sleep(1)
        try:
            text = said(nobody(0, "attach", target.pid, "--duration", "1s"))
        finally:
            target.kill()
    assert "level user" in text
    assert "while it was being attached" in text.splitlines()[1]
    assert "(faults that kernel code took" not in text
