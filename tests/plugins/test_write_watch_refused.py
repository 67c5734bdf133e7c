"""Write watches that are refused, end early or work only in part: each is shown, and nothing is freed too soon."""

import contextlib
import ctypes
import gc
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
from kit.private_memory import PRIVATE

import wstrace
from wstrace.errors import Unavailable, UsageError
from wstrace_plugins.os.linux.pagemap import PAGE

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: userfaultfd"),
    pytest.mark.usefixtures("watchable"),
]


@pytest.mark.parametrize("nbytes", [0, -1])
def test_no_memory(nbytes):
    with pytest.raises(UsageError):
        wstrace.WriteWatch(nbytes)


@pytest.mark.parametrize("buffer", [b"read-only", bytearray(), np.zeros((4, 4))[:, ::2], 17, memoryview(b"x")])
def test_what_is_no_writable_buffer(buffer):
    with pytest.raises(UsageError):
        wstrace.WriteWatch.watch(buffer)


def test_memory_that_is_watched_already():
    memory = mmap.mmap(-1, 4 * PAGE, flags=PRIVATE)
    first = wstrace.WriteWatch.watch(memory)
    with pytest.raises(Unavailable, match="already"):
        wstrace.WriteWatch.watch(memory)
    memory[PAGE] = 1
    assert first.written().tolist() == [PAGE]
    first.close()
    assert len(wstrace.WriteWatch.watch(memory).written()) == 0


def test_memory_is_freed_at_once_where_its_watch_is_refused():
    """The error's traceback must not keep it until cycles are collected: it may be all huge pages there are."""
    gc.collect()
    gc.disable()
    try:
        memory = mmap.mmap(-1, 4 * PAGE, flags=PRIVATE)
        first = wstrace.WriteWatch.watch(memory)
        with contextlib.suppress(Unavailable):
            wstrace.WriteWatch.watch(memory)
        first.close()
        del first
        memory.close()  # raises where a buffer is left
    finally:
        gc.enable()


def test_memory_that_may_not_be_written(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * PAGE))
    from wstrace_plugins.write_watch.linux.backend import Watcher

    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    watcher = Watcher()
    start = np.frombuffer(memory, "u1").ctypes.data
    with pytest.raises(Unavailable, match="cannot watch"):
        watcher.add(start, start + 4 * PAGE)
    with pytest.raises(Unavailable, match="not all of it is mapped"):
        watcher.add(PAGE, 2 * PAGE)
    watcher.close()


def test_memory_that_is_mapped_anew_while_it_is_watched():
    from wstrace_plugins.write_watch.linux.backend import Watcher

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    start = libc.mmap(None, 4 * PAGE, 3, PRIVATE, -1, 0)
    watcher = Watcher()
    watcher.add(start, start + 4 * PAGE)
    assert libc.munmap(start + PAGE, PAGE) == 0
    assert libc.mmap(start + PAGE, PAGE, 3, PRIVATE | 0x100000, -1, 0) == start + PAGE
    with pytest.raises(Unavailable, match="mapped anew"):
        watcher.written()
    watcher.close()
    libc.munmap(start, 4 * PAGE)


def test_without_privilege():
    if os.geteuid() != 0:
        pytest.skip("needs root, to give it up; without it every other test here is this one")
    code = ("import wstrace, numpy, os\n"
            "import wstrace_plugins.write_watch.linux.backend, wstrace_plugins.write_watch.write_watch\n"
            f"W, page = wstrace.WriteWatch, {mmap.PAGESIZE}; wstrace.MemoryWatch; W(page)\n"
            "os.setgid(65534); os.setuid(65534); import ctypes; ctypes.CDLL(None).prctl(4, 1)\n"
            "w = W(10 * page); numpy.frombuffer(w, 'u1')[3 * page] = 1; print(w.written() // page)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[3]", done.stderr


ENDINGS = {
    "a finalizer that writes": "class Last:\n    def __del__(self, array=array):\n        array[:] = 7\n"
    "import sys\nsys.kept = Last()",
    "a cycle with a finalizer": "class Last:\n    def __del__(self, array=array):\n        array[:] = 7\n"
    "last = Last()\nlast.itself = last\nlast.watch = watch\ndel watch, array, last",
    "memory that was there before": "import mmap\nwatch = wstrace.WriteWatch.watch(mmap.mmap(-1, 1 << 20))\n"
    "array = numpy.frombuffer(watch, 'u1')\nimport sys\nsys.kept = array",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_memory_is_not_freed_under_live_arrays_at_the_interpreters_end(ending):
    code = ("import numpy, wstrace\nwatch = wstrace.WriteWatch(1 << 20)\narray = numpy.frombuffer(watch, 'u1')\n"
            f"everything = wstrace.MemoryWatch()\n{ENDINGS[ending]}\n")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
