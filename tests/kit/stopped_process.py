"""Processes that stop themselves once they hold known memory, and what the kernel counts of them."""

import contextlib
import mmap
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import wstrace
from wstrace_plugins.os.linux.pagemap import has_scan

PAGE = mmap.PAGESIZE
PRELUDE = """
import contextlib, ctypes, mmap, os, re, signal, sys, tempfile, time
PAGE = mmap.PAGESIZE
def anon(n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
    memory = mmap.mmap(-1, n, flags=flags)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # by Debian's setting they are for all memory: one write brings 512 pages
    return memory
def at(m):
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(m))
def touch(m, step=PAGE, start=0):
    for i in range(start, len(m), step):
        m[i] = 1
def ready(*words):
    # but for huge pages: where they are for all memory, khugepaged fills it up in a stopped process, too
    libc = ctypes.CDLL(None)
    for mapping in re.split("(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", open("/proc/self/smaps").read())[1:]:
        start, end = (int(word, 16) for word in mapping.split()[0].split("-"))
        if " hg" not in mapping.partition("VmFlags:")[2]:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 15)  # MADV_NOHUGEPAGE
    print(*words, flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextlib.contextmanager
def stopped(script: str):
    """A Python process that ran the script and stopped itself: (pid, the words it printed)."""
    code = PRELUDE + textwrap.dedent(script)
    target = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        words = target.stdout.readline().split()
        os.waitid(os.P_PID, target.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        yield target.pid, words
    finally:
        target.kill()
        target.wait()
        target.stdout.close()


def rollup(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}


def status(pid: int, field: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(field + ":")[2].split()[0]) * 1024


def counted(pid: int) -> tuple[int, int, int]:
    """Resident, private and shared bytes, as the kernel counts them page by page.

    VmRSS is not that sum: before Linux 6.2 each thread holds back what its last 64 faults brought, later ones each CPU.
    """
    of = rollup(pid)
    return of["Rss"], of["Private_Clean"] + of["Private_Dirty"], of["Shared_Clean"] + of["Shared_Dirty"]


def agreed(pid: int, **options):
    """A snapshot of a stopped process, whose totals are the kernel's.

    It is taken while these do not change: pages of a file become private when another process with them ends. Before
    Linux 6.7 zero pages cannot be distinguished: the snapshot counts them, and the kernel does not.
    """
    before = None
    while before != (kernel := counted(pid)):
        before = kernel
        taken = wstrace.working_set(pid, **options)
    zeros = taken.total_bytes - kernel[0]
    assert zeros == 0 or (zeros > 0 and not has_scan())
    assert (taken.total_bytes - zeros, taken.private_bytes, taken.shared_bytes - zeros) == kernel
    assert taken.page_table_bytes == status(pid, "VmPTE")
    by = {what: taken.by(what) for what in ("module", "mapping", "kind")}
    for owners in by.values():
        assert sum(owner.resident for owner in owners) == taken.total_bytes
        assert sum(owner.private for owner in owners) == taken.private_bytes
    per_mapping = {}
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line[0].isdigit() or line[0] in "abcdef":
            key = line.split()[0]
        elif line.startswith("Rss:"):
            per_mapping[key] = int(line.split()[1]) * 1024
    ours = {owner.name.split()[0]: owner.resident for owner in by["mapping"]}
    more = {key: n - per_mapping.get(key, 0) for key, n in ours.items()}
    assert {key for key, n in per_mapping.items() if n} <= {*ours}
    assert min(more.values()) >= 0
    assert sum(more.values()) == zeros
    return taken


def pages_of(taken, start: int, length: int) -> dict[int, int]:
    """page number in that region -> flags."""
    found = {}
    for at, n, flags in zip(*(taken.runs[c].tolist() for c in ("start", "pages", "flags")), strict=True):
        for i in range(n):
            address = at + i * PAGE
            if start <= address < start + length:
                found[(address - start) // PAGE] = flags
    return found
