"""Native stacks of workers that end before a first sample: the report leads with what counts each of their faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_run import compiled

pytestmark = pytest.mark.usefixtures("full_level")

WORKERS, SHORT, LONG = 40, 40, 400
SOURCE = f"""
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) void sort_rows(char *at, long pages) {{
    for (long i = 0; i < pages; i++) at[i * sysconf(_SC_PAGESIZE)] = 1;
}}
__attribute__((noinline)) void work(long pages) {{
    long size = pages * sysconf(_SC_PAGESIZE);
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(at, size, MADV_NOHUGEPAGE);
    sort_rows(at, pages);
    __asm__ volatile("");
}}
int main(void) {{
    for (int i = 0; i <= {WORKERS}; i++) {{
        if (!fork()) {{ work(i ? {SHORT} : {LONG}); _exit(0); }}
        wait(0);
    }}
}}
"""


def told_of(tmp_path: Path, source: str, period: int, *options: str) -> tuple[str, str]:
    """What a recording of a program says, with a sample of a native stack for one fault in `period`, and its report."""
    trace, wstrace = str(tmp_path / "x.wst"), [sys.executable, "-m", "wstrace"]
    words = [*wstrace, "run", "-o", trace, "-s", f"page_faults:stacks=native,stack_period={period}", "--"]
    live = subprocess.run([*words, str(compiled(tmp_path, source))], capture_output=True, text=True, timeout=100)
    assert live.returncode == 0, live.stderr
    report = [*wstrace, "report", trace, *options]
    return live.stderr, subprocess.run(report, capture_output=True, text=True, timeout=100, check=True).stdout


def test_short_workers_are_told_by_the_function_of_each_fault(tmp_path: Path) -> None:
    """One worker lives long enough for samples, of one fault in 200; the others have 40 faults and those of a fork."""
    said, report = told_of(tmp_path, SOURCE, 200, "--top", "3")
    told = report.splitlines()
    at = next(number for number, line in enumerate(told) if " share " in line)
    assert told[at].endswith("function of the instruction")
    faults, _, *_, name = told[at + 1].split()
    assert name.endswith("!sort_rows")
    assert int(faults.replace(",", "")) == LONG + WORKERS * SHORT
    assert "`wstrace report FILE --by function` counts each fault" in said
    for text in (report, said):
        assert text.count("(no sample stands for it)") == 1
        first_rows = [rows.splitlines()[1] for rows in text.split("\n\n") if " share " in rows]
        assert not any("no sample" in row for row in first_rows)


#: Workers that touch up to 39 pages, then 45, then 15: one fault in 60 has a sample, which may be of any of these.
PARTS = """
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define PART(name) __attribute__((noinline)) void name(volatile char *at, long pages) { \\
    for (long i = 0; i < pages; i++) at[i * sysconf(_SC_PAGESIZE)] = 1; }
PART(warm_up) PART(fill_sort_area) PART(read_index)
int main(void) {
    for (int i = 0; i < 400; i++) {
        if (!fork()) {
            long page = sysconf(_SC_PAGESIZE), size = 100 * page;
            char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            madvise(at, size, MADV_NOHUGEPAGE);
            warm_up(at, i % 40);
            fill_sort_area(at + 40 * page, 45);
            read_index(at + 85 * page, 15);
            _exit(0);
        }
        wait(0);
    }
}
"""


def test_estimates_of_short_workers_agree_with_the_count_of_each_instruction(tmp_path: Path) -> None:
    told = json.loads(told_of(tmp_path, PARTS, 60, "--native", "--by", "function", "--json")[1])
    for name, pages in (("fill_sort_area", 45), ("read_index", 15)):
        (row,) = [row for row in told["summary"]["top"]["function"] if name in row["name"]]
        assert 0 <= row["total"] - 400 * pages <= 400, "in some workers its code, too"
        assert row.get("margin", 0) < 400
        # A worker's 60th fault has the sample: it is the last function's only where fork left few to the child.
        assert row.get("samples", 0) > 0 or name == "read_index"


#: Workers that touch 20 pages in one function, then 45 in another, whose instructions have one place in their pages:
#: one fault in 60 has a sample, which is of the second function in each worker.
ALIKE = """
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define PART(name) __attribute__((noinline, aligned(4096))) void name(volatile char *at, long pages, long page) { \\
    for (long i = 0; i < pages; i++) at[i * page] = 1; }
PART(warm_up) PART(fill_sort_area)
int main(void) {
    for (int i = 0; i < 200; i++) {
        if (!fork()) {
            long page = sysconf(_SC_PAGESIZE), size = 100 * page;
            char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            madvise(at, size, MADV_NOHUGEPAGE);
            warm_up(at, 20, page);
            fill_sort_area(at + 40 * page, 45, page);
            _exit(0);
        }
        wait(0);
    }
}
"""


def test_instructions_at_one_place_of_their_pages_are_told_apart(tmp_path: Path) -> None:
    """One fault in 60 has a sample, which is of `fill_sort_area` in each worker: of `warm_up` none is."""
    told = json.loads(told_of(tmp_path, ALIKE, 60, "--native", "--by", "function", "--json")[1])
    (row,) = [row for row in told["summary"]["top"]["function"] if "fill_sort_area" in row["name"]]
    assert row["samples"] > 0
    assert 0 <= row["total"] - 200 * 45 <= 200, "in some workers its code, too"
    (row,) = [row for row in told["summary"]["top"]["function"] if "warm_up" in row["name"]]
    assert 0 <= row["total"] - 200 * 20 <= 200, "counted, though few have a sample, or none"
    functions = subprocess.check_output(["nm", compiled(tmp_path, ALIKE)], text=True).splitlines()
    at = [int(line.split()[0], 16) for line in functions if line.endswith((" warm_up", " fill_sort_area"))]
    assert {place % 4096 for place in at} == {0}
