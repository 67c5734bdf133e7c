"""content_loss of the Linux backend without a kernel: what took content away, in time order, if it succeeded."""

from typing import Any

import pytest
from kit.side_band_records import comm, given, lost, mmap2, new_task, syscall, task

from wstrace.batch import Dictionary
from wstrace.schema import LOSS_EVENTS
from wstrace_plugins.page_faults.linux.calls import LARGEST_FOLIO, RETURNED, Calls
from wstrace_plugins.page_faults.linux.side_band import SideBand

ALONE = ("mlock", "mlock2", "mlockall")
PAIRED = ("munmap", "mremap", "madvise", "process_madvise", "brk", "shmdt", "shmat", "mmap")
NAMES = (*ALONE, *PAIRED, *(name + RETURNED for name in PAIRED))
NUMBERS = {name: number for number, name in enumerate(NAMES, 1)}
NEW_TASK, CLONE_VM, CLONE_VFORK = 205, 0x100, 0x4000
END, ENOMEM, EINVAL = (1 << 64) - 1, (1 << 64) - 12, (1 << 64) - 22
MAYMOVE, FIXED, DONTUNMAP = 1, 2, 4


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
    for record in (comm(b"a", 1), *records):
        side.take(record)
    rows = given(side, watermark)["content_loss"]
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
    assert given(side, 20)["content_loss"] == []
    assert side.holds
    side.take(new_task(NEW_TASK, 30, CLONE_VM))
    assert given(side, 40_000_000)["content_loss"][0][2] == LOSS_EVENTS.index("shares memory")
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


def test_after_a_loss_of_records_anything_may_be_lost():
    rows = losses(comm(b"a", 5) + mmap2(0x1000, 0x1000, b"/x", 10) + lost(3, 0) + task(7, 12, 11, 11, 7))
    assert rows[0] == (11, 7, "perhaps lost", 0, END, 0, 0)


def test_a_detached_segment_is_unmapped_as_far_as_it_was_mapped():
    attached = comm(b"a", 1) + mmap2(0x10000, 0x5000, b"/SYSV00000000 (deleted)", 10)
    assert losses(attached, call("shmdt", 20, 0x10000)) == [(20, 7, "unmapped", 0x10000, 0x15000, 0, 0)]
    assert losses(attached, call("shmdt", 20, 0x11000)) == [(20, 7, "perhaps lost", 0, END, 0, 0)]


def test_lost_records_of_rare_calls_cost_no_mapping():
    side = make()
    side.take(comm(b"a", 5))
    side.take(call("madvise", 10, 0, 1, 14) + lost(3, 0), rare=True)
    rows = given(side, END)
    assert (side.lost, side.stale, side.others, rows["address_space"]) == (0, False, 3, [])
    assert {LOSS_EVENTS[row[2]] for row in rows["content_loss"]} == {"perhaps lost"}


def test_a_full_ring_has_lost_what_came_after_it_until_it_was_read():
    """The kernel tells it only with the next record that finds room, which may never come."""
    side = make()
    side.take(comm(b"a", 5) + task(7, 18, 8, 8, 7) + task(4, 19, 7, 7, 1))
    side.take(call("madvise", 10, 0x1000, 1, 4), rare=True, full_ns=20)
    side.take(lost(3, 25) + call("madvise", 25, 0x1000, 1, 4, pid=8), rare=True)
    rows = [(time, pid, LOSS_EVENTS[event]) for time, pid, event, *_ in given(side, END)["content_loss"]]
    shown = [(10, 7, "discarded"), (16, 7, "perhaps lost"), (18, 8, "forked"), (19, 7, "perhaps lost")]
    assert [row for row in rows if row[0] < 25] == [*shown, (20, 8, "perhaps lost")]
    assert rows[-1] == (25, 8, "discarded"), "the ring had room when that was called"


@pytest.mark.parametrize("rare", [True, False])
def test_what_is_lost_may_have_happened_until_the_next_record(rare):
    """Of what was touched since the record before, something may have been discarded, too."""
    side = make()
    side.take(comm(b"a", 5) + task(7, 18, 8, 8, 7))
    side.take(call("madvise", 10, 0x1000, 1, 4) + lost(3, 25), rare=rare)
    rows = [(time, pid, LOSS_EVENTS[event]) for time, pid, event, *_ in given(side, END)["content_loss"]]
    shown = [(10, 7, "discarded"), (16, 7, "perhaps lost"), (18, 8, "forked")]
    assert rows == [*shown, (25, 7, "perhaps lost"), (25, 8, "perhaps lost")]


def test_a_loss_before_all_else_that_was_read_is_of_its_own_time():
    """Not of the beginning of the clock: a trace would seem to last since the machine was started."""
    side = make()
    side.take(comm(b"a", 5_000))
    given(side, 6_000)
    side.take(lost(3, 7_000))
    rows = given(side, END)
    assert [row[0] for row in rows["content_loss"] + rows["address_space"]] == [6_001, 7_000, 6_001]
    first = make()
    for record in (comm(b"a", 5_000), lost(3, 7_000)):
        first.take(record)
    assert [row[0] for row in given(first, END)["content_loss"]] == [7_000]
