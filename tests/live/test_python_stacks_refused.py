"""bpf(2) is refused by a filter of system calls: the trace goes on without Python stacks, and says why."""

import errno
import json
import sys

import pytest
from kit.refused import wstrace_refused

pytestmark = pytest.mark.usefixtures("full_level", "python_stacks")

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
