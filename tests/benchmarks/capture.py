"""What tracing costs: a target of 1M page faults bare, under perf record and under wstrace, in paired runs A B C A B C.

    python tests/benchmarks/capture.py [--pairs 5] [--faults 1000000] [--json]

Run it as root (or with perf_event_paranoid <= 1) on a quiet machine. Ratios are medians of the runs' own pairs, because
absolute times are noisy. Goals: slowdown over perf's <= 1.0; tracer CPU per record <= perf's; loss 0; <= 7 bytes per
record; <= 0.5 s from the target's end to the end of the summary; `import wstrace` and --help <= 60 and 150 ms over bare
Python; idle attach <= 0.2 % of a CPU; peak memory of the tracer <= 250 MB.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: touches 64 MiB of fresh pages again and again; writes its own seconds, CPU seconds and the time of its end to a file
TARGET = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
static double now(clockid_t id) { struct timespec t; clock_gettime(id, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(int argc, char **argv) {
    long n = atol(argv[1]), pages = 16384;
    char *p = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, pages * 4096, MADV_NOHUGEPAGE);
    double began = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (long i = 0; i < n; i++) {
        if (i % pages == 0) madvise(p, pages * 4096, MADV_DONTNEED);
        ((volatile char *)p)[i % pages * 4096] = 1;
    }
    FILE *out = fopen(argv[2], "w");
    fprintf(out, "%.6f %.6f %.6f", now(CLOCK_MONOTONIC) - began, now(CLOCK_PROCESS_CPUTIME_ID) - cpu,
            now(CLOCK_MONOTONIC));
    return fclose(out);
}
"""


FEW = 1000


@dataclass
class Run:
    """One run of the target, seconds; tracer: of the tracer alone."""

    target: float
    target_cpu: float
    tracer_cpu: float = 0.0
    tail: float = 0.0
    peak_bytes: int = 0
    file_bytes: int = 0
    records: int = 0
    lost: int = 0


class Bench:
    def __init__(self, folder: Path, faults: int) -> None:
        self.folder, self.faults = folder, faults
        self.told, self.binary = folder / "told", folder / "target"
        (folder / "target.c").write_text(TARGET)
        subprocess.run(["gcc", "-O2", "-o", self.binary, folder / "target.c"], check=True)
        self.command = [str(self.binary), str(faults), str(self.told)]

    def few(self) -> Bench:
        """The same with next to no faults: what a tracer costs before the first record and after the last."""
        other = copy.copy(self)
        other.faults, other.command = FEW, [str(self.binary), str(FEW), str(self.told)]
        return other

    def measure(self, command: list[str]) -> Run:
        """Runs it; the tracer's CPU is that of the whole tree less the target's own."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)
        ended = time.monotonic()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        target, target_cpu, target_end = map(float, self.told.read_text().split())
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Run(target, target_cpu, cpu - target_cpu, ended - target_end)

    def bare(self) -> Run:
        return self.measure(self.command)

    def perf(self) -> Run:
        data = self.folder / "perf.data"
        run = self.measure(
            ["perf", "record", "-q", "-e", "page-faults", "-c", "1", "-d", "-o", str(data), *self.command]
        )
        run.file_bytes = data.stat().st_size
        return run

    def wstrace(self) -> Run:
        saved = self.folder / "trace.wst"
        saved.unlink(missing_ok=True)
        run = self.measure([sys.executable, "-m", "wstrace", "run", "-o", str(saved), "--", *self.command])
        told = subprocess.run([sys.executable, "-m", "wstrace", "info", "--json", str(saved)],
                              capture_output=True, text=True, check=True).stdout  # fmt: skip
        run.file_bytes = saved.stat().st_size
        ledger = find(json.loads(told), "ledger") or {}
        run.records = ledger.get("recorded:page_fault", 0)
        run.lost = sum(
            n for key, n in ledger.items() if key.split(":")[0] in ("lost_kernel", "dropped_bus", "dropped_lane")
        )
        return run


def find(tree: object, key: str) -> dict[str, int] | None:
    """The first object of that name anywhere in a JSON tree."""
    if isinstance(tree, dict):
        if isinstance(tree.get(key), dict):
            return tree[key]
        tree = list(tree.values())
    if isinstance(tree, list):
        return next((found for one in tree if (found := find(one, key)) is not None), None)
    return None


def peak_of_tracer(bench: Bench) -> int:
    """VmHWM of the tracer in a run of its own, looked at until it ends, bytes."""
    tracer = subprocess.Popen([sys.executable, "-m", "wstrace", "run", "-o", "peak.wst", "-f", "--", *bench.command],
                              cwd=bench.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    peak = 0
    while tracer.poll() is None:
        try:
            text = Path(f"/proc/{tracer.pid}/status").read_text()
        except OSError:
            break
        peak = max(peak, *(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM")), 0)
        time.sleep(0.005)
    tracer.wait()
    return peak


def idle_attach(seconds: float = 10.0) -> float:
    """Percent of one CPU that an attached tracer of a sleeping process takes."""
    sleeper = subprocess.Popen(["sleep", "1000"])
    command = ["-m", "wstrace", "attach", str(sleeper.pid), "--duration", f"{seconds + 3}s"]
    tracer = subprocess.Popen([sys.executable, *command],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        time.sleep(2)
        before, at = cpu_of(tracer.pid), time.monotonic()
        time.sleep(seconds)
        return 100 * (cpu_of(tracer.pid) - before) / (time.monotonic() - at)
    finally:
        sleeper.kill()
        sleeper.wait()
        tracer.wait(30)


def cpu_of(pid: int) -> float:
    """CPU seconds so far, in ns resolution where the kernel has it."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def start_time(*arguments: str, runs: int = 9) -> float:
    """Milliseconds that a Python with these arguments takes, the median."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--faults", type=int, default=1_000_000)
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of idle attach, 0 = none")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # a tracer that is compiled anew at every start is not what we ask for
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.faults)
        runs: dict[str, list[Run]] = {"bare": [], "perf": [], "wstrace": []}
        ways: dict[str, Callable[[], Run]] = {"bare": bench.bare, "wstrace": bench.wstrace}
        if shutil.which("perf"):
            ways = {"bare": bench.bare, "perf": bench.perf, "wstrace": bench.wstrace}
        few = bench.few()
        runs |= {"perf few": [], "wstrace few": []}
        ways["wstrace few"] = few.wstrace
        if "perf" in ways:
            ways["perf few"] = few.perf
        bench.bare()
        few.wstrace()
        for _ in range(options.pairs):
            for name, way in ways.items():
                runs[name].append(way())
        figures = summary(runs, options.faults)
        figures["tracer_peak_mb"] = peak_of_tracer(bench) / 1e6
    if options.idle:
        figures["idle_attach_cpu_percent"] = idle_attach(options.idle)
    bare = start_time("-c", "pass")
    figures["import_ms_over_bare"] = start_time("-c", "import wstrace") - bare
    figures["help_ms_over_bare"] = start_time("-m", "wstrace", "--help") - bare
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{options.faults:,} faults, {options.pairs} pairs, {os.cpu_count()} CPUs, {os.uname().release}")
    for name, value in figures.items():
        print(f"{name:40} {value:12.3f}")


def marginal(runs: dict[str, list[Run]], who: str, faults: int) -> float:
    """CPU of the tracer for one record more, in us: start-up and summary, which do not grow, are taken off."""
    pairs = zip(runs[who], runs[f"{who} few"], strict=True)
    return 1e6 * median([many.tracer_cpu - few.tracer_cpu for many, few in pairs]) / (faults - FEW)


def summary(runs: dict[str, list[Run]], faults: int) -> dict[str, float]:
    """The figures by name: medians, ratios run by run."""
    pairs = list(zip(runs["bare"], runs["wstrace"], strict=True))
    threes = list(zip(runs["bare"], runs["perf"], runs["wstrace"], strict=False))
    figures = {
        "bare_us_per_fault": 1e6 * median([r.target for r in runs["bare"]]) / faults,
        "slowdown_wstrace": median([w.target / b.target for b, w in pairs]),
        "tracer_cpu_us_per_record": marginal(runs, "wstrace", faults),
        "tracer_cpu_fixed_seconds": median([w.tracer_cpu for w in runs["wstrace few"]]),
        "lost_records": float(sum(w.lost for w in runs["wstrace"])),
        "records_per_fault": median([w.records / faults for w in runs["wstrace"]]),
        "bytes_per_record": median([w.file_bytes / max(w.records, 1) for w in runs["wstrace"]]),
        "seconds_from_end_to_summary": median([w.tail for w in runs["wstrace"]]),
    }
    if threes:
        figures |= {
            "slowdown_perf": median([p.target / b.target for b, p, _ in threes]),
            "slowdown_over_perfs": median([w.target / p.target for _, p, w in threes]),
            "perf_cpu_us_per_record": marginal(runs, "perf", faults),
            "perf_cpu_fixed_seconds": median([p.tracer_cpu for p in runs["perf few"]]),
            "tracer_cpu_over_perfs": marginal(runs, "wstrace", faults) / marginal(runs, "perf", faults),
            "tracer_cpu_over_perfs_with_start_up": median([w.tracer_cpu / p.tracer_cpu for _, p, w in threes]),
            "perf_bytes_per_record": median([p.file_bytes / faults for _, p, _ in threes]),
        }
    return figures


if __name__ == "__main__":
    main()
