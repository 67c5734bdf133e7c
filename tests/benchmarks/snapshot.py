"""What a snapshot costs: wstrace.working_set() beside a bare C loop over PAGEMAP_SCAN and beside pmap -XX.

    python tests/benchmarks/snapshot.py [--gib 4] [--pairs 7] [--json]

Ratios are medians over pairs of runs, because absolute times are noisy. The C loop asks for the same categories and
keeps nothing; it does not know which pages are exclusive, nor whose they are. Goals: <= 1.1 x the C loop; <= 0.7 x
pmap -XX; 64 GiB reserved with 1,024 pages <= 4 ms; `wstrace snapshot` of 1 GiB <= 1 s.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import wstrace

sys.path.insert(0, str(Path(__file__).parents[1]))
from kit.held_memory import holding

C_LOOP = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
struct region { uint64_t start, end, categories; };
struct arg { uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any_of, give; };
static struct region found[65536];
int main(int argc, char **argv) {
    char path[64];
    struct timespec a, b;
    uint64_t at = 4096, end = 0x7ffffffff000, runs = 0;
    snprintf(path, sizeof path, "/proc/%s/pagemap", argv[1]);
    clock_gettime(CLOCK_MONOTONIC, &a);
    int fd = open(path, O_RDONLY);
    while (at < end) {  /* file, present, swapped, zero page, huge */
        struct arg g = {sizeof g, 0, at, end, 0, (uint64_t)found, 65536, 0, 0, 0, 8 | 16, 4 | 8 | 16 | 32 | 64};
        int n = ioctl(fd, _IOWR('f', 16, struct arg), &g);
        if (n < 0) { perror("PAGEMAP_SCAN"); return 1; }
        runs += n;
        if (n < 65536) break;
        at = g.walk_end > found[n - 1].end ? g.walk_end : found[n - 1].end;
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%.6f\n", (b.tv_sec - a.tv_sec) + (b.tv_nsec - a.tv_nsec) / 1e9);
    return 0;
}
"""


def seconds(call: Callable[[], object]) -> float:
    """The wall time of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(gib: float, pairs: int) -> dict[str, float]:
    """Medians: seconds and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "loop.c"), Path(folder, "loop")
        source.write_text(C_LOOP)
        subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
        found = {}
        with holding(int(gib * (1 << 30))) as target:
            rows, bare, pmap = [], [program, str(target.pid)], ["pmap", "-XX", str(target.pid)]
            for _ in range(pairs + 1):  # the first warms up
                loop = float(subprocess.run(bare, capture_output=True, text=True, check=True).stdout)
                ours = seconds(lambda: wstrace.working_set(target.pid))
                row = [ours, loop]
                if shutil.which("pmap"):
                    row.append(seconds(lambda: subprocess.run(pmap, capture_output=True, check=True)))
                rows.append(row)
            rows = rows[1:]
            found["snapshot_s"] = statistics.median(row[0] for row in rows)
            found["c_loop_s"] = statistics.median(row[1] for row in rows)
            found["over_c_loop"] = statistics.median(row[0] / row[1] for row in rows)
            if len(rows[0]) == 3:
                found["over_pmap_XX"] = statistics.median(row[0] / row[2] for row in rows)
        with holding(64 << 30, 64 << 20) as target:
            times = [seconds(lambda: wstrace.working_set(target.pid)) for _ in range(pairs)]
            found["reserved_64_gib_s"] = statistics.median(times)
        with holding(1 << 30) as target:
            command = [sys.executable, "-m", "wstrace", "snapshot", str(target.pid)]
            found["command_1_gib_s"] = statistics.median(
                seconds(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True)) for _ in range(3)
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.gib, options.pairs)
    if options.json:
        print(json.dumps(found))
        return
    goals = {"over_c_loop": 1.1, "over_pmap_XX": 0.7, "reserved_64_gib_s": 0.004, "command_1_gib_s": 1.0}
    for name, value in found.items():
        met = f"   goal <= {goals[name]}: {'yes' if value <= goals[name] else 'NO'}" if name in goals else ""
        print(f"{name:20} {value:10.4f}{met}")


if __name__ == "__main__":
    main()
