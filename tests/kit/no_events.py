"""perf_event_open refused, as by the profile of Docker: TEXT is Python that refuses it to its process and children."""

import subprocess
import sys

TEXT = """
import ctypes, struct
def step(code, value, yes=0, no=0): return struct.pack("<HBBI", code, yes, no, value)
steps = [step(0x20, 0), step(0x15, 298, 0, 1), step(0x06, 0x00050001), step(0x06, 0x7FFF0000)]
memory = ctypes.create_string_buffer(b"".join(steps))
program = ctypes.create_string_buffer(struct.pack("<H6xQ", len(steps), ctypes.addressof(memory)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0) == 0
"""
_RUN = f"{TEXT}\nimport os, sys; os.execv(sys.executable, [sys.executable, '-m', 'wstrace', *sys.argv[1:]])"


def wstrace_without_events(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs wstrace where events are refused (x86-64 only: the number of the system call)."""
    command = [sys.executable, "-c", _RUN, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
