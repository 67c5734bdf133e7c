"""Native stacks of a program whose file has no unwinding information: the reason is that, and not the dump."""

from collections import Counter

import pytest
from kit.command_line import answer
from kit.recorded_run import compiled, faults

import wstrace
from wstrace.schema import HOW_NOT_SAMPLED, STACK_HOW

pytestmark = pytest.mark.usefixtures("full_level")

SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
__attribute__((noinline)) int down(char *at, int n) {
    if (n) { int r = down(at, n - 1); __asm__ volatile(""); return r + 1; }
    *at = 1;
    return *at;
}
int main(void) {
    char *m = mmap(0, 64 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(m, 64 * 4096, MADV_NOHUGEPAGE);
    for (int i = 0; i < 64; i++) { down(m + i * 4096, 20); __asm__ volatile(""); }
    printf("%p\\n", (void *)m);
    fflush(stdout);
}
"""


def test_a_static_program_has_stacks_that_are_cut_short(tmp_path):
    program = compiled(tmp_path, SOURCE, "-static", "-fno-optimize-sibling-calls", "-fomit-frame-pointer")
    native = "page_faults:stacks=native,stack_period=1,kernel=no"
    begin = int(answer("run", "-q", "-o", tmp_path / "trace.wst", "-s", native, "--", program), 16)
    with wstrace.open_trace(str(tmp_path / "trace.wst")) as opened:
        rows = faults(opened)
    mine = (rows["va"] >= begin) & (rows["va"] < begin + 64 * 4096) & (rows["native_how"] != HOW_NOT_SAMPLED)
    hows = Counter(STACK_HOW[one] for one in rows["native_how"][mine].tolist())
    assert hows["own, cut short"] > 32, hows
    assert set(hows) == {"own, cut short"}
