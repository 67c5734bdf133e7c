"""Borrowed stacks against the truth: all faults sampled and few shown; regions; callers that take turns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_run import compiled, faults
from stack_truth import SOURCE, StackNames, expected, of_region, regions

import wstrace
from wstrace.schema import FAULT_REGISTERS, HOW_BORROWED

pytestmark = pytest.mark.usefixtures("full_level")

LONG = pytest.mark.long

#: wstrace with every fault sampled: prints of each 1 in N how many faults borrow, and how many the stack that they had
ORACLE = """
import json, sys
import numpy as np
from wstrace.cli import main
from wstrace_plugins.page_faults.linux import registers
from wstrace_plugins.stacks import borrowed
registers.borrowing = lambda asked, native: asked
lend, random = borrowed.Lender.lend, np.random.default_rng(1)
lenders = {16: borrowed.Lender(), 64: borrowed.Lender()}
counts = {every: [0, 0, 0] for every in lenders}
def both(self, batch, pointers, joined):
    true = np.zeros(len(batch), np.uint32)
    true[joined.rows] = joined.stacks.stack
    for every, lender in lenders.items():
        shown = random.random(len(joined.rows)) < 1 / every
        few = joined._replace(rows=joined.rows[shown], stacks=joined.stacks.take(shown))
        found = lend(lender, batch, pointers, few)
        known = true[found.rows] > 0  # the others' samples were lost
        counts[every][0] += int(known.sum())
        counts[every][1] += int((true[found.rows] == found.stack)[known].sum())
        counts[every][2] += len(joined.rows) - int(shown.sum())
    return lend(self, batch, pointers, joined)
borrowed.Lender.lend = both
options = "page_faults:stacks=native,stack_period=1,borrow=true,ring_bytes=67108864,poll_ms=20"
try:
    main(["run", "-q", "-f", "-o", sys.argv[1], "-s", options, "--", *sys.argv[2:]])
finally:
    print(json.dumps(counts))
"""
#: grows vectors at changing depths, makes trees, fills blocks: one instruction through many callers
MIX = """
#include <stdlib.h>
#include <string.h>
struct node { struct node *left, *right; char bytes[600]; };
__attribute__((noinline)) struct node *tree(int d) {
    struct node *n = malloc(sizeof *n);
    memset(n, d, sizeof *n);
    if (d) { n->left = tree(d - 1); n->right = tree(d - 1); }
    return n;
}
__attribute__((noinline)) int deeper(int d, char **at) {
    if (d) { int r = deeper(d - 1, at); __asm__ volatile(""); return r + 1; }
    *at = malloc(5000);
    memset(*at, 1, 5000);
    return 0;
}
int main() {
    for (int k = 0; k < 3; k++) tree(9);
    for (int i = 0; i < 1500; i++) {
        char *kept;
        deeper(rand() % 12, &kept);
        if (i % 20 == 0) { char *p = malloc(300000); memset(p, 1, 300000); free(p); }
    }
}
"""
#: one instruction, one depth, two callers, which take turns
TURNS = """
#include <stdio.h>
#include <sys/mman.h>
#define PAGES 30000
#define KEEP __attribute__((noinline, noclone))
static volatile int never;
static volatile char *at;
KEEP static void touch(void) { *at = 1; if (never) puts("t"); }
KEEP static void one(void) { touch(); if (never) puts("1"); }
KEEP static void two(void) { touch(); if (never) puts("2"); }
int main() {
    char *p = mmap(0, PAGES * 4096L, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, PAGES * 4096L, MADV_NOHUGEPAGE);
    printf("%p\\n", (void *)p);
    for (long i = 0; i < PAGES; i++) { at = p + i * 4096; if (i & 1) one(); else two(); }
}
"""
PYTHON = "import json; [json.loads(json.dumps([{'k': i, 'v': [i]} for i in range(8000)])) for _ in range(6)]"


@pytest.mark.parametrize("program", ["mix", pytest.param("regions", marks=LONG), pytest.param("python", marks=LONG)])
def test_99_of_100_are_the_stack_that_the_fault_had(tmp_path: Path, program: str) -> None:
    sources = {"regions": SOURCE, "mix": MIX}
    command = [sys.executable, "-c", PYTHON] if program == "python" else [compiled(tmp_path, sources[program]), "4"]
    done = subprocess.run(
        [sys.executable, "-c", ORACLE, tmp_path / "oracle.wst", *command], capture_output=True, text=True, timeout=100
    )
    counts = json.loads(done.stdout.splitlines()[-1])
    for borrowed, right, without in counts.values():
        assert borrowed > 0.01 * without, (counts, done.stderr)
        assert right >= 0.99 * borrowed, counts


def recorded(tmp_path: Path, *command: Any) -> tuple[Path, str]:
    """A trace with borrowed stacks, and what the program printed."""
    trace = tmp_path / "trace.wst"
    options = ["-s", "page_faults:stacks=native,borrow=true"]
    words = [sys.executable, "-m", "wstrace", "run", "-q", "-f", "-o", trace, *options, "--", *command]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return trace, done.stdout


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=LONG)])
def test_in_regions_the_callers_of_borrowed_stacks_are_right(tmp_path: Path, rounds: int) -> None:
    program, right, wrong = compiled(tmp_path, SOURCE), 0, 0
    for _ in range(4):  # where the CPUs are busy, a recording may have no sample of a region, so none to borrow from
        path, text = recorded(tmp_path, program, rounds)
        known = regions(text)
        with wstrace.open_trace(str(path)) as trace:
            names = StackNames(trace)
            assert FAULT_REGISTERS.name not in trace.streams
            assert not names.faults["weight"][names.faults["native_how"] == HOW_BORROWED].any()
            for pid, va, frames, how, _ in names.sampled():
                region = of_region(known, pid, va)
                if region is not None and how == "borrowed":
                    wanted = tuple(expected(region))
                    inner = frames.index(wanted[0]) if wanted[0] in frames else 0
                    same = frames[inner : inner + len(wanted)] == wanted
                    right, wrong = right + same, wrong + (not same)
        if right + wrong:
            break
    assert right > 100 * rounds
    assert wrong <= 0.01 * right
    report = [sys.executable, "-m", "wstrace", "report", "--format", "jsonl", path]
    rows = map(json.loads, subprocess.run(report, capture_output=True, check=True, timeout=100).stdout.splitlines())
    hows = [row["stack"][0]["how"] for row in rows if row.get("stack")]
    assert hows.count("borrowed") >= right
    table = [sys.executable, "-m", "wstrace", "report", "--by", "function", "--native", path]
    shown = subprocess.run(table, capture_output=True, text=True, check=True, timeout=100).stdout
    assert f"(beside {hows.count('borrowed'):,} faults with a borrowed stack)" in shown


def test_callers_that_take_turns_at_a_place_lend_nothing(tmp_path: Path) -> None:
    path, text = recorded(tmp_path, compiled(tmp_path, TURNS))
    began = int(text, 16)
    with wstrace.open_trace(str(path)) as trace:
        columns = faults(trace)
        inside = (columns["va"] >= began) & (columns["va"] < began + 30_000 * 4096)
        sampled = columns["weight"][inside] > 0
        assert len(np.unique(columns["native_stack"][inside][sampled])) == 2, "the samples show one caller only"
        assert not (columns["native_how"][inside] == HOW_BORROWED).any()
