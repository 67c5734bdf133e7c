"""Write watch of a process without an agent by real soft-dirty bits, which kernels have or have not at any version."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

if sys.platform != "linux":
    pytest.skip("only on Linux: soft-dirty bits", allow_module_level=True)

import wstrace
from wstrace.testing import RecordingExporter
from wstrace_plugins.os.linux.pagemap import PAGE
from wstrace_plugins.write_watch.linux import backend
from wstrace_plugins.write_watch.linux.soft_dirty import SoftDirtyWatcher, has_soft_dirty
from wstrace_plugins.write_watch.source import WriteWatchSource

pytestmark = pytest.mark.skipif(not has_soft_dirty(), reason="only on kernels with soft-dirty bits (tests/kernels/run)")

#: has 64 pages and says where; writes those that each line names, or reads all
WRITES = """
import contextlib, ctypes, mmap, sys
m = mmap.mmap(-1, 64 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
with contextlib.suppress(OSError):  # a kernel without huge pages
    m.madvise(15)  # MADV_NOHUGEPAGE
m[:] = b"x" * len(m)
print(ctypes.addressof(ctypes.c_ubyte.from_buffer(m)), flush=True)
for line in sys.stdin:
    for page in line.split():
        if page == "read":
            sum(m[::mmap.PAGESIZE])
        else:
            m[int(page) * mmap.PAGESIZE] = 1
    print(flush=True)
"""


class Writing:
    """That program."""

    def __init__(self, child: Callable[..., Any]) -> None:
        self.one = child(WRITES)
        self.pid, self.start = self.one.pid, int(self.one.read())

    def write(self, *pages: object) -> None:
        self.one.process.stdin.write(" ".join(map(str, pages)) + "\n")
        self.one.process.stdin.flush()
        self.one.read()

    def pages(self, start: Any, number: Any) -> list[int]:
        """Which of its pages are in those runs."""
        runs = [np.arange(at, at + n * PAGE, PAGE) for at, n in zip(start.tolist(), number.tolist(), strict=True)]
        found = (np.concatenate([np.zeros(0, np.int64), *runs]) - self.start) // PAGE
        return [page for page in found.tolist() if 0 <= page < 64]


def test_exactly_the_pages_written(child: Callable[..., Any]) -> None:
    target = Writing(child)
    watcher = backend.open_watcher(target.pid)
    assert isinstance(watcher, SoftDirtyWatcher)
    watcher.add_writable()
    assert target.pages(*watcher.written()) == []
    target.write(3, 9)
    assert target.pages(*watcher.written(reset=False)) == [3, 9]
    target.write(60, "read")
    assert target.pages(*watcher.written()) == [3, 9, 60]
    target.write("read")
    assert target.pages(*watcher.written()) == []
    watcher.close()


def test_the_source_in_a_session(child: Callable[..., Any]) -> None:
    """What is written is told while the session goes on, and nothing else is.

    It is written again until then, as a write between reading and clearing is lost: under emulation one of three was.
    """
    target, keep = Writing(child), RecordingExporter()

    def seen() -> set[int]:
        return {page for batch in keep.of("written") for page in target.pages(batch["start"], batch["pages"])}

    with wstrace.Session(target.pid, sources=["write_watch:interval=0.1,max_cpu=1"], exporters=[keep]):
        for pages in ((5, 6, 7), (40,)):
            deadline = time.monotonic() + 30
            while not seen() >= set(pages) and time.monotonic() < deadline:
                target.write(*pages)
                time.sleep(0.05)
            assert seen() >= set(pages)
    assert seen() == {5, 6, 7, 40}


def test_the_level_says_that_another_process_can_be_watched() -> None:
    level = WriteWatchSource.probe()
    assert level.name in ("full", "soft-dirty")
    assert "another" in level.why
