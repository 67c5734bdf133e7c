"""What stacks cost, beside perf and memray: all figures in one command, as tables in Markdown for docs/how/cost.md.

    python tests/benchmarks/stacks.py [--rounds 5] [--python PROGRAM]

Each round runs every variant of every program once, in random order. Shown are the medians of the ratios of the
target's own CPU to the untraced run of the same round, with their range and the median of the tracer's CPU; then what
Python stacks add to start and end, and the rates of the unwinder and of the decoder of stack rows. Run it as root on a
quiet machine; it takes 5 to 9 minutes. Without perf, gcc or memray, what needs them is left out.

Goals: `python`: a loop of faults 5 frames deep <= 2.0, `import pandas` <= 1.3, `import celery` <= 1.5, a usual program
<= 1.35, the decoder <= 0.3 us a fault; the start of a Python <= +60 ms, of a shell, which may start one, <= +40 ms.
`native`: a fault loop <= 1.15, a numpy program <= 1.02, unwinding >= 60,000 stacks a second.
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
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import perf_data
from kit.unwound import code_of

from wstrace_plugins.page_faults.linux.python_stacks.protocol import STACK_ROW, StackRows
from wstrace_plugins.stacks.unwinder import Samples, unwind

#: touches fresh pages from C, that many frames deep; writes the median of its CPU nanoseconds a fault
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
#: writes the CPU seconds of a start and an import
IMPORT = """
import sys, time
import {}
with open(sys.argv[1], "w") as out:
    out.write(str(time.process_time()))
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
PERF = ["perf", "record", "-q", "-e", "page-faults"]
#: name -> the words before a command; those that begin with -m are the interpreter's own
VARIANTS = {
    "untraced": [],
    "`stacks=none`": [*WSTRACE, "page_faults:stacks=none", "--"],
    "`stacks=python`, every frame checked": [*WSTRACE, "page_faults:stacks=python", "--"],
    "`stacks=native`, 2,000 a second": [*WSTRACE, "page_faults:stacks=native", "--"],
    "`perf record -g`, every fault": [*PERF, "-c", "1", "-g", "-o", "perf.data", "--"],
    "`perf record --call-graph dwarf`, 2,000 a second": [
        *PERF, "-F", "2000", "--call-graph", "dwarf,16384", "-o", "perf.data", "--",
    ],
    "`memray run`": ["-m", "memray", "run", "-q", "-f", "-o", "a.bin"],
    "`memray run --native`": ["-m", "memray", "run", "-q", "-f", "--native", "-o", "a.bin"],
}  # fmt: skip
_HEAD_ROW, _MOST_PAIRS = 9 | 2 << 32 | 40 << 48, 1 << 17


class Run(NamedTuple):
    """What the program wrote: its own CPU, in its own unit; and the tracer's CPU seconds over the untraced run's."""

    own: float
    seconds: float


def run(words: Sequence[str], command: Sequence[str], folder: Path) -> Run:
    """Runs a program under a variant in that folder."""
    whole = [command[0], *words, *command[1:]] if words[:1] == ["-m"] else [*words, *command]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*whole, "out"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(float((folder / "out").read_text()), seconds)


def programs(folder: Path, python: str) -> dict[str, Sequence[str]]:
    """Name -> command, to which the file that it writes is added."""
    found = {}
    for depth in (5, 20, 60):
        script = folder / f"loop{depth}.py"
        script.write_text(LOOP.replace("int(sys.argv[2])", str(depth)))
        found[f"fault loop, {depth} Python frames"] = [python, str(script)]
    for name, text, runs_it in (("usual program", USUAL, python), ("numpy program", NUMPY, sys.executable)):
        script = folder / f"{name.replace(' ', '_')}.py"
        script.write_text(text)
        found[name] = [runs_it, str(script)]
    for module, names in (("pandas", "pandas"), ("celery", "celery.bin.celery, celery.app.trace")):
        if subprocess.run([python, "-c", f"import {names}"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            script = folder / f"import_{module}.py"
            script.write_text(IMPORT.format(names))
            found[f"`import {module}`"] = [python, str(script)]
    if shutil.which("gcc"):
        (folder / "loop.c").write_text(NATIVE_LOOP)
        subprocess.run(["gcc", "-O1", "-o", folder / "loop", folder / "loop.c"], check=True)
        found["fault loop in C, 14 frames"] = [str(folder / "loop")]
    return found


def variants(command: Sequence[str]) -> list[str]:
    """The names of those that there are for a command here."""
    missing = [tool for tool in ("perf",) if shutil.which(tool) is None]
    if command[0] != sys.executable or importlib.util.find_spec("memray") is None:
        missing.append("memray")
    return [name for name in VARIANTS if not any(tool in name for tool in missing)]


def cost_table(folder: Path, python: str, rounds: int) -> None:
    """A row for each variant, a column for each program."""
    commands = programs(folder, python)
    seen = collections.defaultdict(list)
    for _ in range(rounds):
        for name, command in commands.items():
            for variant in random.sample(mine := variants(command), len(mine)):
                seen[variant, name].append(run(VARIANTS[variant], command, folder))
    print(f"| CPU of the target over untraced; of the tracer | {' | '.join(commands)} |")
    print("|---|" + "---|" * len(commands))
    for variant in VARIANTS:
        cells = [cell(seen.get((variant, name), []), seen["untraced", name]) for name in commands]
        print(f"| {variant} | {' | '.join(cells)} |")


def cell(runs: Sequence[Run], bare: Sequence[Run]) -> str:
    """`1.08 [1.02-1.11]; 0.50 s`: the median of the ratios, their range, the tracer's CPU."""
    if not runs:
        return "-"
    ratios = sorted(one.own / base.own for one, base in zip(runs, bare, strict=True))
    # The target's whole CPU under the tracer is taken for that of the untraced run, times the ratio of its own figure.
    more = median(one.seconds - base.seconds * one.own / base.own for one, base in zip(runs, bare, strict=True))
    return f"{median(ratios):.2f} [{ratios[0]:.2f}-{ratios[-1]:.2f}]" + ("" if runs is bare else f"; {more:.2f} s")


def start_table(python: str, rounds: int) -> None:
    """What Python stacks add to a whole `wstrace run -q`, over one without: the medians of the differences."""
    commands = {"`true`": ["true"], "`sh -c true`": ["sh", "-c", "true"], "`python -S -c 0`": [python, "-S", "-c", "0"]}
    ways = {name: [*WSTRACE[:4], "-q", "-s", f"page_faults:stacks={name}", "--"] for name in ("none", "auto")}
    print("\n| start and end of `wstrace run -q` | with `stacks=none` | Python stacks add |\n|---|---|---|")
    for name, command in commands.items():
        seen = {way: [] for way in ways}
        for _ in range(max(3 * rounds, 15)):
            for way in random.sample(list(ways), len(ways)):
                seen[way].append(elapsed([*ways[way], *command]))
        wall, cpu = ([1e3 * (more[i] - less[i]) for more, less in zip(seen["auto"], seen["none"], strict=True)]
                     for i in (0, 1))  # fmt: skip
        bare = [1e3 * median(one[i] for one in seen["none"]) for i in (0, 1)]
        more = f"{median(wall):+.0f} ms, {median(cpu):+.0f} ms CPU"
        print(f"| {name} | {bare[0]:.0f} ms, {bare[1]:.0f} ms CPU | {more} |")


def elapsed(words: Sequence[str]) -> tuple[float, float]:
    """The seconds that a command takes, and its CPU seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
        rates, frames = [], 0
        for _ in range(max(rounds, 3)):
            frames, began = 0, time.thread_time()
            for start in range(0, n - at_once + 1, at_once):
                part = Samples(**{name: column[start : start + at_once] for name, column in columns.items()})
                frames += int(unwind(part, code).depth.sum())
            rates.append(n // at_once * at_once / (time.thread_time() - began))
        each = frames / (n // at_once * at_once)
        print(f"| unwinding, {at_once:,} stacks of {each:.0f} frames at once | {median(rates[1:]):,.0f} stacks/s |")


def decoder(rounds: int) -> None:
    """Pairing of a ring with a stack row before every second sample."""
    n = _MOST_PAIRS
    rows = np.zeros((n, 5), "<u8")
    rows[:, 0] = _HEAD_ROW
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
    print(f"| decoding of stack rows | {median(seconds) / (n - len(stacks)) * 1e6:.3f} us a fault |")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable, help="the Python that runs all but the numpy program")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    # A tracer that is compiled anew at every start is not what we ask for.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    began, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        cost_table(Path(name), given.python, given.rounds)
        start_table(given.python, given.rounds)
        print("\n| rate | |\n|---|---|")
        if shutil.which("perf"):
            unwinding(Path(name), given.rounds)
        decoder(given.rounds)
    machine = f"{os.cpu_count()} CPUs, Linux {os.uname().release}, numpy {np.__version__}, load {load:.1f} at first"
    print(f"\n{given.rounds} rounds, {machine}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
