"""Write watch against known writes: exactly the pages written, whoever wrote them."""

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest

import wstrace
from wstrace.errors import Unavailable, UsageError
from wstrace.interfaces import Context
from wstrace.testing import RecordingExporter, ScriptedTarget
from wstrace_plugins.os.linux.pagemap import PAGE
from wstrace_plugins.write_watch.source import WriteWatchSource

#: The flags of private memory: this file is collected on Windows too.
PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: userfaultfd"),
    pytest.mark.usefixtures("watchable"),
]


def offsets(pages) -> list[int]:
    return [int(page) * PAGE for page in pages]


@pytest.mark.parametrize("share", [0.001, 0.01, 0.5])
@pytest.mark.parametrize("mib", [256, pytest.param(1024, marks=pytest.mark.long)])
def test_exactly_the_pages_written(mib, share):
    with wstrace.WriteWatch(mib << 20) as watch:
        memory = np.frombuffer(watch, "u1")
        random = np.random.default_rng(7)
        pages = len(memory) // PAGE
        for _ in range(2):  # first absent pages, then present and protected ones
            chosen = np.sort(random.choice(pages, int(pages * share), replace=False))
            memory[chosen * PAGE + random.integers(0, PAGE, len(chosen))] = 1
            assert np.array_equal(watch.written(reset=False), chosen * PAGE)
            assert np.array_equal(watch.written(), chosen * PAGE)
            assert len(watch.written()) == 0
        del memory


def test_writes_made_by_the_kernel():
    watch = wstrace.WriteWatch(16 * PAGE)
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 3 * PAGE)
        file.flush()
        file.seek(0)
        whole = memoryview(watch)
        os.preadv(file.fileno(), [whole[PAGE + 10 : 3 * PAGE], whole[9 * PAGE : 9 * PAGE + 1]], 0)
    assert watch.written().tolist() == offsets([1, 2, 9])


def test_after_a_fork_the_parent_is_watched_and_the_child_refused():
    watch = wstrace.WriteWatch(16 * PAGE)
    memory = np.frombuffer(watch, "u1")
    memory[::PAGE] = 1
    watch.reset()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            memory[3 * PAGE] = 7
            watch.written()
        except Unavailable as refused:
            os.write(write, str(refused).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert b"fork" in os.read(read, 1000)
    os.close(read)
    assert len(watch.written()) == 0, "the child's write is the child's"
    memory[5 * PAGE] = 2  # copied on write, and seen
    assert watch.written().tolist() == offsets([5])


def test_transparent_huge_pages():
    huge = PAGE // 8  # pages of one
    memory = mmap.mmap(-1, max(16 << 20, 2 * huge * PAGE), flags=PRIVATE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, "u1")
    array[::PAGE] = 1
    watch = wstrace.WriteWatch.watch(memory)
    assert len(watch.written()) == 0
    array[:: huge * PAGE] = 2
    array[300 * PAGE + 5] = 2
    expected = sorted([*range(0, len(memory) // PAGE, huge), 300])
    assert watch.written().tolist() == offsets(expected)
    watch.close()


def test_no_write_is_lost_between_two_reads():
    """A thread writes all the time; what all reads saw together is what it wrote."""
    watch = wstrace.WriteWatch(2000 * PAGE)
    memory = np.frombuffer(watch, "u1")
    order = np.random.default_rng(3).permutation(2000)

    def write():
        for page in order.tolist():
            memory[page * PAGE] += 1

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while writer.is_alive():
        seen.append(watch.written())
    writer.join()
    seen.append(watch.written())
    # a page with its fault under way at a read may be shown at the next one too; none may be missing
    assert np.array_equal(np.unique(np.concatenate(seen)), np.arange(2000) * PAGE)


def test_an_existing_array_that_is_not_aligned():
    base = np.zeros(20 * PAGE, "u1")
    skip = -base.ctypes.data % PAGE + 100
    array = base[skip : skip + 10 * PAGE]
    watch = wstrace.WriteWatch.watch(array)
    assert len(watch) == watch.nbytes == 10 * PAGE
    array[0] = 1  # its page begins 100 bytes before the array
    array[PAGE] = 1
    array[-1] = 1
    assert watch.ranges(reset=False).tolist() == [[0, 2 * PAGE - 100], [10 * PAGE - 100, 10 * PAGE]]
    assert watch.written().tolist() == [0, PAGE - 100, 10 * PAGE - 100]


def inside(runs, memory) -> list[int]:
    """The pages of a memory that lie in runs of pages."""
    start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    found = []
    for at, pages in zip(*(column.tolist() for column in runs), strict=True):
        first = (at - start) // PAGE
        found += [page for page in range(first, first + pages) if 0 <= page < len(memory) // PAGE]
    return found


def test_all_writable_memory_of_the_own_process():
    old = mmap.mmap(-1, 64 * PAGE, flags=PRIVATE)
    old[:] = b"x" * len(old)
    shared = mmap.mmap(-1, 64 * PAGE)
    shared[:] = b"x" * len(shared)
    taken = wstrace.WriteWatch(8 * PAGE)

    with wstrace.MemoryWatch() as watch:
        assert watch.watched_bytes >= 128 * PAGE
        old[3 * PAGE], shared[7 * PAGE] = 1, 1
        new = mmap.mmap(-1, 64 * PAGE, flags=PRIVATE)  # mapped while it is watched
        for page in (1, 5, 6):
            new[page * PAGE] = 1
        assert new[20 * PAGE] == 0  # read, not written
        np.frombuffer(taken, "u1")[4 * PAGE] = 1
        runs = watch.written()
        assert (inside(runs, old), inside(runs, shared), inside(runs, new)) == ([3], [7], [1, 5, 6])
        assert inside(runs, taken) == [], "another watch's memory is left to it"
        new[40 * PAGE] = 1
        old[3 * PAGE] = 2
        runs = watch.written()
        assert (inside(runs, old), inside(runs, shared), inside(runs, new)) == ([3], [], [40])
    assert taken.written().tolist() == [4 * PAGE]


def shown(watch: wstrace.MemoryWatch, memory: mmap.mmap) -> list[int]:
    """The pages of that memory that were written since the last read."""
    return inside(watch.written(), memory)


def test_pages_given_back_count_as_written_in_all_memory_too():
    memory = mmap.mmap(-1, 64 * PAGE, flags=PRIVATE)
    memory[: 32 * PAGE] = b"x" * 32 * PAGE
    shared = mmap.mmap(-1, 16 * PAGE)
    shared[:] = b"x" * len(shared)
    with wstrace.MemoryWatch() as watch:
        watch.reset()
        memory.madvise(mmap.MADV_DONTNEED, 8 * PAGE, 32 * PAGE)  # the last eight of them were never there
        shared.madvise(mmap.MADV_DONTNEED)  # its content stays
        assert shown(watch, memory) == list(range(8, 32))
        assert shown(watch, shared) == []
        assert shown(watch, memory) == []
        memory[40 * PAGE], memory[0] = 1, 2
        assert shown(watch, memory) == [0, 40]
        memory.madvise(mmap.MADV_DONTNEED, 40 * PAGE, PAGE)  # written and given back
        assert memory[40 * PAGE] == 0  # and read: the zero page is there now
        memory[50 * PAGE] = 1
        memory.madvise(mmap.MADV_DONTNEED, 50 * PAGE, PAGE)  # as it was
        assert shown(watch, memory) == [40]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_changes_in_all_memory_is_reported(seed):
    """Contents before and after each read: what differs must be shown; what is shown and is the same was touched."""
    random = np.random.default_rng(seed)
    memory = mmap.mmap(-1, 256 * PAGE, flags=PRIVATE)
    view = np.frombuffer(memory, "u8").reshape(256, -1)[:, 0]
    known = np.zeros(256, "u8")  # kept apart: looking at memory makes it present
    with wstrace.MemoryWatch() as watch:
        watch.reset()
        before = known.copy()
        for _ in range(40):
            touched = set()
            for _ in range(random.integers(0, 12)):
                first = int(random.integers(0, 250))
                pages = np.arange(first, first + int(random.integers(1, 6)))
                kind = random.integers(0, 3)
                if kind == 0:
                    view[pages] = known[pages] = random.integers(1, 1 << 60)
                elif kind == 1:
                    memory.madvise(mmap.MADV_DONTNEED, first * PAGE, len(pages) * PAGE)
                    known[pages] = 0
                else:
                    assert (view[pages] == known[pages]).all()
                    continue
                touched.update(pages.tolist())
            seen = set(shown(watch, memory))
            changed = set(np.flatnonzero(known != before).tolist())
            assert changed <= seen, "lost"
            assert seen <= touched, "never touched"
            before = known.copy()


@pytest.mark.parametrize("given", [0, -1, b"read-only", bytearray(), np.zeros((4, 4))[:, ::2], 17, memoryview(b"x")])
def test_what_is_no_writable_memory(given):
    with pytest.raises(UsageError):
        (wstrace.WriteWatch if isinstance(given, int) and given < 1 else wstrace.WriteWatch.watch)(given)


def test_memory_that_is_watched_already():
    memory = mmap.mmap(-1, 4 * PAGE, flags=PRIVATE)
    first = wstrace.WriteWatch.watch(memory)
    with pytest.raises(Unavailable, match="already"):
        wstrace.WriteWatch.watch(memory)
    memory[PAGE] = 1
    assert first.written().tolist() == [PAGE]
    first.close()
    assert len(wstrace.WriteWatch.watch(memory).written()) == 0


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
        watcher.ranges()
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


def test_the_source_in_a_session():
    memory, keep = mmap.mmap(-1, 64 * PAGE, flags=PRIVATE), RecordingExporter()
    memory[:] = b"x" * len(memory)
    start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + 6 * PAGE), ctypes.c_size_t(8 * PAGE), 7) == 0
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
    assert [page for batch in written for page in inside((batch["start"], batch["pages"]), memory)] == [5, 6, 7, 40]
    runs = zip(*(written[0][name].tolist() for name in ("start", "pages", "mapping")), strict=True)
    lies_in = {(at - start) // PAGE: (pages, mapping) for at, pages, mapping in runs}
    assert (lies_in[5][0], lies_in[6][0]) == (1, 2), "each run lies in one mapping"
    assert 0 != lies_in[5][1] != lies_in[6][1] != 0, "which came before it"


def test_another_process_is_refused_with_the_way_that_works():
    with pytest.raises(Unavailable, match=r"in which the session runs.*in that process"):
        WriteWatchSource().start(Context(targets=(ScriptedTarget(),)))


@pytest.mark.parametrize("options", [{"interval": 0.0}, {"max_cpu": 7.0}])
def test_options_out_of_range(options):
    with pytest.raises(UsageError):
        WriteWatchSource(**options)
