"""bpf(2) is refused by a filter of system calls: the trace goes on without Python stacks, and says why."""

import errno
import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("full_level", "python_stacks")

#: refuses every call of bpf(2), or one command of it only, in itself and in what it executes
FILTERED = """
import ctypes, os, struct, sys
number, command = int(sys.argv[1]), int(sys.argv[2])
def step(code, value, yes=0, no=0): return struct.pack("<HBBI", code, yes, no, value)
LOAD, EQUAL, RETURN, ALLOW, REFUSE = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
# seccomp_data: the call's number at 0, its first argument at 16
steps = [step(LOAD, 0), step(EQUAL, 321, 0, 3), step(LOAD, 16), step(EQUAL, max(command, 0), 0, 1),
         step(RETURN, REFUSE | number), step(RETURN, ALLOW)]
if command < 0:
    steps[2:4] = [step(LOAD, 0), step(EQUAL, 321, 0, 1)]
memory = ctypes.create_string_buffer(b"".join(steps))
program = ctypes.create_string_buffer(struct.pack("<H6xQ", len(steps), ctypes.addressof(memory)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
os.execv(sys.executable, [sys.executable, "-m", "wstrace", *sys.argv[3:]])
"""
_EVERY, _MAP_CREATE, _LOAD = -1, 0, 5


def filtered(number: int, command: int, *words: object) -> subprocess.CompletedProcess[str]:
    given = [sys.executable, "-c", FILTERED, number, command, *words]
    return subprocess.run(list(map(str, given)), capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("number", "command", "why"),
    [
        (errno.EPERM, _EVERY, "bpf(2) is refused by a seccomp filter"),
        (errno.ENOSYS, _EVERY, "this kernel has no bpf(2), or a seccomp filter hides it"),
        (errno.EINVAL, _LOAD, "the kernel refuses the eBPF program (Invalid argument: the verifier says nothing)"),
        (errno.ENOMEM, _MAP_CREATE, "the kernel refuses the eBPF program (Cannot allocate memory)"),
        (errno.E2BIG, _LOAD, "the kernel refuses the eBPF program (Argument list too long: the verifier says nothing)"),
    ],
)
def test_a_refusal_is_a_level_with_its_reason(tmp_path, number, command, why):
    program = [sys.executable, "-c", "bytes(1 << 22)"]
    run = ["run", "-f", "-o", tmp_path / "trace.wst"]
    done = filtered(number, command, *run, "--", *program)
    assert done.returncode == 0, done.stderr
    assert f"without Python stacks: {why}" in done.stdout + done.stderr
    if number not in (errno.EPERM, errno.E2BIG):  # one of all calls, and one of the programs alone
        return
    found = json.loads(filtered(number, command, "doctor", "--json").stdout)["sources"]["page_faults:stacks=python"]
    assert found["level"] == "none"
    assert why in found["why"]
    assert found["remedy"] or number == errno.E2BIG  # a kernel that is new enough and refuses it: no remedy is known
    done = filtered(number, command, *run, "-s", "page_faults:stacks=python", "--", *program)
    assert done.returncode not in (0, 1), "requested by name, it is an error of the documented kind"
    assert why in done.stderr
    assert "Traceback" not in done.stderr
