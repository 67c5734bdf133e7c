"""The side band of the Linux backend without a kernel: processes, mappings, their moves, shared address spaces."""

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.side_band_records import band, comm, lost, mmap2, new_task, record, syscall, task
from kit.side_band_records import given as rows_of

from wstrace.batch import Dictionary
from wstrace.schema import (
    KIND_ANON,
    KIND_FILE,
    KIND_SHIFT,
    KINDS,
    LOSS_EVENTS,
    PROCESS_EXEC,
    PROCESS_FORK,
    PROCESS_TITLE,
    SPACE_MAP,
)
from wstrace_plugins.mapped_files.spaces import AddressSpaces
from wstrace_plugins.page_faults.linux.calls import LARGEST_FOLIO, MREMAP_DONTUNMAP, RETURNED, Call, Calls, space_rows
from wstrace_plugins.page_faults.linux.side_band import SideBand


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


ALONE = ("mlock", "mlock2", "mlockall")
PAIRED = ("munmap", "mremap", "madvise", "process_madvise", "brk", "shmdt", "shmat", "mmap")
NAMES = (*ALONE, *PAIRED, *(name + RETURNED for name in PAIRED))
NUMBERS = {name: number for number, name in enumerate(NAMES, 1)}
END = (1 << 64) - 1


def make(*, births: bool = True) -> SideBand:
    return SideBand(
        Dictionary(),
        children=True,
        exit_code=lambda pid: 0,
        calls=Calls(NUMBERS),
        new_task=NEW_TASK if births else None,
    )


def losses(*records: bytes, watermark: int = END, births: bool = True) -> list[tuple[Any, ...]]:
    side = make(births=births)
    for one in (comm(b"a", 1), *records):
        side.take(one)
    rows = rows_of(side, watermark)["content_loss"]
    return [(time, pid, LOSS_EVENTS[event], start, end, to, other) for time, pid, event, start, end, to, other in rows]


def call(name: str, time_ns: int, *arguments: int, result: int = 0, pid: int = 7) -> bytes:
    record = syscall(NUMBERS[name], time_ns, *arguments, pid=pid, tid=pid)
    if name in PAIRED:
        record += syscall(NUMBERS[name + RETURNED], time_ns + 5, result, pid=pid, tid=pid)
    return record


def test_a_range_does_not_wrap():
    assert losses(call("munmap", 10, END - 0xFFF, 1 << 40)) == [(10, 7, "unmapped", END - 0xFFF, END, 0, 0)]


@pytest.mark.parametrize("advice", [20, 21], ids=["MADV_COLD", "MADV_PAGEOUT"])
def test_advice_that_unmaps_what_may_stay_in_the_page_cache(advice):
    """A folio of which a part is reclaimed is split, and thereby unmapped as a whole."""
    at = 1 << 30
    assert losses(call("madvise", 10, at, 0x1001, advice)) == [
        (10, 7, "perhaps unmapped", at - LARGEST_FOLIO, at + 0x2000 + LARGEST_FOLIO, 0, 0)
    ]


def test_the_ranges_of_process_madvise_are_not_reported():
    assert losses(call("process_madvise", 10, 3, 0x5000, 1, 4, 0, result=4096)) == [
        (10, 7, "perhaps lost", 0, END, 0, 0)
    ]
    assert losses(call("process_madvise", 10, 3, 0x5000, 1, 4, 0, result=EINVAL)) == []
    assert losses(call("process_madvise", 10, 3, 0x5000, 1, 21, 0, result=4096)) == []  # MADV_PAGEOUT


def test_brk_that_shrinks():
    wanted, grown = call("brk", 10, 0, result=0x10010), call("brk", 20, 0x15000, result=0x15000)
    shrunk = call("brk", 30, 0x12001, result=0x12001)
    assert losses(wanted, grown, shrunk) == [(30, 7, "brk shrank", 0x13000, 0x15000, 0, 0)]
    assert losses(shrunk) == []  # from where it did is not known
    assert losses(grown, call("brk", 30, 0x12000, result=0x15000)) == []  # refused
    child = task(7, 25, 11, 11, 7) + call("brk", 30, 0x14000, result=0x14000, pid=11)
    assert losses(grown, child)[-1] == (30, 11, "brk shrank", 0x14000, 0x15000, 0, 0)
    assert losses(grown, comm(b"b", 25, executed=True), shrunk)[1:] == []


def test_a_mapping_at_a_fixed_address_replaces_what_was_there():
    entry = syscall(NUMBERS["mmap"], 10, 0x10000, 0x2000, 3, 0x32)
    failure = syscall(NUMBERS["mmap" + RETURNED], 12, EINVAL)
    grows_a_neighbour = mmap2(0x8000, 0xA000, b"//anon", 14)
    assert losses(entry, grows_a_neighbour) == [(10, 7, "replaced by a new mapping", 0x10000, 0x12000, 0, 0)]
    assert losses(entry, failure, grows_a_neighbour) == []
    assert losses(entry, mmap2(0x20000, 0x1000, b"/x", 14)) == []  # of another call, as the return was lost


@pytest.mark.parametrize(
    ("records", "start", "end"),
    [
        (call("mlock", 10, 0x1000, 0x2000), 0x1000, 0x3000),
        (call("mlock2", 10, 0x1000, 0x2000, 0), 0x1000, 0x3000),
        (call("mlockall", 10, 1), 0, END),
        (call("madvise", 10, 0x1000, 0x2000, 22), 0x1000, 0x3000),
        (call("madvise", 10, 0x1000, 0x2000, 23), 0x1000, 0x3000),
        (call("process_madvise", 10, 9, 0x500, 1, 23, 0, result=4096), 0, END),
        (syscall(NUMBERS["mmap"], 10, 0, 0x2000, 3, 0x8022) + mmap2(0x10000, 0x2000, b"//anon", 10), 0x10000, 0x12000),
        (mmap2(0x10000, 0x2000, b"//anon", 10, flags=0x2022), 0x10000, 0x12000),
    ],
    ids=["mlock", "mlock2", "mlockall", "POPULATE_READ", "POPULATE_WRITE", "of itself", "MAP_POPULATE", "locked"],
)  # fmt: skip
def test_what_may_have_brought_pages_without_a_fault(records, start, end):
    assert losses(records) == [(10, 7, "populated", start, end, 0, 0)]


def test_a_fork_waits_until_it_is_distinguished_from_a_vfork():
    side = make()
    side.take(comm(b"a", 1) + task(7, 10, 11, 11, 7))
    assert rows_of(side, 20)["content_loss"] == []
    assert side.holds
    side.take(new_task(NEW_TASK, 30, CLONE_VM))
    assert rows_of(side, 40_000_000)["content_loss"][0][2] == LOSS_EVENTS.index("shares memory")
    assert not side.holds


def test_without_the_tracepoint_of_births_a_fork_is_not_proven():
    born = task(7, 10, 2**22, 2**22, 2**22 - 1)
    assert losses(born, births=False) == [(10, 2**22, "perhaps forked", 0, END, 0, 2**22 - 1)]


def test_each_process_that_shares_the_memory_has_a_row():
    shared = task(7, 10, 11, 11, 7) + new_task(NEW_TASK, 11, CLONE_VM)
    rows = losses(shared, call("munmap", 20, 0x10000, 1, pid=11))
    assert sorted(rows[1:]) == [
        (20, 7, "unmapped", 0x10000, 0x11000, 0, 0),
        (20, 11, "unmapped", 0x10000, 0x11000, 0, 0),
    ]


def test_a_detached_segment_is_unmapped_as_far_as_it_was_mapped():
    attached = comm(b"a", 1) + mmap2(0x10000, 0x5000, b"/SYSV00000000 (deleted)", 10)
    assert losses(attached, call("shmdt", 20, 0x10000)) == [(20, 7, "unmapped", 0x10000, 0x15000, 0, 0)]
    assert losses(attached, call("shmdt", 20, 0x11000)) == [(20, 7, "perhaps lost", 0, END, 0, 0)]


def test_lost_records_of_rare_calls_cost_no_mapping():
    side = make()
    side.take(comm(b"a", 5))
    side.take(call("madvise", 10, 0, 1, 14) + lost(3, 0), rare=True)
    rows = rows_of(side, END)
    assert (side.lost, side.stale, side.others, rows["address_space"]) == (0, False, 3, [])
    assert {LOSS_EVENTS[row[2]] for row in rows["content_loss"]} == {"perhaps lost"}


def test_a_full_ring_has_lost_what_came_after_it_until_it_was_read():
    """The kernel tells it only with the next record that finds room, which may never come."""
    side = make()
    side.take(comm(b"a", 5) + task(7, 18, 8, 8, 7) + task(4, 19, 7, 7, 1))
    side.take(call("madvise", 10, 0x1000, 1, 4), rare=True, full_ns=20)
    side.take(lost(3, 25) + call("madvise", 25, 0x1000, 1, 4, pid=8), rare=True)
    rows = [(time, pid, LOSS_EVENTS[event]) for time, pid, event, *_ in rows_of(side, END)["content_loss"]]
    shown = [(10, 7, "discarded"), (16, 7, "perhaps lost"), (18, 8, "forked"), (19, 7, "perhaps lost")]
    assert [row for row in rows if row[0] < 25] == [*shown, (20, 8, "perhaps lost")]
    assert rows[-1] == (25, 8, "discarded"), "the ring had room when that was called"


@pytest.mark.parametrize("rare", [True, False])
def test_what_is_lost_may_have_happened_until_the_next_record(rare):
    """Of what was touched since the record before, something may have been discarded, too."""
    side = make()
    side.take(comm(b"a", 5) + task(7, 18, 8, 8, 7))
    side.take(call("madvise", 10, 0x1000, 1, 4) + lost(3, 25), rare=rare)
    rows = [(time, pid, LOSS_EVENTS[event]) for time, pid, event, *_ in rows_of(side, END)["content_loss"]]
    shown = [(10, 7, "discarded"), (16, 7, "perhaps lost"), (18, 8, "forked")]
    assert rows == [*shown, (25, 7, "perhaps lost"), (25, 8, "perhaps lost")]


def test_a_loss_before_all_else_that_was_read_is_of_its_own_time():
    """Not of the beginning of the clock: a trace would seem to last since the machine was started."""
    side = make()
    side.take(comm(b"a", 5_000))
    rows_of(side, 6_000)
    side.take(lost(3, 7_000))
    rows = rows_of(side, END)
    assert [row[0] for row in rows["content_loss"] + rows["address_space"]] == [6_001, 7_000, 6_001]
    first = make()
    for one in (comm(b"a", 5_000), lost(3, 7_000)):
        first.take(one)
    assert [row[0] for row in rows_of(first, END)["content_loss"]] == [7_000]


PAGE, PAGES = 4096, 48
#: A page of a file: its inode and its number there.
Known = tuple[int, int]


def applied(spaces: AddressSpaces, rows: list[tuple[int, ...]]) -> None:
    for time, pid, event, start, end, *rest in rows:
        spaces.apply(event, time, pid, start, end, tuple(rest))


def known(spaces: AddressSpaces, pid: int, time: int) -> dict[int, Known]:
    """What lies in each page of a process."""
    found = {}
    for start, end, (mapping, _) in spaces.process(pid).at(time).rows():
        for at in range(start, end, PAGE):
            found[at // PAGE] = mapping.ino, (mapping.offset + at - mapping.start) // PAGE if mapping.ino else 0
    return found


class Machine:
    """The address space of one process as the kernel has it, and what rows tell of it."""

    def __init__(self, seed: int) -> None:
        self.random, self.spaces, self.time = random.Random(seed), AddressSpaces(Dictionary()), 0
        self.truth = {}

    def span(self) -> tuple[int, int]:
        start = self.random.randrange(PAGES - 1)
        return start, self.random.randint(1, min(12, PAGES - start))

    def map(self) -> None:
        start, n = self.span()
        ino, first = self.random.randint(0, 3), self.random.randrange(20)
        self.time += 10
        self.truth |= {start + i: (ino, first + i if ino else 0) for i in range(n)}
        flags = (KIND_FILE if ino else KIND_ANON) << KIND_SHIFT | 1
        row = (self.time, 7, SPACE_MAP, start * PAGE, (start + n) * PAGE, first * PAGE * bool(ino), ino, 0, ino, flags)
        applied(self.spaces, [row])

    def called(self, name: str, *arguments: int, result: int = 0) -> None:
        self.time += 10
        call = Call(name, 7, self.time - 5, self.time, arguments, result)
        applied(self.spaces, space_rows(call))

    def unmap(self) -> None:
        start, n = self.span()
        for page in range(start, start + n):
            self.truth.pop(page, None)
        self.called("munmap", start * PAGE, n * PAGE - self.random.randrange(PAGE))

    def remap(self) -> None:
        """Moves some pages that are mapped, of one mapping or (Linux 6.17) of several, and lets one grow or shrink."""
        start, old = self.span()
        while old and any(page not in self.truth for page in range(start, start + old)):
            old -= 1
        if not old:
            return
        moved = [self.truth[page] for page in range(start, start + old)]
        ino, first = moved[0]
        one = all(page == (ino, first + i if ino else 0) for i, page in enumerate(moved))
        new = self.random.randint(1, 12) if one else old
        free = all(page not in self.truth for page in range(start + old, start + new))
        to = self.random.choice([page for page in range(2 * PAGES) if page + new <= start or page >= start + old]
                                + [start] * free)  # fmt: skip
        stays = self.random.random() < 0.2 and new == old and to != start
        now = moved[:new] + [(ino, first + i if ino else 0) for i in range(old, new)]
        for page in range(start, start + old):
            if not stays:
                del self.truth[page]
        self.truth |= {to + i: page for i, page in enumerate(now)}
        flags = 3 | MREMAP_DONTUNMAP * stays
        self.called("mremap", start * PAGE, old * PAGE, new * PAGE, flags, result=to * PAGE)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_reported_is_what_is_mapped(seed):
    machine = Machine(seed)
    for _ in range(150):
        machine.random.choice((machine.map, machine.unmap, machine.remap, machine.remap))()
        assert known(machine.spaces, 7, machine.time) == machine.truth


def test_a_child_moves_what_it_has_from_its_parent_in_its_own_memory():
    spaces = AddressSpaces(Dictionary())
    applied(spaces, [(1, 7, SPACE_MAP, 0x10000, 0x12000, 0, 5, 0, 42, KIND_FILE << KIND_SHIFT)])
    spaces.apply_process(PROCESS_FORK, 5, 8, 7)
    applied(spaces, space_rows(Call("mremap", 8, 10, 20, (0x10000, 0x2000, 0x4000, 3), 0x90000)))
    assert known(spaces, 8, 20) == {0x90 + i: (42, i) for i in range(4)}
    assert known(spaces, 7, 20) == {0x10 + i: (42, i) for i in range(2)}
