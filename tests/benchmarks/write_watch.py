"""What write watch costs: get and reset by WriteWatch beside the same in C, and beside copy and compare.

    python tests/benchmarks/write_watch.py [--mib 1024] [--pairs 9] [--json]

An idle look of MemoryWatch, which covers the whole process, stands beside one of WriteWatch over the same memory.

Ratios are medians over pairs of runs. Goals: get + reset of 1 GiB with 1 % written <= 1.1 x C; >= 20 x faster than to
keep a copy and compare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import wstrace

PAGE = 4096
C_WATCH = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
struct region { uint64_t start, end, categories; };
struct arg { uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any_of, give; };
static struct region found[65536];
static uint64_t pages[1 << 20];
int main(int argc, char **argv) {
    size_t n = (size_t)atol(argv[1]) << 20;
    int percent = atoi(argv[2]), rounds = atoi(argv[3]);
    char *p = mmap(0, n, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, n, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < n; i += 4096) p[i] = 1;
    int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | 1), fd = open("/proc/self/pagemap", O_RDONLY);
    struct uffdio_api api = {UFFD_API, 1 << 15 | 1 << 13, 0};
    struct uffdio_register reg = {{(uint64_t)p, n}, UFFDIO_REGISTER_MODE_WP, 0};
    struct uffdio_writeprotect wp = {{(uint64_t)p, n}, 1};
    if (ioctl(uffd, UFFDIO_API, &api) || ioctl(uffd, UFFDIO_REGISTER, &reg) || ioctl(uffd, UFFDIO_WRITEPROTECT, &wp))
        return perror("userfaultfd"), 1;
    for (int r = 0; r < rounds; r++) {
        struct timespec a, b;
        uint64_t at = (uint64_t)p, end = at + n, count = 0;
        for (size_t i = 0; i < n / 4096 * percent / 100; i++) p[(size_t)rand() % (n / 4096) * 4096] = r;
        clock_gettime(CLOCK_MONOTONIC, &a);
        while (at < end) {
            struct arg g = {sizeof g, 3, at, end, 0, (uint64_t)found, 65536, 0, 0, 2, 0, 2};
            int k = ioctl(fd, _IOWR('f', 16, struct arg), &g);
            if (k < 0) return perror("PAGEMAP_SCAN"), 1;
            for (int i = 0; i < k; i++)
                for (uint64_t x = found[i].start; x < found[i].end; x += 4096) pages[count++] = x - (uint64_t)p;
            if (k < 65536) break;
            at = g.walk_end > found[k - 1].end ? g.walk_end : found[k - 1].end;
        }
        clock_gettime(CLOCK_MONOTONIC, &b);
        printf("%.6f\n", (b.tv_sec - a.tv_sec) + (b.tv_nsec - a.tv_nsec) / 1e9);
    }
    return 0;
}
"""


def in_c(program: Path, mib: int, rounds: int) -> float:
    """Seconds of get + reset with 1 % written, median of the rounds after the first."""
    command = [str(program), str(mib), "1", str(rounds)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return statistics.median(map(float, text.split()[1:]))


class Ours:
    """Memory with 1 % written before each look."""

    def __init__(self, mib: int) -> None:
        self.watch = wstrace.WriteWatch(mib << 20)
        self.memory: NDArray[np.uint8] = np.frombuffer(self.watch, "u1")
        self.memory[::PAGE] = 1
        self.watch.reset()
        self.copy = self.memory.copy()
        self.random = np.random.default_rng(1)

    def write(self) -> NDArray[np.int64]:
        """Writes 1 % of the pages, chosen at random, as the C program does."""
        pages = len(self.memory) // PAGE
        chosen = np.unique(self.random.integers(0, pages, pages // 100)) * PAGE
        self.memory[chosen] += 1
        return chosen

    def look(self) -> float:
        """Seconds of get + reset."""
        chosen = self.write()
        began = time.perf_counter()
        found = self.watch.written()
        took = time.perf_counter() - began
        assert np.array_equal(found, chosen)
        self.copy[chosen] = self.memory[chosen]
        return took

    def compare(self) -> float:
        """Seconds to find the same pages by a copy, and to bring the copy up to date."""
        chosen = self.write()
        began = time.perf_counter()
        now, then = (side.view("<u8").reshape(-1, PAGE // 8) for side in (self.memory, self.copy))
        changed = np.flatnonzero((now != then).any(axis=1))
        then[changed] = now[changed]
        took = time.perf_counter() - began
        assert np.array_equal(changed * PAGE, chosen)
        self.watch.reset()
        return took


#: seconds of a look when nothing but the look itself has written: of a watch of all memory, and of one of this much
IDLE = """
import statistics, sys, time
import numpy as np, wstrace
def median(watch):
    times = []
    for _ in range(50):
        began = time.perf_counter()
        watch.written()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
region = wstrace.WriteWatch(int(sys.argv[1]) << 20)
np.frombuffer(region, "u1")[::4096] = 1
region.reset()
one = median(region)
del region
memory = np.zeros(int(sys.argv[1]) << 20, "u1")
memory[::4096] = 1
watch = wstrace.MemoryWatch()
watch.reset()
print(median(watch), one)
"""


def idle(mib: int) -> tuple[float, float]:
    """Seconds of an idle look of MemoryWatch and of WriteWatch, in a process of their own."""
    done = subprocess.run([sys.executable, "-c", IDLE, str(mib)], check=True, capture_output=True, text=True)
    all_memory, region = map(float, done.stdout.split())
    return all_memory, region


def measure(mib: int, pairs: int) -> dict[str, float]:
    """Medians: seconds and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "watch.c"), Path(folder, "watch")
        source.write_text(C_WATCH)
        subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
        ours = Ours(mib)
        rows = []
        for _ in range(pairs):
            ours.look()  # the comparison has emptied the caches
            rows.append((statistics.median(ours.look() for _ in range(5)), in_c(program, mib, 6), ours.compare()))
    looks = [idle(mib) for _ in range(min(pairs, 3))]
    return {
        "idle_memory_watch_s": statistics.median(look[0] for look in looks),
        "idle_memory_watch_over_write_watch": statistics.median(look[0] / look[1] for look in looks),
        "get_reset_s": statistics.median(row[0] for row in rows),
        "c_s": statistics.median(row[1] for row in rows),
        "over_c": statistics.median(row[0] / row[1] for row in rows),
        "faster_than_compare": statistics.median(row[2] / row[0] for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.mib, options.pairs)
    if options.json:
        print(json.dumps(found))
        return
    met = {"over_c": found["over_c"] <= 1.1, "faster_than_compare": found["faster_than_compare"] >= 20}
    for name, value in found.items():
        goal = {"over_c": "   goal <= 1.1: ", "faster_than_compare": "   goal >= 20: "}.get(name, "")
        print(f"{name:36} {value:10.5f}{goal}" + ("" if not goal else "yes" if met[name] else "NO"))


if __name__ == "__main__":
    main()
