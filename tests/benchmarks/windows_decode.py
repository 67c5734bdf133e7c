"""The Windows half's arithmetic, on any system; and, on Windows or under Wine with the stand-in, its idle drain.

    python tests/benchmarks/windows_decode.py

Prints records/s of decoding full buffers of GetWsChangesEx (goal >= 20M), ms of decoding a QueryWorkingSet of 1M pages
to runs (goal <= 50), and CPU and wall time of an idle drain at 1 ms over those of a bare sleep loop, from paired runs
A B A B (goal <= 1.5).
"""

import statistics
import sys
import time

import numpy as np

from wstrace_plugins.os.windows.layouts import PSAPI_WS_WATCH_INFORMATION_EX
from wstrace_plugins.page_faults.windows.watch import decode
from wstrace_plugins.working_set.windows import blocks as windows_blocks


def best(work, repeats=7):
    """The least seconds of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def decode_rate(buffers=100):
    """Records/s of decoding buffers of 1,024 records and their terminator."""
    records = np.zeros(1025, PSAPI_WS_WATCH_INFORMATION_EX[8])
    rng = np.random.default_rng(1)
    records["FaultingPc"][:1024] = rng.integers(1, 1 << 63, 1024, dtype="u8")
    records["FaultingVa"] = rng.integers(0, 1 << 47, 1025, dtype="u8")
    records["FaultingThreadId"] = 4711

    def work():
        for _ in range(buffers):
            decode(records)

    return 1024 * buffers / best(work, 60)


def working_set_ms(pages=1_000_000):
    """Milliseconds from the buffer of QueryWorkingSet, unsorted as Windows gives it, to columns of runs."""
    rng = np.random.default_rng(2)
    starts = np.cumsum(rng.integers(30, 400, pages // 20, dtype="u8"))
    page = (starts[:, None] + np.arange(20, dtype="u8")).ravel()[:pages]
    blocks = (page << np.uint64(12)) | np.repeat(rng.choice(np.array([0x103, 0x101, 4, 5], "u8"), pages // 20), 20)
    # in the working set's own order: long stretches in order, the stretches shuffled
    shuffled = np.concatenate(list(rng.permutation(np.array_split(np.arange(pages), pages // 1000))))
    blocks = blocks[shuffled]
    borders = np.sort(rng.choice(page, 400, replace=False)) << np.uint64(12)

    def work():
        ordered = windows_blocks.in_order(blocks)
        index, _ = windows_blocks.runs(ordered, borders)
        first = ordered[index]
        windows_blocks.flags(first), windows_blocks.shares(first), windows_blocks.addresses(first)

    return 1000 * best(work, 15)


def idle_ratio(loops=4000, pairs=3):
    """(CPU, wall) of drains of an idle process over those of bare sleeps of the same length; CPU counts in 10 ms."""
    import os

    from wstrace_plugins.os.windows import api as winapi
    from wstrace_plugins.page_faults.windows.watch import Watch

    watch = Watch(winapi, os.getpid())
    watch.discard()

    def run(drain):
        cpu, wall = time.process_time(), time.perf_counter()
        for n in range(loops):
            time.sleep(0.001)
            if drain:
                if n % 20 == 0:  # as the source does
                    watch.exited()
                watch.drain()
        return time.process_time() - cpu, time.perf_counter() - wall

    ratios = []
    for _ in range(pairs):
        bare, drained = run(False), run(True)
        ratios.append([d / max(b, 1e-9) for b, d in zip(bare, drained, strict=True)])
    watch.close()
    return [statistics.median(column) for column in zip(*ratios, strict=True)]


if __name__ == "__main__":
    print(f"decode of 1,024-record buffers   {decode_rate() / 1e6:8.1f} M records/s   goal >= 20")
    print(f"QueryWorkingSet of 1M pages      {working_set_ms():8.1f} ms            goal <= 50")
    if sys.platform == "win32":
        cpu, wall = idle_ratio()
        print(f"idle drain at 1 ms / bare sleep  {wall:8.2f} wall {cpu:5.2f} CPU   goal <= 1.5")
    else:
        print("idle drain: only on Windows, or under Wine with the stand-in (tests/wine/run)")
