"""Balancing between memory nodes takes access to resident pages away; the trace tells of its hint faults."""

import os
from pathlib import Path

import pytest
from kit.blame_scripted import composition
from kit.recorded_run import compiled, record

pytestmark = pytest.mark.usefixtures("full_level")
_SETTING = Path("/proc/sys/kernel/numa_balancing")
PAGES = 300

#: `first` writes to the pages; `again` reads them until it has had as many faults as there are pages, and says how many
PROGRAM = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
static long faults(void) { struct rusage u; getrusage(RUSAGE_SELF, &u); return u.ru_minflt; }
__attribute__((noinline)) void first(volatile char *p, long n, long page) {
    for (long i = 0; i < n; i++) p[i * page] = 1;
}
__attribute__((noinline)) long again(volatile char *p, long n, long page) {
    long sum = 0, before = faults();
    for (time_t end = time(0) + 90; time(0) < end && faults() - before < n;)
        for (long i = 0; i < n; i++) sum += p[i * page];
    return faults() - before + (sum == -1);
}
int main(int argc, char **argv) {
    long n = 300, page = sysconf(_SC_PAGESIZE);
    int kind = argv[1][0] == 's' ? MAP_SHARED : MAP_PRIVATE;
    char *p = mmap(0, n * page, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    madvise(p, n * page, MADV_NOHUGEPAGE);
    first(p, n, page);
    FILE *out = fopen(argv[2], "w");
    fprintf(out, "%ld\n", again(p, n, page));
    fclose(out);
    _exit(0);
}
"""


@pytest.mark.skipif(
    not _SETTING.exists() or len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) < 2,
    reason="only on machines with two memory nodes (tests/kernels/run --append numa=fake=2)",
)
@pytest.mark.parametrize("kind", ["private", "shared"])
def test_pages_belong_to_who_touched_them_first(tmp_path, kind):
    assert _SETTING.read_text().strip() != "0", "sysctl kernel.numa_balancing=1"
    compiled(tmp_path, PROGRAM, "-g")
    sources = ("-s", "page_faults:stacks=none", "-s", "working_set")
    with record(tmp_path, [tmp_path / "program", kind, tmp_path / "shown"], *sources) as trace:
        hints = int((tmp_path / "shown").read_text())
        if hints < PAGES:
            pytest.skip(f"only where the kernel looks at these pages: {hints} hint faults in 90 s")
        rows = composition(trace, at="exit").rows("line")
        found = {
            name: sum(row["resident"] for row in rows if row.of("function") == name) for name in ("first", "again")
        }
        resident = PAGES * os.sysconf("SC_PAGE_SIZE")
        # a fault does not say whether it wrote: the second one may be the first write, so there are two candidates
        assert sum(found.values()) == resident, [(row.label, row["resident"]) for row in rows[:5]]
        assert found["first"] >= resident // 2
        assert any("between nodes" in lack for lack in trace.info.lacking), trace.info.lacking
