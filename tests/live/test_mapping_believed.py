"""Mappings that are believed: what calls that fail, shared address spaces and the heap do to the names of faults."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from recorded_run import compiled, faults, record

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("full_level")

#: calls of munmap() and mremap() that fail, then a touch of what they did not take away
FAILING = r"""
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    char *p = mmap(0, 64 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, 64 << 20, MADV_NOHUGEPAGE);
    if (!munmap(0, (size_t)-1) || !munmap(p + 1, 4096) || !munmap((char *)main + 1, 4096)) return 1;
    if (mremap(p, 4096, 1 << 20, 0) != MAP_FAILED) return 2;
    for (int i = 0; i < 8; i++) { memset(p + ((long)i << 20), 1, 1 << 20); usleep(50000); }
    return 0;
}
"""


def test_calls_that_failed_change_nothing(tmp_path: Path) -> None:
    with record(tmp_path, [compiled(tmp_path, FAILING)]) as trace:
        columns = faults(trace)
        assert len(columns["va"]) > 8 * 256
        assert int((columns["mapping"] == 0).sum()) == int((columns["pc_mapping"] == 0).sum()) == 0
        assert trace.ledger.get("unresolved") == 0
