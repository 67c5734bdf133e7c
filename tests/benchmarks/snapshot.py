"""What a snapshot costs: wstrace.working_set() beside a bare C loop over PAGEMAP_SCAN and beside pmap -XX.

    python tests/benchmarks/snapshot.py [--gib 4] [--pairs 7]

Ratios are medians over pairs of runs, because absolute times are noisy. The C loop asks for the same categories and
keeps nothing; it does not know which pages are exclusive, nor whose they are. Goals: <= 1.1 x the C loop; <= 0.7 x
pmap -XX.
"""

import argparse
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


def measure(gib: float, pairs: int) -> None:
    """Prints the medians of the ratios."""
    with tempfile.TemporaryDirectory() as folder, holding(int(gib * (1 << 30))) as target:
        source, program = Path(folder, "loop.c"), Path(folder, "loop")
        source.write_text(C_LOOP)
        subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
        bare, pmap = [program, str(target.pid)], ["pmap", "-XX", str(target.pid)]
        over = {"the C loop": [], "pmap -XX": []}
        for _ in range(pairs + 1):  # the first warms up
            ours = seconds(lambda: wstrace.working_set(target.pid))
            over["the C loop"].append(ours / float(subprocess.run(bare, capture_output=True, check=True).stdout))
            over["pmap -XX"].append(ours / seconds(lambda: subprocess.run(pmap, capture_output=True, check=True)))
    for name, ratios in over.items():
        print(f"over {name}: {statistics.median(ratios[1:]):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    measure(options.gib, options.pairs)
