"""What the summary costs: ns a fault to count, and ms from the last fault to the printed text.

    python tests/benchmarks/summary.py [--rows 1048576] [--rounds 5]

Goals: <= 40 ns a fault; <= 500 ms for 1M faults. Rows are views of 40-byte kernel rows, as a source gives them. The two
measurements are taken in turn, A B A B; the best and the median of the rounds are printed.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time

import numpy as np

from wstrace.analysis.summary import Summary
from wstrace.batch import Batch
from wstrace.interfaces import Context
from wstrace.schema import PAGE_FAULT
from wstrace_exporters.console.console import Console

BATCH_ROWS = 65_536
ROW = np.dtype([("head", "<u8"), ("pc", "<u8"), ("pid", "<u4"), ("tid", "<u4"), ("time", "<u8"), ("va", "<u8")])
assert ROW.itemsize == 40


def batches(context: Context, rows: int) -> list[Batch]:
    """Faults of one process with 16 threads on 400 files by 60 modules, one in a hundred from disk."""
    rng, strings = np.random.default_rng(1), context.strings
    files = np.array([strings.code(f"/usr/lib/lib{i}.so") for i in range(400)], "<u4")
    found = []
    for start in range(0, rows, BATCH_ROWS):
        n = min(BATCH_ROWS, rows - start)
        raw = np.zeros(n, ROW)
        raw["pid"], raw["tid"], raw["time"] = 4000, rng.integers(4000, 4016, n), np.arange(start, start + n) + 1
        file = rng.zipf(1.3, n).clip(1, 400) - 1
        columns = {
            "time_ns": raw["time"], "pid": raw["pid"], "tid": raw["tid"], "pc": raw["pc"], "va": raw["va"],
            "flags": (rng.random(n) < 0.01).astype("u1"), "file": files[file],
            "pc_file": files[(file + rng.integers(0, 3, n)) % 60], "kind": np.full(n, 1, "u1"),
        }  # fmt: skip
        found.append(Batch(PAGE_FAULT, columns, strings=strings))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    context = Context()
    given = batches(context, asked.rows)
    count, text = [], []
    for _ in range(asked.rounds):
        summary, began = Summary(), time.perf_counter()
        for batch in given:
            summary.add(batch)
        count.append((time.perf_counter() - began) / asked.rows * 1e9)
        console = Console(io.StringIO())
        console.start(context)
        console.summary = summary
        began = time.perf_counter()
        console.close()
        text.append((time.perf_counter() - began) * 1e3)
    print(f"{asked.rows:,} faults, {asked.rounds} rounds")
    print(f"count  {min(count):6.1f} ns a fault (median {statistics.median(count):.1f}; goal 40)")
    print(f"print  {min(text):6.1f} ms (median {statistics.median(text):.1f}; first, importing rich, {text[0]:.1f})")


if __name__ == "__main__":
    main()
