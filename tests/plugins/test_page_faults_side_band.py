"""The side band of the Linux backend without a kernel: processes, mappings, their moves, shared address spaces."""

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kit.side_band_records import band, comm, lost, mmap2, new_task, record, syscall, task
from kit.side_band_records import given as rows_of

from wstrace.schema import KINDS, PROCESS_EXEC, PROCESS_TITLE
from wstrace_plugins.mapped_files.spaces import AddressSpaces
from wstrace_plugins.page_faults.linux.calls import Calls


def test_life_of_a_process():
    side, strings, processes, _ = band(
        comm(b"sh", 10, executed=True) + task(7, 20, 7, 9, 7) + comm(b"worker", 30, tid=9) + task(7, 40, 11, 11, 7)
        + task(4, 50, 7, 7, 1) + task(4, 60, 7, 9, 1) + task(4, 70, 11, 11, 7)
    )  # fmt: skip
    sh, worker = strings.code("sh"), strings.code("worker")
    assert processes == [  # time, pid, ppid, tid, event, name, code: the process ends with its last thread
        (10, 7, 0, 7, 3, sh, -1),
        (20, 7, 0, 9, 2, sh, -1),
        (30, 7, 0, 9, 5, worker, -1),
        (40, 11, 7, 11, 2, sh, -1),
        (60, 7, 0, 9, 4, sh, -1),
        (60, 7, 0, 7, 4, sh, 3),
        (70, 11, 7, 11, 4, sh, -1),
    ]
    assert side.live == {}


def test_a_title_is_of_the_program_that_the_process_executes():
    """It is read from /proc at a time, and stands among the records of that time."""
    side, strings, _, _ = band(comm(b"sh", 10, executed=True) + comm(b"pg", 30, executed=True), watermark=10)
    assert side.titled(7, 20, b"sh: idle")
    assert side.titled(7, 40, b"pg: writer")
    assert not side.titled(8, 40, b"nobody")
    assert side.titled(7, 50, b"pg: writer")
    rows = rows_of(side, 100)["process"]
    assert [(time, event, strings[name]) for time, _, _, _, event, name, _ in rows] == [
        (20, PROCESS_TITLE, "sh: idle"), (30, PROCESS_EXEC, "pg"), (40, PROCESS_TITLE, "pg: writer"),
    ]  # fmt: skip
    assert not side.titled(7, 60, b"pg: writer")


def test_cpus_are_put_in_order_before_they_are_understood():
    """A thread may be born on one CPU and end on another, whose ring is read first."""
    side, _, processes, _ = band(task(4, 50, 7, 9, 1), comm(b"a", 10) + task(7, 20, 7, 9, 7))
    assert [row[0] for row in processes] == [10, 20, 50]
    assert side.live[7].threads == {7}


def test_held_until_the_watermark():
    side, _, processes, spaces = band(comm(b"a", 10) + mmap2(0x1000, 0x1000, b"/x", 20) + comm(b"b", 30), watermark=20)
    assert (len(processes), len(spaces), side.holds) == (1, 1, True)
    assert [len(batch) for batch in side.give(30, "test")] == [1]
    assert not side.holds


def test_mappings_and_their_kinds():
    _, strings, _, spaces = band(
        comm(b"prog", 1, executed=True) + mmap2(0x400000, 0x1000, b"/bin/prog", 2, prot=5)
        + mmap2(0x401000, 0x1000, b"//anon", 3)  # .bss
        + mmap2(0x900000, 0x1000, b"//anon", 4)  # brk() tells of its first growth before it is the heap
        + mmap2(0x7F0000000000, 0x1000, b"//anon", 5) + mmap2(0x7F0000001000, 0x1000, b"[heap]", 6)
        + mmap2(0x7F0000002000, 0x1000, b"/memfd:\xff\x1b[31m (deleted)", 7, flags=1)
        + mmap2(0x7F0000003000, 0x1000, b"//toolong", 8) + mmap2(0x7F0000004000, 0x1000, b"[vdso]", 9)
    )  # fmt: skip
    shown = [(hex(start), hex(end), offset, strings[file], dev, ino, KINDS[flags >> 8], flags & 15)
            for _, _, event, start, end, offset, file, dev, ino, flags in spaces]  # fmt: skip
    assert shown == [
        ("0x400000", "0x401000", 0x2000, "/bin/prog", 0x801, 42, "file", 5),
        ("0x401000", "0x402000", 0, "[anon]", 0x801, 42, "anon", 3),
        ("0x900000", "0x901000", 0, "[heap]", 0x801, 42, "heap", 3),
        ("0x7f0000000000", "0x7f0000001000", 0, "[anon]", 0x801, 42, "anon", 3),
        ("0x7f0000001000", "0x7f0000002000", 0, "[heap]", 0x801, 42, "heap", 3),
        ("0x7f0000002000", "0x7f0000003000", 0x2000, "/memfd:\udcff\x1b[31m", 0x801, 42, "shared memory", 11),
        ("0x7f0000003000", "0x7f0000004000", 0, "", 0x801, 42, "other", 3),
        ("0x7f0000004000", "0x7f0000005000", 0, "[vdso]", 0x801, 42, "vdso", 3),
    ]


def test_loss_makes_live_processes_unknown():
    raw = comm(b"a", 10, executed=True) + record(2, 0, struct.pack("<QQ", 5, 123), 99) + comm(b"b", 100, pid=7)
    side, _, _, spaces = band(raw)
    assert (side.lost, side.stale) == (123, True)
    assert spaces == [(11, 7, 2, 0, (1 << 64) - 1, 0, 0, 0, 0, 0)]  # from the record before on


@given(st.binary(max_size=300), st.integers(0, 300))
def test_torn_and_hostile_records(noise, cut):
    good = comm(b"a", 10) + mmap2(0x1000, 0x1000, b"/x", 20) + task(7, 30, 9, 9, 7)
    band(good[:cut] + noise)
    band(noise, calls=Calls({"munmap": 1, "mremap": 3, "mremap returned": 4}), new_task=5)


MUNMAP, UNMAPPED, MREMAP, RETURN = 705, 704, 707, 706
CALLS = {"munmap": MUNMAP, "munmap returned": UNMAPPED, "mremap": MREMAP, "mremap returned": RETURN}
EINVAL = (1 << 64) - 22


def moves(*records: bytes) -> list[tuple[Any, ...]]:
    start = comm(b"a", 1, executed=True) + mmap2(0x10000, 0x4000, b"/data", 2, flags=1)
    _, _, _, spaces = band(start, *records, calls=Calls(CALLS))
    return [(time_ns, event, hex(begin), hex(end), offset, ino) for time_ns, _, event, begin, end, offset, _, _, ino, _
            in spaces[1:]]  # fmt: skip


def left(*records: bytes) -> list[tuple[str, str, int, str]]:
    """What is mapped in the end: from where to where, the offset in its file, and the file."""
    start = comm(b"a", 1, executed=True) + mmap2(0x10000, 0x4000, b"/data", 2, flags=1)
    _, strings, _, rows = band(start, *records, calls=Calls(CALLS))
    spaces = AddressSpaces(strings)
    for time_ns, pid, event, begin, end, *rest in rows:
        spaces.apply(event, time_ns, pid, begin, end, tuple(rest))
    return [
        (hex(begin), hex(end), mapping.offset + begin - mapping.start, strings[mapping.file])
        for begin, end, (mapping, _) in spaces.process(7).now().rows()
    ]  # fmt: skip


def test_what_another_thread_maps_before_the_call_returns_stays():
    """munmap() and mremap() free their place before they return: it counts as free from their entry on."""
    again = mmap2(0x10000, 0x1000, b"/new", 15)
    stays = [("0x10000", "0x11000", 0x2000, "/new"), ("0x11000", "0x14000", 0x3000, "/data")]
    assert left(syscall(MUNMAP, 10, 0x10000, 1), again, syscall(UNMAPPED, 20, 0)) == stays
    moved = left(syscall(MREMAP, 10, 0x10000, 0x1000, 0x1000, 1, 0), again, syscall(RETURN, 20, 0x90000))
    assert moved == [*stays, ("0x90000", "0x91000", 0x2000, "/data")], "what lay there when the call was entered"


def test_grown_and_shrunk_in_its_place():
    """Nothing of what stays is unknown meanwhile."""
    grow = syscall(MREMAP, 10, 0x10000, 0x4000, 0x8000, 0, 0), syscall(RETURN, 20, 0x10000)
    assert [row[1] for row in moves(*grow)] == [4]
    assert left(*grow) == [("0x10000", "0x18000", 0x2000, "/data")]
    shrink = syscall(MREMAP, 10, 0x10000, 0x4000, 0x1000, 0, 0), syscall(RETURN, 20, 0x10000)
    assert moves(*shrink) == [(10, 2, "0x11000", "0x14000", 0, 0)]


def test_unmapped_and_moved():
    assert moves(syscall(MUNMAP, 10, 0x10000, 1), syscall(UNMAPPED, 20, 0)) == [(10, 2, "0x10000", "0x11000", 0, 0)]
    assert moves(syscall(MUNMAP, 10, 0x10000, 0x1000), syscall(UNMAPPED, 20, EINVAL)) == []
    # the return of another call, or of another thread, is not its own
    assert moves(syscall(MUNMAP, 10, 0x10000, 1), syscall(RETURN, 20, 0)) == []
    call = syscall(MREMAP, 10, 0x11000, 0x1000, 0x3000, 1, 0)
    assert moves(call) == moves(call, syscall(RETURN, 20, 0x90000, tid=9)) == []
    assert moves(call, syscall(RETURN, 20, (1 << 64) - 12)) == []
    # what is moved keeps its file, from its own offset on; entry and return may be in different rings
    rest = [("0x10000", "0x11000", 0x2000, "/data"), ("0x12000", "0x14000", 0x4000, "/data")]
    assert left(syscall(RETURN, 20, 0x90000), call) == [*rest, ("0x90000", "0x93000", 0x3000, "/data")]
    kept = syscall(MREMAP, 10, 0x11000, 0x1000, 0x1000, 1 | 4, 0)  # MREMAP_DONTUNMAP
    whole = ("0x10000", "0x14000", 0x2000, "/data")
    assert left(kept, syscall(RETURN, 20, 0x90000)) == [whole, ("0x90000", "0x91000", 0x3000, "/data")]
    unknown = syscall(MREMAP, 10, 0x777000, 0x1000, 0x2000, 1, 0)
    assert left(unknown, syscall(RETURN, 20, 0x90000)) == [whole, ("0x90000", "0x92000", 0, "[anon]")]


NEW_TASK, CLONE_VM, CLONE_VFORK, CLONE_THREAD = 205, 0x100, 0x4000, 0x10000


def mapped_by(*records: bytes) -> list[tuple[int, int]]:
    """(time, pid) of the rows of the address spaces."""
    _, _, _, spaces = band(comm(b"a", 1, executed=True), *records, new_task=NEW_TASK)
    return [row[:2] for row in spaces]


def test_processes_that_share_memory_have_each_others_mappings():
    born = task(7, 10, 11, 11, 7)
    both = [mmap2(0x1000, 0x1000, b"/a", 20, pid=7), mmap2(0x2000, 0x1000, b"/b", 30, pid=11)]
    sharing = [(20, 7), (20, 11), (30, 7), (30, 11)]
    assert sorted(mapped_by(born, new_task(NEW_TASK, 11, CLONE_VM), *both)) == sharing
    assert mapped_by(born, new_task(NEW_TASK, 11, 0), *both) == [(20, 7), (30, 11)]
    # a thread is no process; the tracepoint is that of the thread that called
    assert mapped_by(born, new_task(NEW_TASK, 11, CLONE_VM | CLONE_THREAD), *both) == [(20, 7), (30, 11)]
    assert mapped_by(born, new_task(NEW_TASK, 11, CLONE_VM, tid=9), *both) == [(20, 7), (30, 11)]
    # until one of them executes a program, or ends
    vfork = born, new_task(NEW_TASK, 11, CLONE_VM | CLONE_VFORK)
    executed = comm(b"b", 25, pid=11, executed=True)
    assert sorted(mapped_by(*vfork, both[0], executed, both[1])) == [*sharing[:2], (30, 11)]
    assert sorted(mapped_by(*vfork, task(4, 15, 11, 11, 7), *both)) == [(20, 7), (30, 11)]


def test_a_birth_belongs_to_the_process_that_was_reported_of_just_before_it():
    """Those of all processes are seen, and those with memory of their own are not."""
    born = task(7, 10, 11, 11, 7)
    both = [mmap2(0x1000, 0x1000, b"/a", 20, pid=7), mmap2(0x2000, 0x1000, b"/b", 30, pid=11)]
    # an untraced process got the id that the traced thread had
    assert mapped_by(born, new_task(NEW_TASK, 11, CLONE_VM, pid=99), *both) == [(20, 7), (30, 11)]
    # the process that shares memory is another one, whose own record was lost
    spaces = mapped_by(born + lost(1, 0) + new_task(NEW_TASK, 13, CLONE_VM), *both)
    assert [row for row in spaces if row[0] >= 20] == [(20, 7), (30, 11)]


def test_a_program_that_gains_privilege_goes_on_untraced():
    """The kernel ends its trace right after it tells of the exec: that is no end of the process."""
    end = task(4, 12, 7, 7, 1)
    side, _, processes, _ = band(comm(b"su", 10, executed=True) + end)
    assert [row[4] for row in processes] == [PROCESS_EXEC]
    assert side.privileged_programs == 1
    assert 7 in side.live
    # what has mapped its image, or started a thread, has run
    for ran in (mmap2(0x1000, 0x1000, b"/x", 11), task(7, 11, 7, 8, 7), comm(b"new name", 11)):
        side, _, processes, _ = band(comm(b"a", 10, executed=True) + ran + end)
        assert side.privileged_programs == 0
