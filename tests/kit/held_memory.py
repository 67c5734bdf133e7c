"""A process that holds known memory: for the tests and the benchmark of snapshots."""

import contextlib
import mmap
import subprocess
import sys
from collections.abc import Iterator

#: 0x4000 is MAP_NORESERVE, so that more than the machine has can be mapped; where the kernel has no huge pages at all,
#: madvise fails, and the pages are small anyway
HOLD = """
import contextlib, mmap, sys
size, step = int(sys.argv[1]), int(sys.argv[2])
m = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
with contextlib.suppress(OSError):
    m.madvise(mmap.MADV_NOHUGEPAGE)
for i in range(0, size, step):
    m[i] = 1
print(flush=True)
sys.stdin.read()
"""


def holder(size: int, step: int = mmap.PAGESIZE) -> list[str]:
    """The command that maps so many bytes, in small pages, and writes every step-th of them; then prints a line."""
    return [sys.executable, "-c", HOLD, str(size), str(step)]


@contextlib.contextmanager
def holding(size: int, step: int = mmap.PAGESIZE) -> Iterator[subprocess.Popen[bytes]]:
    """The process of that command, once it has written all of them; killed in the end."""
    with subprocess.Popen(holder(size, step), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as target:
        target.stdout.readline()
        try:
            yield target
        finally:
            target.kill()
