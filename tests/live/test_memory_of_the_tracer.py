"""What a program does without end takes no memory of the tracer without end: what finds no room is counted."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from wstrace import open_trace

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")]

MOST = 150 << 20
_FUNCTIONS = """
code = (lambda page: memory.__setitem__(page, 1)).__code__
make, memory, page = type(lambda: 0), mmap.mmap(-1, 1 << 24, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), 0
def step(i):
    global page
    page = (page + 4096) % (1 << 24)
    if not page:
        memory.madvise(mmap.MADV_DONTNEED)
    name = f"n{i}_" + LONG
    make(code.replace(co_name=name, co_qualname=name, co_filename=f"/f{i}/" + LONG), {"memory": memory})(page)
"""
STORMS = {
    "mappings": "def step(i):\n    with mmap.mmap(-1, 8192) as memory:\n        memory[0] = memory[4096] = 1\n",
    "processes": "def step(i): os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)\n",
    "functions": _FUNCTIONS.replace("LONG", "''"),
    "long names": _FUNCTIONS.replace("LONG", "'x' * 1500"),
}


@pytest.mark.parametrize("storm", STORMS)
def test_the_memory_of_the_tracer_has_a_bound(storm, tmp_path):
    program = f"import itertools, mmap, os, time\nend = time.monotonic() + 60\n{STORMS[storm]}"
    program += "for i in itertools.count():\n    step(i)\n    if time.monotonic() > end: break\n"
    kept, most = tmp_path / "x.wst", 0
    with subprocess.Popen(
        [sys.executable, "-m", "wstrace", "run", "-q", "-o", kept, "-c", program], stderr=subprocess.PIPE
    ) as tracer:
        while tracer.poll() is None:
            for line in Path(f"/proc/{tracer.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    most = max(most, int(line.split()[1]) << 10)
            time.sleep(0.05)
    assert tracer.returncode in (0, 123)
    assert most <= MOST
    with open_trace(str(kept)) as trace:
        counts = trace.ledger
    stages = ("lost_kernel", "lost_tracer", "foreign_clock", "unaccounted")
    lost = sum(counts.get(stage, kind) for stage in stages for kind in ("minor", "major", "page_faults"))
    assert counts.get("recorded", "page_fault") + lost == counts.get("counted")
