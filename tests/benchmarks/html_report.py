"""What a report in HTML costs: CPU seconds and bytes of the page, its first paint, and the time of a brush.

    python tests/benchmarks/html_report.py [--faults 1000000] [--rounds 5]

Goals for 1M faults: with 5,000 stacks of depth 30 made in <= 2 s and <= 1 MB, without stacks <= 0.4 MB; first paint,
median of 9, <= 1 s; 95 % of 50 brushes <= 50 ms. Needs Chromium and node for the last two.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "kit"))

import chromium
from blame_scripted import ANON, CODE, PAGE, Script, saved

from wstrace import open_trace
from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.schema import (
    CALL_SITE,
    DTYPES,
    FAULT_MAJOR,
    FRAME_PYTHON,
    HOW_EXACT,
    HOW_NO_PYTHON,
    KIND_ANON,
    PAGE_EXCLUSIVE,
    PAGE_FAULT,
    Schema,
)
from wstrace.testing import trace_of

STACKS, DEPTH, FUNCTIONS, RESIDENT, AT_ONCE = 5_000, 30, 400, 1 << 18, 1 << 14
#: Brushes of different widths at different places; each waits for the frame behind it.
BRUSHES = """(async () => {
  const found = [], frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  await frame();
  for (let at = 0; at < 50; at++) {
    const begin = performance.now();
    change({from: at * 7, to: at * 7 + 5 + at % 40});
    document.body.offsetHeight;
    found.push(performance.now() - begin);
    await frame();
  }
  return found;
})()"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def rows_of(script: Script, schema: Schema, n: int, **columns: Any) -> Batch:
    """n rows; a single value stands in all of them."""
    types = {column.name: DTYPES[column.type] for column in schema.columns}
    arrays = {name: np.broadcast_to(np.asarray(value), n).astype(types[name]) for name, value in columns.items()}
    return Batch(schema, arrays, window=(1, 1 << 62), strings=script.strings)


def call_sites(script: Script, rng: np.random.Generator) -> np.ndarray:
    """Adds the frames of random stacks, which share none, and returns their innermost ones."""
    n = STACKS * DEPTH
    ids = np.arange(1, n + 1)
    function = rng.integers(0, FUNCTIONS, n)
    names = [script.strings.code(f"function_{i}") for i in range(FUNCTIONS)]
    files = [script.strings.code(f"/srv/app/package_{i % 20}/module_{i % 60}.py") for i in range(FUNCTIONS)]
    first = np.arange(n) % DEPTH == 0
    script.batches.append(rows_of(
        script, CALL_SITE, n, id=ids, parent=np.where(first, 0, ids - 1), kind=FRAME_PYTHON, mapping=0, offset=0,
        function=np.array(names)[function], file=np.array(files)[function], line=function % 90 + 1, flags=0,
    ))  # fmt: skip
    return ids[DEPTH - 1 :: DEPTH]


def write_trace(path: str, faults: int, *, stacks: bool) -> None:
    """A trace of that many faults of one process, of which the last pages are resident."""
    script, rng = Script(), np.random.default_rng(7)
    leaves = call_sites(script, rng) if stacks else np.zeros(1, np.int64)
    begin = now_ns() + 10_000_000_000  # the trace begins when it is saved
    which = np.sort(rng.integers(0, len(leaves), faults))
    page = np.arange(faults) % (1 << 18)
    for first in range(0, faults, AT_ONCE):
        rows = np.arange(first, min(first + AT_ONCE, faults))
        script.batches.append(rows_of(
            script, PAGE_FAULT, len(rows), time_ns=begin + rows * 10_000, pid=7, tid=7, va=ANON + page[rows] * PAGE,
            flags=np.where(rows % 30 == 0, FAULT_MAJOR, 0), mapping=1, kind=KIND_ANON, pc=CODE + 64, pc_mapping=3,
            stack=leaves[which[rows]], stack_how=HOW_EXACT if stacks else HOW_NO_PYTHON,
        ))  # fmt: skip
    script.snapshot(begin + (1 << 40), (ANON, min(RESIDENT, faults), PAGE_EXCLUSIVE))
    trace = trace_of(*script.batches)
    trace.info.page_size = PAGE
    saved(trace, path, pause=0.05)


def lost(path: str) -> int:
    """How many records did not reach the file: a busy machine measures a smaller trace."""
    with open_trace(path) as trace:
        return sum(n for _, _, n in trace.ledger.losses())


def made(trace: str, page: str) -> float:
    """CPU seconds of one `wstrace report --html`, with bytecode caches as an installed package has them."""
    words = [sys.executable, "-m", "wstrace", "report", trace, "--html", page, "-f"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{Path(page).parent}/bytecode"}
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, env=environment) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def shown(page: str, folder: Path) -> None:
    """Prints the first paint and the brushes of a page."""
    if not (chromium.PROGRAM and chromium.NODE):
        print("first paint, brushes: no chromium or node here")
        return
    ready, paints = "document.documentElement?.dataset.ready === 'yes'", []
    with chromium.Chromium(folder) as browser:
        for _ in range(9):
            browser.open(f"file://{page}", ready)
            browser.wait(PAINT)
            paints.append(browser.value(PAINT))
        brushes = sorted(browser.value(BRUSHES))
    print(f"first paint: median of 9 {statistics.median(paints):,.0f} ms [{min(paints):,.0f}-{max(paints):,.0f}]")
    print(f"brush: median {statistics.median(brushes):.1f} ms, p95 of 50 {brushes[47]:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for what, stacks in (("without stacks", False), (f"{STACKS:,} stacks of depth {DEPTH}", True)):
            trace, page = f"{folder}/{stacks}.wst", f"{folder}/{stacks}.html"
            write_trace(trace, asked.faults, stacks=stacks)
            assert not lost(trace), "the machine is too busy: records were lost before they were written"
            made(trace, page)  # fills the bytecode caches
            cpu = [made(trace, page) for _ in range(asked.rounds)]
            size = Path(page).stat().st_size
            print(f"{what}: {min(cpu):.2f} s CPU (median {statistics.median(cpu):.2f}), {size:,} bytes")
            shown(page, Path(folder, f"profile-{stacks}"))


if __name__ == "__main__":
    main()
