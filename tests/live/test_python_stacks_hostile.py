"""Targets that lie about their frames, and a tracer that has few rights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.command_line import answer
from kit.pythons import installed, named

from wstrace.schema import STACK_HOW

OURS = [python for python in installed() if not python.root]
pytestmark = pytest.mark.usefixtures("full_level", "python_stacks")

#: writes lies into its own code objects and touches pages meanwhile
LIAR = """
import contextlib, ctypes, mmap, sys
u64 = ctypes.c_uint64.from_address
def fresh(n):
    m = mmap.mmap(-1, n * 4096)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        m.madvise(mmap.MADV_NOHUGEPAGE)
    return m
def touch(m):
    for i in range(0, len(m), 4096): m[i] = 1
def lie(place, value):
    m, kept = fresh(50), u64(place).value
    u64(place).value = value
    touch(m)
    u64(place).value = kept
touch(fresh(50))
code, size = touch.__code__, 16
base = id(code)
known = [id(one) for one in (code.co_filename, code.co_qualname, code.co_linetable)]
pointers = [base + at for at in range(64, 200, 8) if u64(base + at).value in known]
for value in (1 << 62, (1 << 63) - 1, (1 << 64) - 1, 0):
    for name in (code.co_qualname, code.co_filename, code.co_linetable):
        lie(id(name) + size, value)
for value in (8, 0xFFFFFFFF81000000, 1 << 63, 4096):
    for place in pointers:
        lie(place, value)
touch(fresh(50))
"""


@pytest.mark.parametrize("python", OURS, ids=lambda python: python.label)
def test_a_liar_harms_nobody(trace, python):
    traced = trace(python.command("-c", LIAR), stacks="python")
    assert traced.context.targets[0].exit_code == 0
    traced.assert_balanced()
    sites, faults = named(traced)
    seen = {sites[int(stack)][0] for stack in set(faults.stack.tolist()) if stack}
    assert "touch" in seen
    assert all(len(name) <= 512 for name, _, file in sites.values() for name in (name, file))
    assert {STACK_HOW[how] for how in faults.stack_how.tolist()} <= {
        "exact", "no Python frame", "interpreter not known", "frames not readable", "stack lost",
    }  # fmt: skip


def test_doctor_says_whether_they_can_be_had():
    found = json.loads(answer("doctor", "--json"))["sources"]
    assert found["page_faults:stacks=python"]["level"] == "exact"
    assert found["page_faults:stacks=native"]["level"] == "sampled"


CAPABLE = """
import ctypes, os, sys
sys.path[:0] = {path!r}
from wstrace.errors import Unavailable
import wstrace_plugins.page_faults.linux.python_stacks.kernel as kernel
kernel.tried()  # what it imports may be in folders that only root can read
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
os.setgroups([]); os.setgid(65534); os.setuid(65534)
low = sum(1 << c for c in {caps!r} if c < 32); high = sum(1 << c - 32 for c in {caps!r} if c >= 32)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
assert libc.capset(header, data) == 0
found = kernel.tried()
print(found.name, "|", found.why, "|", found.remedy)
"""
_PERFMON, _BPF, _SYS_ADMIN = 38, 39, 21


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("caps", "level", "why"),
    [((), "none", "they need CAP_BPF and CAP_PERFMON, or root"), ((_PERFMON,), "none", "CAP_BPF"),
     ((_BPF,), "none", "CAP_PERFMON"), ((_BPF, _PERFMON), "exact", ""), ((_SYS_ADMIN,), "exact", "")],
)  # fmt: skip
def test_what_rights_are_enough_is_tried(caps, level, why):
    root = Path(__file__).parents[2]
    path = [str(root), str(root / "plugins"), *sys.path]
    code = CAPABLE.format(path=path, caps=caps)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name, said, remedy = (part.strip() for part in done.stdout.split("|"))
    assert (name, why in said) == (level, True)
    assert ("setcap cap_bpf,cap_perfmon+ep" in remedy) == (level == "none")
