"""Huge pages of hugetlb, really reserved: what a snapshot, `empty` and a write watch say of them."""

import json
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
from kit.stopped_process import agreed, pages_of, rollup, status, stopped

import wstrace
from wstrace import schema
from wstrace.cli import main
from wstrace.errors import Unavailable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: MAP_HUGETLB")
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
