"""A system call that is refused by a seccomp filter, as by the profile of a container runtime."""

import os
import subprocess
import sys
from typing import Any

NUMBERS = {"perf_event_open": {"x86_64": 298, "aarch64": 241}, "bpf": {"x86_64": 321, "aarch64": 280}}
#: seccomp_data has the number of the call at 0, and its first argument at 16
_FILTER = """
import ctypes, os, struct, sys
def step(code, value, yes=0, no=0): return struct.pack("<HBBI", code, yes, no, value)
of_argument = [] if FIRST is None else [step(0x20, 16), step(0x15, FIRST, 0, 1)]
steps = [step(0x20, 0), step(0x15, CALL, 0, 1 + len(of_argument)), *of_argument, step(0x06, 0x50000 | ERROR),
         step(0x06, 0x7FFF0000)]
memory = ctypes.create_string_buffer(b"".join(steps))
program = ctypes.create_string_buffer(struct.pack("<H6xQ", len(steps), ctypes.addressof(memory)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
"""
#: goes on as wstrace with the words of this program
AS_WSTRACE = "\nimport os, sys; os.execv(sys.executable, [sys.executable, '-m', 'wstrace', *sys.argv[1:]])"


def refusing(call: str, error: int, first: int | None = None) -> str:
    """Python that refuses a call, or those with that first argument, to its process and all that it starts."""
    number = NUMBERS[call][os.uname().machine]
    return _FILTER.replace("CALL", str(number)).replace("ERROR", str(error)).replace("FIRST", str(first))


def wstrace_refused(call: str, error: int, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs wstrace where that is refused."""
    code = refusing(call, error, **options) + AS_WSTRACE
    given = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(given, capture_output=True, text=True, timeout=100, check=False)
