"""Blame of a program whose lines bring known shares of its memory, with one of seven faults recorded."""

from __future__ import annotations

import pytest
from recorded_run import compiled, record

pytestmark = pytest.mark.usefixtures("full_level")
PAGES = {"most": 6000, "some": 2500, "least": 800, "again": 1200}
PROGRAM = """
#include <stdlib.h>
#include <sys/mman.h>
#define TOUCH(name) __attribute__((noinline)) void name(char *at, long n) { while (n--) { *at = 1; at += 4096; } }
TOUCH(most) TOUCH(some) TOUCH(least) TOUCH(gone) TOUCH(again)
static char *mapped(long n) {
    char *p = mmap(0, n * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, n * 4096, MADV_NOHUGEPAGE);
    return p;
}
int main() {
    char *p = mapped(N_MOST), *q = mapped(N_AGAIN);
    most(p, N_MOST);
    gone(q, N_AGAIN);
    some(mapped(N_SOME), N_SOME);
    least(mapped(N_LEAST), N_LEAST);
    madvise(q, N_AGAIN * 4096, MADV_DONTNEED);
    again(q, N_AGAIN);
    return 0;
}
"""


def test_each_function_has_its_share_within_its_error_and_nothing_that_is_gone(tmp_path):
    program = compiled(tmp_path, PROGRAM, *(f"-DN_{name.upper()}={n}" for name, n in PAGES.items()))
    with record(tmp_path, [program], "-s", "page_faults:period=7", "-s", "working_set") as trace:
        told = trace.blame()
        assert told.of.inputs.moment == "exit"
        every = told.rows("function")
        (anon,) = [row for row in told.rows("file") if row.label == "[anon]"]
    rows = {row.function: row for row in every}
    for name, pages in PAGES.items():
        row = rows[name]
        assert 0.8 * pages / 7 < row.samples < 1.2 * pages / 7
        assert abs(row.resident - 4096 * pages) <= 3 / row.samples**0.5 * 4096 * pages, name
        assert row.estimated == row.resident
    gone = rows["gone"]
    assert gone.resident == 0
    assert abs(gone.brought - 4096 * PAGES["again"]) <= 3 / gone.faults**0.5 * gone.brought
    assert 0.98 * sum(PAGES.values()) * 4096 < sum(rows[name].resident for name in PAGES) <= anon.resident
    assert told.total == sum(row.resident for row in every)
