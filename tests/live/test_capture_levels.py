"""What is left without privilege, on the real kernel: level user at paranoid 2, level counters where it refuses."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")

#: a process without privilege, or one whose perf_event_open is refused, traces a command and tells what it got
SCRIPT = """
import os, pwd, resource, sys
sys.path[:0] = {path!r}
import numpy as np
from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace_plugins.os.linux import pagemap
from wstrace_plugins.os.linux.backend import platform
from wstrace_plugins.page_faults.linux import levels, perf_event
from wstrace_plugins.page_faults.linux.backend import PageFaults
# what follows may close the folders of the modules that are imported only when they are needed
import importlib, pkgutil, wstrace_plugins.os.linux, wstrace_plugins.page_faults.linux
for room in (wstrace_plugins.os.linux, wstrace_plugins.page_faults.linux):
    for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
        importlib.import_module(module.name)
{before}
import ctypes
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: setuid() took away what execve() gives
print("probe", *[PageFaults.probe().name])
target = platform().launch({command!r})
context = Context(targets=(target,), require={require!r})
source = PageFaults()
try:
    source.start(context)
except Unavailable as error:
    print("unavailable", error); target.close(); sys.exit()
print("ring_bytes", source._rings.size if source._rings else 0)
target.resume()
batches = []
while target.wait(0) is None: batches += source.drain(0.1)
batches += source.stop()
info = context.info
print("level", info.level.name); print("why", info.level.why); print("remedy", info.level.remedy)
for stage in ("counted", "lost_kernel", "unaccounted"): print(stage, context.ledger.get(stage))
faults = [b for b in batches if b.schema.name == "page_fault"]
print("faults", sum(map(len, faults)))
print("kernel_pc", sum(int((b["flags"] & 2 != 0).sum()) for b in faults))
usage = target.usage()
print("usage", usage.minor + usage.major)
print("names", sorted({{context.strings[c] for b in batches if b.schema.name == "address_space" for c in b["file"]}}))
print("not_visible", info.notes)
"""
NOBODY = (
    "resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536)); os.setgroups([]); os.setgid(65534); os.setuid(65534)"
)
#: seccomp: errno EPERM for perf_event_open, as Docker's default profile answers
FILTER = """
import ctypes, struct
ANSWER = @answer@
number = perf_event._NUMBERS[perf_event.platform.machine()][0]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | ANSWER), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in code))
class Prog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.c_void_p)]
prog = Prog(4, ctypes.cast(program, ctypes.c_void_p))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(prog), 0, 0) == 0
"""
REFUSED = FILTER.replace("@answer@", str(errno.EPERM))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes a sysctl and becomes nobody: needs root")


def traced(before: str, command: list[str], require: str = "") -> dict[str, str]:
    script = SCRIPT.format(path=sys.path, before=before, command=command, require=require)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    lines = [line.partition(" ") for line in run.stdout.splitlines()]
    return {key: value for key, _, value in lines}


@pytest.fixture
def paranoid():
    before = PARANOID.read_text()
    yield lambda level: PARANOID.write_text(str(level))
    PARANOID.write_text(before)


@needs_root
def test_nobody_at_paranoid_1_gets_all(paranoid, touch):
    paranoid(1)
    shown = traced(NOBODY, [str(touch), "2000"])
    assert (shown["probe"], shown["level"], shown["why"]) == ("full", "full", "")
    assert int(shown["faults"]) > 2000
    assert int(shown["faults"]) + int(shown["lost_kernel"]) == int(shown["counted"])
    # perf_event_mlock_kb (516 KiB a CPU) and RLIMIT_MEMLOCK are all that may be locked: the rings were halved to it
    assert 65_536 <= int(shown["ring_bytes"]) < 16 << 20


@needs_root
@pytest.mark.parametrize("level", [2, 4])
def test_nobody_at_paranoid_2_gets_user_faults(paranoid, touch, level):
    """Kernels with Debian's patch refuse everything from 3 on; others know nothing above 2."""
    paranoid(level)
    # dd's read() makes the kernel write to 1,024 pages of a buffer that is new
    shown = traced(NOBODY, ["dd", "if=/dev/zero", "of=/dev/null", "bs=4M", "count=1"])
    assert shown["level"] in (("user",) if level == 2 else ("user", "counters"))
    assert shown["probe"] == shown["level"]
    assert shown["why"].startswith(f"kernel.perf_event_paranoid is {level}")
    assert shown["remedy"].startswith("sudo sysctl kernel.perf_event_paranoid=1, or sudo setcap cap_perfmon+ep /")
    assert int(shown["kernel_pc"]) == 0
    assert int(shown["usage"]) > int(shown["faults"])
    assert int(shown["lost_kernel"]) == 0
    if shown["level"] == "user":
        assert "/dd'" in shown["names"]
        assert "[stack]" in shown["names"]
        assert int(shown["counted"]) == int(shown["faults"]) > 50
        assert "kernel code" in shown["not_visible"]
    refused = traced(NOBODY, ["true"], require="full")
    assert refused["unavailable"].startswith(f"page faults: only level {shown['level']} works here: kernel.perf_event")


@needs_root
@pytest.mark.parametrize("answer", [errno.EPERM, errno.EACCES, errno.ENOSYS])
def test_a_filter_is_distinguished_from_the_setting(paranoid, answer):
    """As a user at paranoid 2, where the kernel would give the level user."""
    paranoid(2)
    shown = traced(NOBODY + "\n" + FILTER.replace("@answer@", str(answer)), ["true"])
    assert shown["level"] == "counters"
    if answer != errno.EACCES:  # which is the kernel's own answer, too
        assert "seccomp filter" in shown["why"]
        assert "--cap-add PERFMON" in shown["remedy"]


def test_refused_by_seccomp_gets_counters():
    """The level is tried: perf_event_paranoid allows everything here, and the kernel still says no."""
    code = "import time; b = bytearray(50 << 20); time.sleep(0.5)"
    shown = traced(REFUSED, [sys.executable, "-S", "-c", code])
    assert (shown["probe"], shown["level"]) == ("counters", "counters")
    assert "seccomp" in shown["why"]
    assert "--cap-add PERFMON" in shown["remedy"]
    assert shown["faults"] == "0"
    assert int(shown["counted"]) == int(shown["usage"]) == int(shown["unaccounted"]) > 100
    assert "level counters" in shown["not_visible"]
    refused = traced(REFUSED, ["true"], require="full")
    assert refused["unavailable"].startswith("page faults: only level counters works here: ")
