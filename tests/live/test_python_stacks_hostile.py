"""Targets that lie about their frames, a tracer that has few rights, bpf(2) refused: none comes to harm."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kit.command_line import answer
from kit.forged import PLACES, offsets
from kit.pythons import frames, installed, judged, named
from kit.recorded_run import compiled
from kit.refused import wstrace_refused

from wstrace.schema import FRAME_CUT, STACK_HOW
from wstrace_plugins.page_faults.linux.python_stacks.protocol import DEPTH

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


_MAP_CREATE, _LOAD = 0, 5


@pytest.mark.parametrize(
    ("number", "command", "why"),
    [
        (errno.EPERM, None, "bpf(2) is refused by a seccomp filter"),
        (errno.ENOSYS, None, "this kernel has no bpf(2), or a seccomp filter hides it"),
        (errno.EINVAL, _LOAD, "the kernel refuses the eBPF program (Invalid argument)"),
        (errno.ENOMEM, _MAP_CREATE, "the kernel refuses the eBPF program (Cannot allocate memory)"),
        (errno.E2BIG, _LOAD, "the kernel refuses the eBPF program (Argument list too long)"),
    ],
)
def test_a_refusal_is_a_level_with_its_reason(tmp_path, number, command, why):
    program = [sys.executable, "-c", "bytes(1 << 22)"]
    run = ["run", "-f", "-o", tmp_path / "trace.wst"]
    done = wstrace_refused("bpf", number, *run, "--", *program, first=command)
    assert done.returncode == 0, done.stderr
    assert f"without Python stacks: {why}" in done.stdout + done.stderr
    if number not in (errno.EPERM, errno.E2BIG):  # one of all calls, and one of the programs alone
        return
    sources = json.loads(wstrace_refused("bpf", number, "doctor", "--json", first=command).stdout)["sources"]
    found = sources["page_faults:stacks=python"]
    assert found["level"] == "none"
    assert why in found["why"]
    assert found["remedy"] or number == errno.E2BIG  # a kernel that is new enough and refuses it: no remedy is known
    done = wstrace_refused("bpf", number, *run, "-s", "page_faults:stacks=python", "--", *program, first=command)
    assert done.returncode not in (0, 1), "requested by name, it is an error of the documented kind"
    assert why in done.stderr
    assert "Traceback" not in done.stderr


HERE = Path(__file__).parent

FLOOD = 3000


def forged(folder: Path, *, free_threaded: int = 0) -> Path:
    defined = f"#define FREE_THREADED {free_threaded}\n#define FLOOD {FLOOD}\n"
    (folder / "offsets.h").write_text(offsets(PLACES) + defined)
    return compiled(folder, (HERE / "forged_python.c").read_text(), "-I", str(folder))


def test_lies_harm_nobody(trace, tmp_path):
    program, said, out = forged(tmp_path), tmp_path / "said", tmp_path / "regions.json"
    both = f"{program} > {said} & {sys.executable} {HERE}/python_truth.py {out} 20 && wait $!"
    traced = trace(["sh", "-c", both], stacks="python")
    assert traced.context.targets[0].exit_code == 0
    traced.assert_balanced()
    sites, faults = named(traced)
    hows = np.array(STACK_HOW)[faults.stack_how]
    stacks = frames(traced)
    seen = {}
    depths = {}
    liar = set()
    for line in said.read_text().splitlines():
        base, pages, kind = line.split(maxsplit=2)
        inside = (faults.va >= int(base, 16)) & (faults.va < int(base, 16) + 4096 * int(pages)) & (hows != "")
        mine = np.flatnonzero(inside)[-int(pages) :]
        liar |= set(faults.pid[mine].tolist())
        for row in mine.tolist():
            stack = int(faults.stack[row])
            assert len(stacks[stack]) <= DEPTH
            depths.setdefault(kind, set()).add(len(stacks[stack]))
            cut = any(flags & FRAME_CUT for _, flags in stacks[stack])
            seen.setdefault(kind, set()).add((str(hows[row]), sites.get(stack, ("",))[0], cut))
    assert len(liar) == 1
    assert seen["honest"] == seen["edges"] == {("exact", "honest", False)}
    assert (depths["honest"], depths["edges"]) == ({1}, {2})
    assert seen["ring of one"] == seen["ring of two"] == {("exact", "honest", True)}
    assert {how for how, _, _ in seen["ring of threads"]} == {"frames not readable"}
    assert {how for how, _, _ in seen["long"] | seen["nowhere"] | seen["flood"]} <= {
        "exact", "no Python frame", "frames not readable", "stack lost",
    }  # fmt: skip
    assert all(len(name) <= 512 for name, _, file in sites.values() for name in (name, file))
    # the honest Python beside it has its own frames, or says that one was lost
    names = {"honest", "forge.py"}
    for row in np.flatnonzero(~np.isin(faults.pid, list(liar))).tolist():
        name, _, file = sites.get(int(faults.stack[row]), ("", 0, ""))
        assert not {name, file} & names
        assert not name.startswith("xx")
    right, wrong, _ = judged(traced, json.loads(out.read_text()))
    assert not wrong
    assert right > 500


def test_a_build_without_a_gil_is_refused_with_a_sentence(trace, tmp_path):
    traced = trace([forged(tmp_path, free_threaded=1)], stacks="python")
    assert {STACK_HOW[how] for how in traced.column("page_fault", "stack_how").tolist()} & {"interpreter not known"}
    assert any("without a GIL (free-threaded)" in what for what in traced.context.info.lacking)
