"""How large the formats of other tools are, and how long they take: a trace with stacks, and one without.

    python tests/benchmarks/pictures.py                     # 1,000,000 faults, 5,000 stacks of 30 frames
    python tests/benchmarks/pictures.py --faults 100000

Goals: pprof <= 300 kB and Perfetto <= 3 MB with stacks; 10 kB and 1.5 MB without. Parquet <= 3.06 bytes a row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "kit"))

import numpy as np
import synthetic_trace as synthetic

from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.call_sites import CallSites
from wstrace.schema import FRAME_PYTHON, HOW_EXACT, LOSS_EVENTS, PAGE_FAULT, RESIDENT_PAGES
from wstrace.stack_ids import StackIds
from wstrace.testing import trace_of
from wstrace.trace import Trace

PAGE, MAPPINGS = 4096, 40
GOALS = {("pb.gz", True): 300e3, ("pftrace", True): 3e6, ("pb.gz", False): 10e3, ("pftrace", False): 1.5e6}
SUFFIXES = ("pb.gz", "pftrace", "folded", "parquet")


def stacks(strings: Dictionary, n: int, depth: int) -> tuple[Batch, np.ndarray]:
    """n stacks of a program of 2,000 functions: neighbours share half of their frames. Call sites, and the leaves."""
    sites, code = CallSites(StackIds(), strings, "python"), strings.code
    rng, leaves = np.random.default_rng(1), []
    for stack in range(n):
        trunk = np.random.default_rng(stack // 50).integers(0, 2000, depth // 2)
        leaf = 0
        for function in (*trunk.tolist(), *rng.integers(0, 2000, depth - depth // 2).tolist()):
            (leaf,) = sites.add(leaf, kind=FRAME_PYTHON, function=code(f"function_{function}"),
                                file=code(f"/srv/app/package_{function // 50}/module_{function // 5}.py"),
                                line=function * 7 % 900 + 1)  # fmt: skip
        leaves.append(int(leaf))
    rows = sites.new_rows()
    assert rows is not None
    return rows, np.array(leaves, "<u4")


def faults(strings: Dictionary, n: int, leaves: np.ndarray) -> Iterator[Batch]:
    """Faults of runs of neighbouring pages, each run of one stack; a stack touches one mapping, in two threads."""
    rng = np.random.default_rng(2)
    for batch in synthetic.faults(strings, n):
        columns = dict(batch.columns)
        if len(leaves):
            new = np.diff(columns["mapping"], prepend=0) != 0
            run, mapping = np.cumsum(new) - 1, columns["mapping"][new].astype(np.intp) - 1
            of_run = leaves[rng.integers(0, len(leaves) // MAPPINGS, len(mapping)) * MAPPINGS + mapping]
            columns |= {"stack": of_run[run], "stack_how": np.full(len(batch), HOW_EXACT, "|u1")}
        yield Batch(PAGE_FAULT, columns, window=batch.window, strings=strings)


def made(n: int, n_stacks: int, depth: int) -> Trace:
    """A trace of n faults, with the pages of the first sixteen mappings resident at its end."""
    strings, leaves, sites = Dictionary(), np.zeros(0, "<u4"), list[Batch]()
    if n_stacks:
        rows, leaves = stacks(strings, n_stacks, depth)
        sites.append(rows)
    start = synthetic.FIRST_MAPPING + np.arange(16, dtype="<u8") * np.uint64(synthetic.MAPPING_BYTES)
    runs = {"start": start, "pages": np.full(16, 4096, "<u4"), "flags": np.ones(16, "<u2"),
            "mapping": np.arange(1, 17, dtype="<u4")}  # fmt: skip
    end = 1 << 40
    snapshot = Batch(RESIDENT_PAGES, runs, window=(end, end), strings=strings,
                     snapshot=SnapshotPart(synthetic.PID, 1, 0, True, end, 16 * 4096))  # fmt: skip
    trace = trace_of(synthetic.mappings(strings), synthetic.processes(strings), *sites,
                     *faults(strings, n, leaves), snapshot)  # fmt: skip
    trace.info.page_size, trace.info.content_losses = PAGE, LOSS_EVENTS[1:]
    return trace


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=1_000_000)
    parser.add_argument("--stacks", type=int, default=5000)
    parser.add_argument("--depth", type=int, default=30)
    asked = parser.parse_args()
    print(f"{'':16} {'format':8} {'seconds':>8} {'bytes':>12} {'goal':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for with_stacks in (True, False):
            trace = made(asked.faults, asked.stacks * with_stacks, asked.depth)
            for suffix in SUFFIXES:
                path, begin = Path(folder) / f"{with_stacks}.{suffix}", time.perf_counter()
                trace.save(str(path))
                seconds, size = time.perf_counter() - begin, path.stat().st_size
                goal = GOALS.get((suffix, with_stacks))
                told = f"{goal:10,.0f}" if goal else f"{size / asked.faults:8.2f} B/row"
                about = "with stacks" if with_stacks else "without stacks"
                print(f"{about:16} {suffix:8} {seconds:8.2f} {size:12,} {told}", flush=True)


if __name__ == "__main__":
    main()
