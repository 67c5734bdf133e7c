"""What tracing costs: threads that take page faults until all CPUs are busy, beside perf record.

    python tests/benchmarks/capture.py [--pairs 5] [--faults 200000] [--threads 1 2 4] [--other PYTHON]

Run it as root on a quiet machine; with the defaults it takes less than 5 minutes on 2 CPUs. Each round runs the target
in all ways in turn, A B C A B C: untraced, perf record, wstrace with a file, the Python of another installation with a
file. stacks=none on both sides; with as many threads as CPUs there are stacks=auto and perf record -g, too. Slowdowns
are medians of ratios within a round; the target measures its own time, from the first fault to the last end. CPU a
fault is that of all processes less that of a run with few faults.

Goals: wstrace over perf <= 1.0; no record lost; CPU and bytes a record <= those of the version before.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from cost import cost

#: every thread touches 64 MiB of fresh pages again and again, all of them from one moment on; the seconds go to a file
TARGET = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
static long faults, writes;
static pthread_barrier_t together;
static void *touch(void *unused) {
    long pages = 16384;
    volatile char *p = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise((void *)p, pages * 4096, MADV_NOHUGEPAGE);
    pthread_barrier_wait(&together);
    for (long i = 0; i < faults; i++) {
        if (i % pages == 0) madvise((void *)p, pages * 4096, MADV_DONTNEED);
        if (writes) p[i % pages * 4096] = 1; else (void)p[i % pages * 4096];
    }
    pthread_barrier_wait(&together);
    return unused;
}
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(int argc, char **argv) {
    long threads = atol(argv[2]);
    pthread_t one;
    faults = atol(argv[1]) / threads;
    writes = argv[3][0] == 'w';
    pthread_barrier_init(&together, 0, threads + 1);
    for (long i = 0; i < threads; i++) pthread_create(&one, 0, touch, 0);
    pthread_barrier_wait(&together);
    double began = now();
    pthread_barrier_wait(&together);
    FILE *out = fopen(argv[4], "w");
    fprintf(out, "%.6f", now() - began);
    fclose(out);
    return 0;
}
"""
PERF = ["perf", "record", "-q", "-e", "page-faults", "-c", "1", "-d", "-o", "perf.data"]
WSTRACE = ["-m", "wstrace", "run", "-f", "-o", "trace.wst", "-s"]
FEW = 1000


def ways(other: str | None, stacks: bool) -> dict[str, list[str]]:
    """The words before the target's own, by the name of the way; all write into the working directory."""
    none = [*WSTRACE, "page_faults:stacks=none", "--"]
    found = {"untraced": [], "perf": PERF, "wstrace": [sys.executable, *none]}
    if other:
        found["wstrace, other"] = [other, *none]
    if stacks:
        found |= {"perf -g": [*PERF, "-g"], "wstrace, auto": [sys.executable, *WSTRACE, "page_faults", "--"]}
    return found


def run(words: list[str], faults: int, threads: int, access: str) -> tuple[float, float]:
    """The target's own seconds, and the CPU seconds of all processes."""
    cpu, *_ = cost([*words, "./target", str(faults), str(threads), access, "reported"])
    return float(Path("reported").read_text()), cpu


def recorded(python: str) -> str:
    """What trace.wst, which that Python wrote, has: bytes a record, and the faults that its ledger says were lost."""
    info = subprocess.check_output([python, "-m", "wstrace", "info", "--json", "trace.wst"])
    ledger = json.loads(info)["ledger"]
    n = ledger["recorded:page_fault"]
    lost = sum(m for stage, m in ledger.items() if stage.startswith(("lost_", "dropped_", "unaccounted")))
    return f"  bytes a record {Path('trace.wst').stat().st_size / n:.2f}  {lost:,} of {n:,} lost"


def show(threads: int, access: str, wanted: argparse.Namespace) -> None:
    """Prints one line of the table for each way."""
    faults = wanted.faults * min(threads, os.cpu_count() or 1)
    chosen = ways(wanted.other, threads == os.cpu_count() and access == "write")
    of_file = {}
    runs = {name: [] for name in chosen}
    for _ in range(wanted.pairs):
        for name, words in chosen.items():
            runs[name].append(run(words, faults, threads, access))
            of_file[name] = recorded(words[0]) if name.startswith("wstrace") else ""
    for name, words in chosen.items():
        over = runs["perf -g" if name in ("perf -g", "wstrace, auto") else "perf"]
        slow, more = (
            statistics.median(mine / its for (mine, _), (its, _) in zip(runs[name], base, strict=True))
            for base in (runs["untraced"], over)
        )
        few = run(words, FEW, threads, access)[1]
        cpu = statistics.median((cpu - few) / (faults - FEW) * 1e6 for _, cpu in runs[name])
        print(f"{threads} threads {access:5} {name:15} slowdown {slow:.2f}  over perf {more:.2f}  "
              f"CPU us a fault {cpu:.2f}{of_file[name]}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--faults", type=int, default=200_000, help="for each CPU that is busy")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--other", help="the Python of another installation")
    wanted = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("target.c").write_text(TARGET)
        subprocess.run(["gcc", "-O2", "-pthread", "-o", "target", "target.c"], check=True)
        run(ways(None, False)["wstrace"], FEW, 1, "write")
        for threads in wanted.threads:
            for access in ("write", "read"):
                show(threads, access, wanted)


if __name__ == "__main__":
    main()
