"""Pages that are swapped out, on real swap space: what a snapshot, `empty` and a write watch say of them."""

import contextlib
import ctypes
import inspect
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from kit.stopped_process import agreed, pages_of, rollup, status, stopped

import wstrace
from wstrace import schema
from wstrace.cli import main
from wstrace.errors import Unavailable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: MADV_PAGEOUT")
PAGE = mmap.PAGESIZE


def page_out(memory, pages, seconds=10):
    """Swaps out these pages; bit 62 of a pagemap entry says that one is. The kernel leaves pages that it has in its
    hands at the moment, so it is read again.
    """
    start, until = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory)) // mmap.PAGESIZE, time.monotonic() + seconds
    file = os.open("/proc/self/pagemap", os.O_RDONLY)
    try:
        while left := [page for page in pages if not os.pread(file, 8, (start + page) * 8)[7] & 0x40]:
            if time.monotonic() > until:
                raise TimeoutError(f"not swapped out: {left}")
            for page in left:
                memory.madvise(21, page * mmap.PAGESIZE, mmap.PAGESIZE)  # MADV_PAGEOUT
    finally:
        os.close(file)


@pytest.fixture(scope="module", autouse=True)
def swap():
    """Swap space: the machine's own, or a file for the time of these tests."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        file = str(Path(folder, "swap"))
        added = len(Path("/proc/swaps").read_text().splitlines()) < 2
        if added:
            Path(file).touch(0o600)
            Path(file).write_bytes(bytes(64 << 20))  # without holes
            for program in ("mkswap", "swapon"):
                path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
                done = subprocess.run([path or program, file], capture_output=True, text=True) if path else None
                if done is None or done.returncode:
                    why = "it is not installed" if done is None else done.stderr.strip().replace(file, "FILE")
                    pytest.skip(f"swap: only on machines where it is on or root may add it ({program}: {why})")
        try:
            try:
                page_out(filled(1), [0], 2)
            except (OSError, TimeoutError) as refused:  # a cgroup may have none
                pytest.skip(f"swap: only on machines where this process may use it ({refused})")
            yield
        finally:
            if added:
                subprocess.run([shutil.which("swapoff", path="/usr/sbin:/sbin") or "swapoff", file], check=True)


def filled(pages: int) -> mmap.mmap:
    """Private memory in small pages, all written."""
    memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the kernel has no huge pages at all
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory[:] = b"x" * len(memory)
    return memory


def holding(pages: int, out: Iterable[int], more: str = "more = ()"):
    """A stopped process with so many pages, of which these are swapped out: see stopped()."""
    lines = [
        inspect.getsource(page_out), f"m = anon({pages} * PAGE)", "touch(m)",
        f"page_out(m, {out!r})", more, "ready(at(m), *more)",
    ]  # fmt: skip
    return stopped("\n".join(lines))


@pytest.mark.parametrize("out", [range(0, 600, 3), range(100, 500), range(600)], ids=["every third", "a block", "all"])
def test_a_snapshot_tells_exactly_the_pages_swapped_out(out):
    with holding(600, out) as (pid, (start,)):
        taken = agreed(pid)
        found = pages_of(taken, int(start), 600 * PAGE)
        assert {page for page, flags in found.items() if flags & schema.PAGE_SWAPPED} == set(out)
        assert set(found) == set(range(600)), "the others are resident"
        assert taken.swapped_bytes == status(pid, "VmSwap")
        assert all(not flags & (schema.PAGE_EXCLUSIVE | schema.PAGE_SHARED) for flags in found.values()
                   if flags & schema.PAGE_SWAPPED)  # fmt: skip


def test_empty_tells_what_went_to_swap(capsys):
    with stopped("m = anon(8 << 20)\ntouch(m)\nready(at(m))") as (pid, (start,)):
        before = rollup(pid)["Rss"]
        assert main(["empty", str(pid), "--yes", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["before"], shown["after"]) == (before, rollup(pid)["Rss"])
        assert shown["swap_out"] == status(pid, "VmSwap") > 7 << 20
        assert sum(shown["stayed"].values()) == shown["after"]
        found = pages_of(wstrace.working_set(pid), int(start), 8 << 20)
        assert sum(bool(flags & schema.PAGE_SWAPPED) for flags in found.values()) * PAGE > 7 << 20
        assert main(["snapshot", str(pid)]) == 0
        assert "Swapped " in capsys.readouterr().out.splitlines()[-1]
    with stopped("m = anon(8 << 20)\ntouch(m)\nready(at(m))") as (pid, _):
        assert main(["empty", str(pid), "--yes"]) == 0
        assert " to swap)" in capsys.readouterr().out


def watched_region(memory: mmap.mmap):
    watch = wstrace.WriteWatch.watch(memory)
    return watch, lambda: (watch.written() // PAGE).tolist()


def watched_with_all_memory(memory: mmap.mmap):
    import numpy as np

    watch, first = wstrace.MemoryWatch(), np.frombuffer(memory, "u1").ctypes.data // PAGE

    def written():
        runs = zip(*(column.tolist() for column in watch.written()), strict=True)
        pages = [at // PAGE - first + i for at, n in runs for i in range(n)]
        return [page for page in pages if 0 <= page < len(memory) // PAGE]

    return watch, written


@pytest.mark.usefixtures("watchable")
@pytest.mark.parametrize("watched", [watched_region, watched_with_all_memory])
def test_a_write_watch_of_pages_that_are_swapped_out(watched):
    memory = filled(64)
    watch, written = watched(memory)
    with watch:
        page_out(memory, range(32))
        assert written() == [], "to leave memory is no write"
        assert memory[3 * PAGE] == ord("x")
        assert written() == [], "nor is to come back by reading"
        memory[5 * PAGE], memory[40 * PAGE] = 1, 1
        assert written() == [5, 40]
        memory[7 * PAGE] = 1
        page_out(memory, [7])
        assert written() == [7], "written, then swapped out, then reported"
        assert written() == [], "and reset while it was out"
        assert memory[7 * PAGE] == 1
        assert written() == []
        page_out(memory, [7])
        memory[7 * PAGE] = 2
        assert written() == [7]


MAP_HUGETLB = 0x40000


def memory_info(field: str) -> int:
    """A number of /proc/meminfo; sizes in bytes."""
    words = Path("/proc/meminfo").read_text().partition(f"\n{field}:")[2].split()
    return int(words[0]) * (1024 if words[1] == "kB" else 1)


@pytest.fixture(scope="module")
def huge():
    """The size of a huge page; four more of them are there for the time of these tests."""
    number = Path("/proc/sys/vm/nr_hugepages")
    try:
        was = number.read_text()
        number.write_text(str(int(was) + 4))
    except OSError as refused:
        pytest.skip(f"huge pages: only on machines where root may reserve them ({refused})")
    try:
        if memory_info("HugePages_Free") - memory_info("HugePages_Rsvd") < 4:
            pytest.skip("huge pages: only on machines that have memory for four more of them in one piece")
        yield memory_info("Hugepagesize")
    finally:
        number.write_text(was)


SCRIPT = f"""
m = anon(4 * {{huge}}, mmap.MAP_ANONYMOUS | {MAP_HUGETLB} | mmap.{{kind}})
m[0], m[2 * {{huge}}] = 1, 1
import numpy
ready(numpy.frombuffer(m, "u1").ctypes.data)
"""


@pytest.mark.parametrize("kind", ["MAP_PRIVATE", "MAP_SHARED"])
def test_a_snapshot_counts_them_apart_as_the_kernel_does_and_tells_their_sum(huge, kind, capsys):
    with stopped(SCRIPT.format(huge=huge, kind=kind)) as (pid, (start,)):
        taken = agreed(pid)
        assert taken.large_bytes == status(pid, "HugetlbPages") == 2 * huge
        found = pages_of(taken, int(start), 4 * huge)
        in_one = huge // mmap.PAGESIZE
        assert set(found) == {*range(in_one), *range(2 * in_one, 3 * in_one)}
        assert all(flags & schema.PAGE_LARGE and not flags & schema.PAGE_HUGE for flags in found.values())
        (mapped,) = np.flatnonzero(taken.mappings["start"] == int(start)).tolist()
        assert int(taken.mappings["end"][mapped]) == int(start) + 4 * huge
        assert main(["snapshot", str(pid)]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert shown[-1].endswith(f"Large pages {2 * huge / (1 << 20):.1f} MiB")
        assert sum(line.endswith("large  [anon]") for line in shown) == 2
        assert main(["snapshot", str(pid), "--json"]) == 0
        reported = json.loads(capsys.readouterr().out)
        assert (reported["large"], reported["total"]) == (2 * huge, rollup(pid)["Rss"])


def test_ps_counts_them_apart(huge, capsys):
    """Private_Hugetlb is private to the process, and no part of what is resident."""
    with stopped(SCRIPT.format(huge=huge, kind="MAP_PRIVATE")) as (pid, _):
        assert main(["ps", "--json"]) == 0
        (reported,) = [row for row in json.loads(capsys.readouterr().out) if row["pid"] == pid]
        kernel = rollup(pid)
        assert (reported["resident"], reported["large"]) == (kernel["Rss"], 2 * huge)
        assert reported["private"] == kernel["Private_Clean"] + kernel["Private_Dirty"]
        assert reported["shared"] == kernel["Rss"] - reported["private"]
        assert main(["ps", "--top", "100000"]) == 0  # of a busy machine's many processes this is not one of the largest
        heads, *rows = capsys.readouterr().out.splitlines()
        assert "large" in heads.split()
        (row,) = [row for row in rows if row.split()[0] == str(pid)]
        assert f"{2 * huge / (1 << 20):.1f} MiB" in row


def test_empty_leaves_them_where_they_are(huge, capsys):
    with stopped(SCRIPT.format(huge=huge, kind="MAP_PRIVATE")) as (pid, _):
        before = rollup(pid)["Rss"]
        assert main(["empty", str(pid), "--yes", "--json"]) == 0
        reported = json.loads(capsys.readouterr().out)
        assert (reported["before"], reported["after"]) == (before, rollup(pid)["Rss"])
        assert status(pid, "HugetlbPages") == 2 * huge


def test_a_write_watch_tells_a_huge_page_as_a_whole(huge, watchable):
    memory = mmap.mmap(-1, 4 * huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
    array = np.frombuffer(memory, "u1")
    array[0], array[2 * huge] = 1, 1
    with wstrace.WriteWatch.watch(memory) as watch:
        assert len(watch.written()) == 0
        assert array[3 * huge] == 0
        assert len(watch.written()) == 0, "it was read, and is there now"
        array[5], array[huge + 8192] = 1, 1  # one that was there, one that was not
        assert watch.ranges(reset=False).tolist() == [[0, 2 * huge]]
        assert watch.written().tolist() == list(range(0, 2 * huge, mmap.PAGESIZE))
        assert len(watch.written()) == 0
        array[2 * huge + 1] = 1
        assert watch.ranges().tolist() == [[2 * huge, 3 * huge]]
    with pytest.raises(Unavailable, match="cuts a page of hugetlb"):
        wstrace.WriteWatch.watch(memoryview(memory)[mmap.PAGESIZE : huge])
