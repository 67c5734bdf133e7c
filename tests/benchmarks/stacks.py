"""What stacks cost, beside perf and memray: as tables in Markdown for docs/how/cost.md.

    python tests/benchmarks/stacks.py [--rounds 5] [--python PROGRAM]

Each round runs every variant of every program once, in random order. Shown are the medians of the ratios of the
target's own CPU to the untraced run of the same round, with their range; then what Python stacks add to start and end.
Run it as root on a quiet machine, with perf and gcc, and memray if it is there.

`import pandas` and `import celery` are there where that Python has them.

Goals: `python`: a loop of faults 5 frames deep <= 2.0, `import pandas` <= 1.3, `import celery` <= 1.5, a usual program
<= 1.35; the start of a Python <= +60 ms, of a shell, which may start one, <= +40 ms. `native`: a fault loop <= 1.15.
"""

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from cost import cost

#: touches fresh pages from C, 5 frames deep; writes the median of its CPU nanoseconds a fault
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
    out.write(str(deep(1) / N))
"""
#: json, lists, recursion, new memory; writes its CPU milliseconds
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
#: one import; writes the CPU seconds of the process
IMPORT = """
import sys, time
import {}
with open(sys.argv[1], "w") as out:
    out.write(str(time.process_time()))
"""
IMPORTED = {"pandas": "pandas", "celery": "celery.bin.celery, celery.app.trace"}
#: 200,000 faults, 14 frames deep; writes its CPU seconds
NATIVE_LOOP = r"""
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
WSTRACE = [sys.executable, "-m", "wstrace", "run", "-q", "-f", "-o", "a.wst", "-s"]
#: name -> the words before a command; those that begin with -m are the interpreter's own
VARIANTS = {
    "untraced": [],
    "`stacks=none`": [*WSTRACE, "page_faults:stacks=none", "--"],
    "`stacks=auto`, the default": [*WSTRACE, "page_faults:stacks=auto", "--"],
    "`stacks=python`, every fault": [*WSTRACE, "page_faults:stacks=python", "--"],
    "`stacks=native`, 2,000 a second": [*WSTRACE, "page_faults:stacks=native", "--"],
    "`perf record -g`, every fault": ["perf", "record", "-q", "-e", "page-faults", "-c", "1", "-g", "--"],
}
if importlib.util.find_spec("memray"):
    VARIANTS["`memray run`"] = ["-m", "memray", "run", "-q", "-f", "-o", "a.bin"]


def own_cpu(words: Sequence[str], command: Sequence[str], folder: Path) -> float:
    """What a program says of its own CPU under a variant, in its own unit."""
    whole = [command[0], *words, *command[1:]] if words[:1] == ["-m"] else [*words, *command]
    cost([*whole, "out"], folder)
    return float((folder / "out").read_text())


def cost_table(folder: Path, python: str, rounds: int) -> None:
    """A row for each variant, a column for each program."""
    for name, text in (("loop.py", LOOP), ("usual.py", USUAL), ("loop.c", NATIVE_LOOP)):
        (folder / name).write_text(text)
    subprocess.run(["gcc", "-O1", "-o", "loop", "loop.c"], cwd=folder, check=True)
    programs = {"fault loop, 5 Python frames": [python, "loop.py"], "usual Python program": [python, "usual.py"],
                "fault loop in C": ["./loop"]}  # fmt: skip
    for module, names in IMPORTED.items():
        if not subprocess.run([python, "-c", f"import {names}"], stderr=subprocess.DEVNULL).returncode:
            (folder / f"{module}_.py").write_text(IMPORT.format(names))
            programs[f"`import {module}`"] = [python, f"{module}_.py"]
    seen = {}
    for _ in range(rounds):
        for name, command in programs.items():
            for variant in random.sample(list(VARIANTS), len(VARIANTS)):
                if "memray" not in variant or command[0] == python:
                    own = own_cpu(VARIANTS[variant], command, folder)
                    seen.setdefault((variant, name), []).append(own)
    print(f"| CPU of the target over untraced | {' | '.join(programs)} |\n|---|" + "---|" * len(programs))
    for variant in VARIANTS:
        cells = [cell(seen.get((variant, name), []), seen["untraced", name]) for name in programs]
        print(f"| {variant} | {' | '.join(cells)} |")


def cell(runs: Sequence[float], bare: Sequence[float]) -> str:
    """`1.08 [1.02-1.11]`: the median of the ratios, and their range."""
    ratios = [one / base for one, base in zip(runs, bare, strict=False)]
    return f"{median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]" if ratios else "-"


def start_table(folder: Path, python: str, rounds: int) -> None:
    """What Python stacks add to a whole `wstrace run -q`, over one without: the medians of the differences."""
    print("\n| start and end of `wstrace run -q` | with `stacks=none` | Python stacks add |\n|---|---|---|")
    for command in (["true"], ["sh", "-c", "true"], [python, "-S", "-c", "0"]):
        seen = {"none": [], "auto": []}
        for _ in range(max(3 * rounds, 15)):
            for way in random.sample(list(seen), 2):
                seen[way].append(cost([*WSTRACE, f"page_faults:stacks={way}", "--", *command], folder))
        less = [median(one[i] * 1e3 for one in seen["none"]) for i in (0, 1)]
        more = [median(1e3 * (a[i] - b[i]) for a, b in zip(seen["auto"], seen["none"], strict=True)) for i in (0, 1)]
        print(f"| {' '.join(command)} | {less[1]:.0f} ms, {less[0]:.0f} ms CPU | {more[1]:+.0f}, {more[0]:+.0f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable, help="the Python of the programs")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
    with tempfile.TemporaryDirectory() as name:
        cost_table(Path(name), given.python, given.rounds)
        start_table(Path(name), given.python, given.rounds)
