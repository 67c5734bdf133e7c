"""What `wstrace report FILE` costs: CPU seconds and peak memory of the command, for a trace of many faults.

    python tests/benchmarks/blame.py [--pages 1048576] [--rounds 5] [--other PYTHON]

Goals: <= 2 s and 300 MB for a process of 4 GiB with 1M faults, <= 1.5 s for 1M faults of which few pages are left. With
--other, the Python of another installation is measured in turn, A B A B. Compile both first (`python -m compileall`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

#: Two lines touch every page; with `again` the pages are given back and touched again, 256 times as many as stay.
PROGRAM = """
import mmap, os, sys
pages, again = int(sys.argv[1]), int(sys.argv[2])
memory = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
def first(pages):
    for at in range(pages // 2): memory[at * 4096] = 1
def second(pages):
    for at in range(pages // 2, pages): memory[at * 4096] = 1
for _ in range(again):
    first(pages); second(pages); memory.madvise(mmap.MADV_DONTNEED)
first(pages); second(pages)
os._exit(0)
"""


def measured(python: str, trace: str) -> tuple[float, float]:
    """CPU seconds and peak MB of one `wstrace report`."""
    with subprocess.Popen([python, "-m", "wstrace", "report", trace], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pages", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", help="the Python of another installation")
    asked = parser.parse_args()
    pythons = [sys.executable, *([asked.other] if asked.other else [])]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        for what, pages, again in (("all pages stay", asked.pages, 0), ("1 of 256 stays", asked.pages >> 8, 255)):
            trace = f"{folder}/{again}.wst"
            subprocess.run([sys.executable, "-m", "wstrace", "run", "-q", "-o", trace, "--",
                            sys.executable, str(program), str(pages), str(again)], check=True)  # fmt: skip
            rounds = [[measured(python, trace) for python in pythons] for _ in range(asked.rounds)]
            for number, python in enumerate(pythons):
                cpu, memory = zip(*(one[number] for one in rounds), strict=True)
                median = statistics.median(cpu)
                print(f"{what}: {min(cpu):.2f} s CPU (median {median:.2f}), {max(memory):.0f} MB  {python}")


if __name__ == "__main__":
    main()
