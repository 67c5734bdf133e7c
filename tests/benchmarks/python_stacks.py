"""What Python stacks cost: CPU of the target a fault, of a usual program, the start, and the decoder of stack rows.

    python tests/benchmarks/python_stacks.py [--python PROGRAM] [--rounds 7]

Each round runs every variant once, one after the other. Shown are the median, and the median of the ratios to the
untraced run of the same round. Run it as root on a quiet machine. Goals: a loop of faults 5 frames deep <= 2.0 of
untraced; a usual program <= 1.08; the decoder <= 0.3 us a fault; the start of `run python` <= +60 ms, of another
command <= +5 ms.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from wstrace.interfaces import Context
from wstrace_os.linux.backend import platform
from wstrace_page_faults.linux.backend import PageFaults
from wstrace_page_faults.linux.python_stacks.protocol import STACK_ROW
from wstrace_page_faults.linux.python_stacks.rows import StackRows

#: touches fresh pages from C, that many frames deep: the median of its CPU nanoseconds a fault
LOOP = """
import ctypes, mmap, statistics, sys, time
memset = ctypes.CDLL(None).memset
memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
N = 400
def touch():
    m = mmap.mmap(-1, N * 4096)
    m.madvise(mmap.MADV_NOHUGEPAGE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(m))
    began = time.thread_time_ns()
    memset(at, 1, N * 4096)
    return time.thread_time_ns() - began
def deep(n):
    if n: return deep(n - 1)
    return statistics.median([touch() for _ in range(200)])
with open(sys.argv[1], "w") as out:
    out.write(str(deep(int(sys.argv[2]) - 4) / N))
"""
#: json, lists, recursion, new memory: its CPU milliseconds
USUAL = """
import json, sys, time
def tree(n): return {"k%d" % i: tree(n - 1) for i in range(6)} if n else list(range(6))
def work():
    text = json.dumps(tree(5))
    return len(json.loads(text)), [bytearray(300_000) for _ in range(40)]
work()
began = time.process_time()
for _ in range(8): work()
with open(sys.argv[1], "w") as out:
    out.write(str((time.process_time() - began) * 1e3))
"""


def run(command: list[str], stacks: str | None) -> float:
    """Runs a command, untraced (None) or under page_faults with these stacks: seconds until it has ended."""
    began = time.perf_counter()
    if stacks is None:
        subprocess.run(command, check=True)
        return time.perf_counter() - began
    target = platform().launch(command)
    source = PageFaults(stacks=stacks)
    source.start(Context(targets=(target,)))
    target.resume()
    while target.wait(0) is None:
        for _ in source.drain(0.02):
            pass
    for _ in source.stop():
        pass
    target.close()
    return time.perf_counter() - began


def measured(python: str, program: str, *arguments: str) -> Callable[[str | None], float]:
    """The number that a program writes."""

    def one(stacks: str | None) -> float:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            run([python, "-c", program, str(out), *arguments], stacks)
            return float(out.read_text())

    return one


def table(title: str, unit: str, rounds: int, of: Callable[[str | None], float]) -> None:
    """One line for each variant."""
    variants = (None, "none", "python")
    seen: list[list[float]] = [[of(variant) for variant in variants] for _ in range(rounds)]
    for i, variant in enumerate(variants):
        ratios = sorted(row[i] / row[0] for row in seen)
        name = "untraced" if variant is None else f"stacks={variant}"
        print(f"{title:24} {name:14} {median(row[i] for row in seen):10,.1f} {unit:10} x{median(ratios):.3f} "
              f"[{ratios[0]:.3f} - {ratios[-1]:.3f}]")  # fmt: skip


def decoder(rounds: int) -> None:
    """Pairing of a ring with a stack row before every second sample."""
    n = 1 << 17
    rows = np.zeros((n, 5), "<u8")
    rows[:, 0] = 9 | 2 << 32 | 40 << 48
    rows[:, 2] = 7 << 32 | 7
    rows[:, 3] = np.arange(n)
    stacks = np.arange(0, n, 3)
    rows[stacks, 1], rows[stacks, 3], rows[stacks, 4] = 7 << 32 | 7, STACK_ROW, np.arange(len(stacks)) * 64 + 16
    seconds = []
    for _ in range(max(rounds, 5)):
        pairs = StackRows()
        began = time.thread_time()
        pairs.pair(rows)
        seconds.append(time.thread_time() - began)
    print(f"{'decoder':24} {'':14} {median(seconds) / (n - len(stacks)) * 1e6:10.3f} us a fault")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    decoder(given.rounds)
    for depth in (5, 20, 60):
        table(f"fault loop, {depth} frames", "ns/fault", given.rounds, measured(given.python, LOOP, str(depth)))
    table("usual program", "ms CPU", given.rounds, measured(given.python, USUAL))
    true = lambda stacks: run(["true"], stacks) * 1e3  # noqa: E731 - a table's row
    start = lambda stacks: run([given.python, "-c", "0"], stacks) * 1e3  # noqa: E731
    table("start of python", "ms", given.rounds, start)
    table("start of true", "ms", given.rounds, true)


if __name__ == "__main__":
    main()
