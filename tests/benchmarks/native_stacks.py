"""What native stacks cost: CPU of the target beside perf's and memray's ways, and how many stacks a second are unwound.

    python tests/benchmarks/native_stacks.py [--rounds 7]

Each round runs every variant once in random order. Shown are the median of the target's own CPU seconds, the median of
the ratios to the untraced run of the same round with their range, and the tracer's CPU seconds. Run it as root on a
quiet machine; it needs gcc, perf, memray and numpy, and leaves out what is missing. Goals at the default rate: a loop
of faults <= 1.15 of untraced, a numpy program <= 1.02; unwinding >= 60,000 stacks a second.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "kit"))

import perf_data
from unwound import code_of

from wstrace_stacks.unwinder import Samples, unwind

#: 200,000 faults, 14 frames deep; writes its CPU seconds
LOOP = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#define PAGES 2000
__attribute__((noinline)) static int leaf(volatile char *p) {
    for (long i = 0; i < PAGES; i++) p[i * 4096] = 1;
    return p[0];
}
__attribute__((noinline)) static int deeper(int depth, char *p) {
    volatile int kept = depth;
    return depth ? deeper(depth - 1, p) + kept : leaf(p);
}
int main(int count, char **words) {
    for (int round = 0; round < 100; round++) {
        char *p = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(p, PAGES * 4096, MADV_NOHUGEPAGE);
        deeper(12, p);
        munmap(p, PAGES * 4096);
    }
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    FILE *out = fopen(words[1], "w");
    fprintf(out, "%f", u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
    return 0;
}
"""
#: arrays, products, small objects, text; writes its CPU seconds
NUMPY = """
import json, sys, time
import numpy as np
for _ in range(3):
    np.ones(1 << 21)
    a = np.random.rand(500, 500)
    a @ a
    json.loads(json.dumps([{"k": i, "v": [i]} for i in range(30_000)]))
with open(sys.argv[1], "w") as out:
    out.write(str(time.process_time()))
"""
WSTRACE = [sys.executable, "-m", "wstrace", "run", "-q", "-f", "-o"]
PERF = ["perf", "record", "-q", "-e", "page-faults"]


def variants(folder: Path, python: bool) -> dict[str, list[str]]:
    """Name -> the words before the command."""
    found = {
        "untraced": [],
        "stacks=none": [*WSTRACE, str(folder / "a.wst"), "-s", "page_faults:stacks=none", "--"],
        "stacks=native": [*WSTRACE, str(folder / "a.wst"), "-s", "page_faults:stacks=native", "--"],
    }
    if shutil.which("perf"):
        out = ["-o", str(folder / "perf.data"), "--"]
        found["perf -g, every fault"] = [*PERF, "-c", "1", "-g", *out]
        found["perf dwarf, 2000 a second"] = [*PERF, "-F", "2000", "--call-graph", "dwarf,16384", *out]
    if python and importlib.util.find_spec("memray"):
        words = ["-m", "memray", "run", "-q", "-f", "--native", "-o", str(folder / "a.bin")]
        found["memray --native"] = [sys.executable, *words]
    return found


def once(words: list[str], command: list[str], out: Path) -> tuple[float, float]:
    """The CPU seconds of the target, and of the tracer."""
    if "memray" in words:
        command = command[1:]  # it is the interpreter itself
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*words, *command, str(out)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    target = float(out.read_text())
    return target, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime - target


def table(title: str, command: list[str], folder: Path, rounds: int) -> None:
    """A line for each variant."""
    given = variants(folder, python=command[0] == sys.executable)
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in given}
    for _ in range(rounds):
        for name in random.sample(list(given), len(given)):
            seen[name].append(once(given[name], command, folder / "out"))
    for name, found in seen.items():
        ratios = sorted(mine[0] / base[0] for mine, base in zip(found, seen["untraced"], strict=True))
        print(f"{title:14} {name:26} {median(one[0] for one in found):7.3f} s  x{median(ratios):.3f} "
              f"[{ratios[0]:.3f} - {ratios[-1]:.3f}]  tracer {median(one[1] for one in found):6.2f} s")  # fmt: skip


def unwinding(folder: Path, rounds: int) -> None:
    """Stacks a second of one thread, of so many samples at once, of a Python program's start."""
    data = folder / "unwound.data"
    program = "import asyncio, decimal, email.message, json, unittest\n[[i] * 9 for i in range(99999)]"
    words = [*PERF, "-c", "1", "--call-graph", "dwarf,16384", "-o", str(data), "--", sys.executable, "-c", program]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    samples, mappings = perf_data.read(data)
    [(pid, _)] = collections.Counter(one.pid for one in samples).most_common(1)
    code = code_of(pid, [one for one in mappings if one.pid == pid])
    columns = perf_data.arrays([one for one in samples if one.pid == pid])
    n = len(columns["size"])
    for at_once in (256, 1024, 4096):
        if at_once > n:
            continue
        rates = []
        for _ in range(max(rounds, 3)):
            frames, began = 0, time.thread_time()
            for start in range(0, n - at_once + 1, at_once):
                part = Samples(**{name: column[start : start + at_once] for name, column in columns.items()})
                frames += int(unwind(part, code).depth.sum())
            rates.append(n // at_once * at_once / (time.thread_time() - began))
        print(f"unwinding      {at_once:5} at once {median(rates[1:]):10,.0f} stacks/s  "
              f"{frames / (n // at_once * at_once):.0f} frames each")  # fmt: skip


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print(f"load {os.getloadavg()[0]:.1f}, numpy {np.__version__}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if shutil.which("perf"):
            unwinding(folder, rounds)
        if shutil.which("gcc"):
            (folder / "loop.c").write_text(LOOP)
            subprocess.run(["gcc", "-O1", "-o", folder / "loop", folder / "loop.c"], check=True)
            table("fault loop", [str(folder / "loop")], folder, rounds)
        (folder / "numpy_program.py").write_text(NUMPY)
        table("numpy program", [sys.executable, str(folder / "numpy_program.py")], folder, rounds)


if __name__ == "__main__":
    main()
