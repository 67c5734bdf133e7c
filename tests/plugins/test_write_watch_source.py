"""The source `write_watch`."""

import ctypes
import mmap
import os
import sys
import time

import pytest
from kit.private_memory import PRIVATE

import wstrace
from wstrace import schema
from wstrace.errors import Unavailable, UsageError
from wstrace.interfaces import Context
from wstrace.testing import RecordingExporter, ScriptedTarget
from wstrace_plugins.os.linux.pagemap import PAGE
from wstrace_plugins.write_watch.source import WriteWatchSource

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: userfaultfd"),
    pytest.mark.usefixtures("watchable"),
]


def test_the_source_in_a_session():
    memory, keep = mmap.mmap(-1, 64 * PAGE, flags=PRIVATE), RecordingExporter()
    memory[:] = b"x" * len(memory)
    start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    with wstrace.Session(sources=["write_watch:interval=0.1,max_cpu=1"], exporters=[keep]):
        for page in (5, 6, 7):
            memory[page * PAGE] = 1
        time.sleep(0.5)
        memory[40 * PAGE] = 1
    written = keep.of("written")
    assert {b.snapshot.pid for b in written} == {os.getpid()}
    assert [b.snapshot.number for b in written] == list(range(1, len(written) + 1))
    assert all(b.snapshot.last and b.snapshot.pages == int(b["pages"].sum()) for b in written)
    assert len(written) >= 2
    seen = []
    for batch in written:
        for at, n in zip(batch["start"].tolist(), batch["pages"].tolist(), strict=True):
            seen += [page for page in range((at - start) // PAGE, (at - start) // PAGE + n) if 0 <= page < 64]
    assert seen == [5, 6, 7, 40]


def test_the_mappings_come_first_and_each_run_lies_in_one():
    memory = mmap.mmap(-1, 8 * PAGE, flags=PRIVATE)
    start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + 4 * PAGE), ctypes.c_size_t(4 * PAGE), 7) == 0
    source = WriteWatchSource(interval=0.01)
    source.start(Context())
    memory[:] = b"x" * len(memory)
    time.sleep(0.02)
    space, written = list(source.drain(0.1))
    assert (space["event"][0], space["pid"][0]) == (schema.SPACE_REPLACE, os.getpid())
    runs = dict(zip(written["start"].tolist(), written["pages"].tolist(), strict=True))
    assert (runs[start], runs[start + 4 * PAGE]) == (4, 4)
    assert len(list(source.stop())) == 2
    assert list(source.stop()) == []


def test_another_process_is_refused_with_the_way_that_works():
    with pytest.raises(Unavailable, match=r"in which the session runs.*in that process"):
        WriteWatchSource().start(Context(targets=(ScriptedTarget(),)))


@pytest.mark.parametrize("options", [{"interval": 0.0}, {"max_cpu": 7.0}])
def test_options_out_of_range(options):
    with pytest.raises(UsageError):
        WriteWatchSource(**options)
