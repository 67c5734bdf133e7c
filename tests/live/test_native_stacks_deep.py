"""Native stacks of many frames: whole up to the limit, and past it cut, with a flag and a word in JSON."""

import json
import subprocess
import sys

import pytest
from kit.recorded_run import compiled

from wstrace_plugins.stacks.unwinder import MOST_FRAMES

pytestmark = pytest.mark.usefixtures("full_level")

PAGES = 16
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
static char *at;
__attribute__((noinline)) int down(int n) {
    if (n > 1) { int r = down(n - 1); __asm__ volatile(""); return r + 1; }
    *at = 1;
    return *at;
}
int main(int argc, char **argv) {
    for (int k = 1; k < argc; k++) {
        char *m = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(m, PAGES * 4096, MADV_NOHUGEPAGE);
        for (int i = 0; i < PAGES; i++) { at = m + i * 4096; down(atoi(argv[k])); __asm__ volatile(""); }
        printf("%p %s\\n", (void *)m, argv[k]);
    }
}
"""


def test_a_stack_is_whole_up_to_the_limit_and_says_where_it_is_cut(tmp_path):
    depths = [127, 128, 129, MOST_FRAMES - 9, MOST_FRAMES, 1000]
    program = compiled(tmp_path, SOURCE, "-fno-optimize-sibling-calls", f"-DPAGES={PAGES}")
    wstrace = [sys.executable, "-m", "wstrace"]
    options = ["-s", "page_faults:stacks=native,stack_period=1,kernel=no", "-o", str(tmp_path / "deep.wst")]
    done = subprocess.run(
        [*wstrace, "run", "-q", *options, "--", str(program), *map(str, depths)],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    began = {int(begin, 16): int(depth) for begin, depth in map(str.split, done.stdout.splitlines())}
    report = [*wstrace, "report", "--format", "jsonl", str(tmp_path / "deep.wst")]
    rows = map(json.loads, subprocess.run(report, capture_output=True, check=True, timeout=100).stdout.splitlines())
    found = {depth: set() for depth in depths}
    for row in rows:
        for begin, depth in began.items():
            if row["stack"] and begin <= int(row["va"], 16) < begin + PAGES * 4096:
                found[depth].add((len(row["stack"]), row.get("stack_truncated", False)))
    ((frames, _),) = found[127]
    around = frames - 127  # main() and what calls it
    assert 2 <= around <= 8
    assert found == {depth: {(min(depth + around, MOST_FRAMES), depth + around > MOST_FRAMES)} for depth in depths}
