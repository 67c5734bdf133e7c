"""What tracing costs: threads that take page faults until all CPUs are busy, beside perf record and a kernel's count.

    python tests/benchmarks/capture.py [--pairs 5] [--faults 200000] [--threads 1 2 4] [--other PYTHON] [--json]

Run it as root on a quiet machine; with the defaults it takes less than 5 minutes on 2 CPUs. Each round runs the target
in all ways in turn, A B C A B C: untraced, perf record, wstrace with a file, the Python of another installation with a
file, perf record -z1, bpftrace counting in the kernel. stacks=none on both sides; with as many threads as CPUs there
are stacks=auto and perf record -g, too. Slowdowns are medians of ratios within a round; the target measures its own
time, from the first fault to the last end. CPU a fault is that of all processes less that of a run with few faults.
Goals: wstrace over perf <= 1.0; no record lost; CPU and bytes a record <= those of the version before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
PERF = ("perf", "record", "-q", "-e", "page-faults", "-c", "1", "-d")
FEW = 1000
COUNT = 'software:page-faults:1 /comm == "target"/ { @ = count(); }'


@dataclass
class Run:
    """One run: the target's seconds, the CPU seconds and the faults of everything, and what the file has."""

    seconds: float
    cpu: float
    faults: int
    bytes: int = 0
    recorded: int = 0
    lost: int = 0


class Bench:
    def __init__(self, folder: Path, faults: int, other: str | None) -> None:
        self.folder, self.faults, self.other, self.reported = folder, faults, other, folder / "reported"
        Path(folder, "target.c").write_text(TARGET)
        subprocess.run(["gcc", "-O2", "-pthread", "-o", folder / "target", folder / "target.c"], check=True)

    def ways(self, stacks: bool) -> dict[str, list[str]]:
        """The words before the target's own, by the name of the way; those whose tool is missing are left out."""
        perf = [*PERF, "-o", f"{self.folder}/perf.data"]
        words = ["-m", "wstrace", "run", "-f", "-o", f"{self.folder}/trace.wst"]
        none = ["-s", "page_faults:stacks=none", "--"]
        ways = {"untraced": [], "perf": perf, "wstrace": [sys.executable, *words, *none], "perf -z1": [*perf, "-z1"],
                "bpftrace count": ["bpftrace", "-e", COUNT, "-c"]}  # fmt: skip
        if self.other:
            ways["wstrace, other"] = [self.other, *words, *none]
        if stacks:
            ways |= {"perf -g": [*perf, "-g"], "wstrace, auto": [sys.executable, *words, "--"]}
        return {name: words for name, words in ways.items() if not words or shutil.which(words[0])}

    def run(self, name: str, words: list[str], threads: int, access: str, few: bool = False) -> Run:
        faults = FEW if few else self.faults * min(threads, os.cpu_count() or 1)
        target = [f"{self.folder}/target", str(faults), str(threads), access, str(self.reported)]
        if words and words[-1] == "-c":
            target = [" ".join(target)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*words, *target], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        done = Run(float(self.reported.read_text()), cpu, faults)
        if name.startswith("wstrace"):
            info = [words[0], "-m", "wstrace", "info", "--json", f"{self.folder}/trace.wst"]
            done.recorded, done.lost = counted(json.loads(subprocess.check_output(info)))
            done.bytes = Path(self.folder, "trace.wst").stat().st_size
        return done


def counted(info: object) -> tuple[int, int]:
    """The faults that a trace file has, and those that its ledger says were lost."""
    ledger = find(info, "ledger") or {}
    lost = ("lost_kernel", "lost_tracer", "dropped_bus", "dropped_lane", "failed_lane")
    return ledger.get("recorded:page_fault", 0), sum(n for key, n in ledger.items() if key.split(":")[0] in lost)


def find(tree: object, key: str) -> dict[str, int] | None:
    """The first object of that name anywhere in a JSON tree."""
    if isinstance(tree, dict):
        if isinstance(tree.get(key), dict):
            return tree[key]
        tree = list(tree.values())
    if isinstance(tree, list):
        return next((found for one in tree if (found := find(one, key)) is not None), None)
    return None


def rows(bench: Bench, threads: int, access: str, pairs: int) -> Iterator[dict[str, object]]:
    """One line of the table for each way."""
    ways = bench.ways(threads == os.cpu_count() and access == "write")
    rounds = [{name: bench.run(name, words, threads, access) for name, words in ways.items()} for _ in range(pairs)]
    few = {name: bench.run(name, words, threads, access, few=True).cpu for name, words in ways.items()}
    for name in ways:
        runs = [one[name] for one in rounds]
        over = "perf -g" if name in ("perf -g", "wstrace, auto") else "perf"
        row = {"threads": threads, "pages": access, "way": name}
        row["slowdown"] = statistics.median(one[name].seconds / one["untraced"].seconds for one in rounds)
        if over in ways:
            row[f"over {over}"] = statistics.median(one[name].seconds / one[over].seconds for one in rounds)
        row["CPU us a fault"] = statistics.median((run.cpu - few[name]) / (run.faults - FEW) * 1e6 for run in runs)
        if any(run.recorded for run in runs):
            row["bytes a record"] = statistics.median(run.bytes / run.recorded for run in runs)
            row["recorded"], row["lost"] = sum(run.recorded for run in runs), sum(run.lost for run in runs)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--faults", type=int, default=200_000, help="for each CPU that is busy")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--other", help="the Python of another installation")
    parser.add_argument("--json", action="store_true", help="one object a line, instead of a table")
    wanted = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), wanted.faults, wanted.other)
        bench.run("wstrace", bench.ways(False)["wstrace"], 1, "write")
        for threads in wanted.threads:
            for access in ("write", "read"):
                for row in rows(bench, threads, access, wanted.pairs):
                    if wanted.json:
                        print(json.dumps(row), flush=True)
                        continue
                    shown = (f"{key} {value:.2f}" for key, value in row.items() if isinstance(value, float))
                    reported = f"  {row['lost']:,} of {row['recorded']:,} lost" if "lost" in row else ""
                    print(f"{threads} threads {access:5} {row['way']:17} {'  '.join(shown)}{reported}", flush=True)


if __name__ == "__main__":
    main()
