"""GetWriteWatch driven by a stand-in that keeps its documented contract, on every system."""

import ctypes
import gc
import subprocess
import sys

import numpy as np
import pytest
from kit.fake_windows import PAGE, FakeWindows

from wstrace.errors import Unavailable
from wstrace_plugins.write_watch.windows import backend as half
from wstrace_plugins.write_watch.windows.backend import Watcher, allocate


@pytest.fixture
def windows():
    return FakeWindows()


def region(windows, pages):
    memory = allocate(pages * PAGE, windows)
    return memory, ctypes.addressof(memory)


def numbers(start, runs):
    return [((int(low) - start) // PAGE, int(high - low) // PAGE) for low, high in zip(*runs, strict=True)]


def test_what_was_written_before_does_not_count(windows):
    memory, start = region(windows, 4)
    memory[PAGE] = 1
    watcher = Watcher(api=windows)
    watcher.add(start, start + 4 * PAGE)
    assert numbers(start, watcher.ranges()) == []


def test_a_full_answer_goes_on_behind_its_last_page(windows, monkeypatch):
    monkeypatch.setattr(half, "_CAPACITY", 7)
    memory, start = region(windows, 40)
    watcher = Watcher(api=windows)
    watcher.add(start, start + 40 * PAGE)
    for page in range(0, 40, 2):
        memory[page * PAGE] = 1
    assert numbers(start, watcher.ranges()) == [(page, 1) for page in range(0, 40, 2)]
    assert numbers(start, watcher.ranges()) == []
    for page in range(40):  # the capacity divides the count: one more, empty, answer
        memory[page * PAGE] = 2
    assert numbers(start, watcher.ranges()) == [(0, 40)]


def test_memory_that_windows_does_not_track_is_refused(windows):
    watcher = Watcher(api=windows)
    other = ctypes.create_string_buffer(3 * PAGE)
    start = -(-ctypes.addressof(other) // PAGE) * PAGE
    with pytest.raises(Unavailable, match="MEM_WRITE_WATCH"):
        watcher.add(start, start + PAGE)


def test_a_region_is_watched_once(windows):
    _memory, start = region(windows, 4)
    watcher = Watcher(api=windows)
    watcher.add(start, start + 2 * PAGE)
    for other in (watcher, Watcher(api=windows)):
        with pytest.raises(Unavailable, match="already"):
            other.add(start + PAGE, start + 4 * PAGE)


def test_memory_that_was_there_before_cannot_be_watched(windows):
    with pytest.raises(Unavailable, match="MEM_WRITE_WATCH"):
        Watcher(api=windows).add_writable()


def test_all_watched_buffers_of_the_process(windows):
    first, start = region(windows, 2)
    first[PAGE] = 1  # before it is watched
    watcher = half.open_watcher(windows)
    second, other = region(windows, 3)
    first[0] = second[PAGE] = 1
    assert sorted(watcher.ranges()[0].tolist()) == sorted([start, other + PAGE])
    del second
    gc.collect()
    assert watcher.ranges()[0].tolist() == []  # what was freed is left out


def test_a_system_that_tracks_nothing_is_found_out(windows):
    def silent(flags, start, size, addresses, count, granularity):
        np.frombuffer((ctypes.c_uint64 * 1).from_address(count), "<u8")[0] = 0
        return 0

    windows.GetWriteWatch = silent
    with pytest.raises(Unavailable, match="did not see a write of its own"):
        Watcher(api=windows)


def test_memory_is_not_freed_at_the_interpreters_exit():
    """Arrays over it, and threads that write to it, live longer than the finalizers."""
    script = """
import atexit
kept = []
atexit.register(lambda: print(len(kept[0]._memory)))  # runs after the finalizers, which register themselves later
from kit.fake_windows import FakeWindows
from wstrace_plugins.write_watch.windows.backend import allocate
kept += FakeWindows(), 0
kept[1] = allocate(4096, kept[0])
"""
    code = f"import sys; sys.path[:0] = {sys.path!r}\n{script}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1\n", "")
