"""Blame of a program whose lines bring known shares of its memory, with one of seven faults recorded."""

from __future__ import annotations

import pytest
from recorded_run import compiled, record

from wstrace.analysis.blame.unshared import Unshared
from wstrace_exporters.console.unshared_tables import answer

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


FORKS = """
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define TOUCH(name) __attribute__((noinline)) void name(char *at, long n) { while (n--) { *at = 1; at += 4096; } }
TOUCH(load) TOUCH(rewrite)
int main() {
    char *p = mmap(0, 3000 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, 3000 * 4096, MADV_NOHUGEPAGE);
    load(p, 3000);
    if (!fork()) rewrite(p, 2000), _exit(0);
    wait(0);
    return 0;
}
"""


def test_what_was_unshared_is_an_estimate(tmp_path):
    program = compiled(tmp_path, FORKS)
    with record(tmp_path, [program], "-f", "-s", "page_faults:period=7", "-s", "working_set") as trace:
        told = Unshared(trace.blame(at="exit"))
        rows = {row.function: n for row, n in told.rows("function")}
    samples = rows["rewrite"] / 4096 / 7
    assert abs(rows["rewrite"] - 2000 * 4096) <= 3 / samples**0.5 * rows["rewrite"]
    assert told.total == sum(rows.values()) == sum(fork.n_bytes for fork in told.forks())
    assert told.as_dict(["line"])["estimated"]
    assert answer(told).startswith("~")


LIVING = """
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#define TOUCH(name) __attribute__((noinline)) void name(char *at, long n) { while (n--) { *at = 1; at += 4096; } }
TOUCH(load) TOUCH(rewrite) TOUCH(fresh)
static char *mapped(long n) {
    char *p = mmap(0, n * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, n * 4096, MADV_NOHUGEPAGE);
    return p;
}
int main(int argc, char **argv) {
    char *p = mapped(7000), done;
    int ready[2];
    load(p, 7000);
    if (pipe(ready)) return 1;
    if (!fork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rewrite(p, 4000);
        fresh(mapped(2500), 2500);
        done = write(ready[1], p, 1);
        for (;;) pause();
    }
    if (read(ready[0], &done, 1) != 1) return 1;
    sleep(atoi(argv[1]));
    return 0;
}
"""


def test_a_child_that_lives_has_its_copies_and_its_parents_pages(tmp_path):
    program = compiled(tmp_path, LIVING)
    for seconds in ("1", "4", "16"):  # on a busy machine a look may have no CPU for so long
        with record(tmp_path, [program, seconds], "-s", "page_faults:period=7", "-s", "peak_snapshot") as trace:
            (parent,) = trace.info.targets
            told = trace.blame(at="peak")
            child = [pid for pid in told.of.inputs.pids.tolist() if pid != parent]
            rows = [{row.function: row.resident // 4096 for row in trace.blame(at="peak", pids=pids).rows("function")}
                    for pids in ([parent], child)]  # fmt: skip
        if told.total > 16500 * 4096:
            break
    truth = {"load": 7000}, {"load": 3000, "rewrite": 4000, "fresh": 2500}
    for pages, told_of in zip(truth, rows, strict=True):
        for name, n in pages.items():
            assert abs(told_of[name] - n) <= 3 / (n / 7) ** 0.5 * n, (name, told_of)
