"""Which fault brought each page: as an obvious model says that applies all events in order of time."""

from __future__ import annotations

import numpy as np
import pytest
from blame_histories import doubted, history, pages_of, told
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slow_memory import LOSSES, PAGES, Event, Memory

from wstrace.analysis.blame import sharing
from wstrace.analysis.blame.bringers import KHUGEPAGED
from wstrace.schema import (
    FAULT_ACCESS_KNOWN,
    FAULT_MAJOR,
    FAULT_WRITE,
    KIND_FILE,
    KIND_SHARED,
    LOSS_EXECUTED,
    LOSS_FORKED,
    LOSS_LAZILY_FREED,
    LOSS_MOVED,
    LOSS_PERHAPS,
    LOSS_PERHAPS_UNMAPPED,
    LOSS_POPULATED,
    LOSS_UNMAPPED,
)

PIDS = 4


def events() -> st.SearchStrategy[list[Event]]:
    pid, page = st.integers(0, PIDS - 1), st.integers(0, PAGES - 1)
    span = st.tuples(page, st.integers(1, 5)).map(lambda one: (one[0], min(one[0] + one[1], PAGES)))
    fault = st.builds(lambda p, a: Event(0, p, a, a + 1), pid, page)
    loss = st.builds(lambda what, p, s: Event(what, p, *s), st.sampled_from(LOSSES), pid, span)
    fork = st.builds(lambda p, other: Event(LOSS_FORKED, p, other=other), pid, pid).filter(lambda e: e.pid != e.other)
    move = st.builds(lambda p, s, to: Event(LOSS_MOVED, p, *s, to=to), pid, span, page).filter(
        lambda e: (e.to >= e.end and e.to + e.end - e.start <= PAGES) or e.to + e.end - e.start <= e.start
    )
    return st.lists(st.one_of(fault, fault, fault, fault, loss, fork, move), min_size=1, max_size=60)


@settings(max_examples=400, deadline=None)
@given(events())
@example([Event(0, 1, 3, 4), Event(LOSS_MOVED, 1, 3, 4, to=7), Event(0, 1, 7, 8)])
@example([Event(0, 1, 3, 4), Event(LOSS_FORKED, 2, other=1), Event(0, 2, 3, 4), Event(0, 1, 3, 4)])
@example([Event(0, 1, 3, 4), Event(LOSS_FORKED, 2, other=1), Event(LOSS_LAZILY_FREED, 1, 3, 4), Event(0, 1, 3, 4)])
def test_bringers_and_copies_are_those_of_an_obvious_model(all_events):
    model, fast = Memory().run(all_events), history(all_events)
    for pid in range(PIDS):
        known = model.bringers(pid)
        found = told(fast, pid, sorted(known))
        if {LOSS_LAZILY_FREED, LOSS_FORKED} <= {event.what for event in all_events}:
            # pages that processes share are not freed: who had brought them before may be told, too
            found, known = ({page: late for page, (_, late) in one.items()} for one in (found, known))
        assert found == known, pid
    event = (fast.faults.time // np.uint64(10)).astype(np.intp) - 1
    assert sorted(event[fast.copies.faults].tolist()) == sorted(model.copies)
    assert {int(event[at]) for at in np.flatnonzero(fast.faults.brings)} == model.brought
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "_AT_ONCE", 1)
        singly = history(all_events).copies
    assert singly.faults.tolist() == fast.copies.faults.tolist()
    assert sorted(singly.taken.tolist()) == sorted(fast.copies.taken.tolist())


def test_a_page_of_zeros_is_not_resident_and_its_first_write_brings():
    read, write = FAULT_ACCESS_KNOWN, FAULT_ACCESS_KNOWN | FAULT_WRITE
    both = [Event(0, 1, 3, 4), Event(0, 1, 3, 4)]
    assert told(history(both, kinds={0: read, 1: write}), 1, [3]) == {3: (1, 1)}
    assert told(history(both, kinds={0: write, 1: write}), 1, [3]) == {3: (0, 0)}
    assert told(history(both), 1, [3]) == {3: (0, 1)}, "without knowing what was a write, either may have brought it"
    assert told(history(both, kinds={1: FAULT_MAJOR}), 1, [3]) == {3: (0, 0)}, "it was swapped in again"
    assert told(history(both[:1], flags=read), 1, [3]) == {}


@pytest.mark.parametrize("event", [LOSS_PERHAPS_UNMAPPED, LOSS_LAZILY_FREED, LOSS_PERHAPS])
def test_a_page_that_is_swapped_in_was_there(event):
    """Of memory that no file has, only what was swapped out is read from a disk: whoever wrote it keeps it."""
    fault, gone = Event(0, 1, 3, 4), Event(event, 1, 0, 8)
    events = [fault, gone, fault]
    late = {3: (2, 2) if event == LOSS_LAZILY_FREED else (0, 2)}
    assert told(history(events), 1, [3]) == late, "it was kept, or written anew"
    for forked in [], [Event(LOSS_FORKED, 2, other=1)]:
        assert told(history([*events, *forked], kinds={2: FAULT_MAJOR}), 1, [3]) == {3: (0, 0)}
    assert told(history([fault, *events], kinds={3: FAULT_MAJOR}), 1, [3]) == {3: (0, 1)}, "the first may have read"
    assert told(history(events[1:], kinds={1: FAULT_MAJOR}), 1, [3]) == {3: (1, 1)}, "whoever wrote it is not known"


def test_a_page_of_a_file_that_is_read_from_disk_again_was_gone():
    both = [Event(0, 1, 3, 4), Event(0, 1, 3, 4)]
    mapping = (0, 16, 0)
    assert told(history(both, kind=KIND_FILE), 1, [3], mapping=mapping) == {3: (0, 0)}
    assert told(history(both, kind=KIND_FILE, kinds={1: FAULT_MAJOR}), 1, [3], mapping=mapping) == {3: (1, 1)}


def test_what_was_written_to_in_a_private_mapping_of_a_file_came_with_the_write():
    both = [Event(0, 1, 3, 4), Event(0, 1, 3, 4)]
    assert told(history(both, kind=KIND_FILE), 1, [3]) == {3: (1, 1)}, "not a page of the file any more"
    assert told(history(both[:1], kind=KIND_FILE), 1, [3]) == {3: (0, 0)}
    assert told(history(both, kind=KIND_FILE), 1, [3], mapping=(0, 16, 0)) == {3: (0, 0)}, "still one of the file"


@pytest.mark.parametrize("flags", [0, FAULT_ACCESS_KNOWN | FAULT_WRITE], ids=["access not known", "writes"])
def test_shared_memory_that_faults_again_may_have_gone_unseen(flags):
    both = history([Event(0, 1, 3, 4), Event(0, 1, 3, 4)], flags, KIND_SHARED)
    assert told(both, 1, [3], mapping=(0, 16, 0)) == {3: (0, 1)}, "truncated, punched or detached in between"
    assert told(both, 1, [3]) == {3: (1, 1)}, "a write to a private mapping of it made the page"


def test_a_write_to_a_shared_page_of_a_file_faults_although_it_may_be_there():
    of = history([Event(0, 1, 33, 34), Event(0, 1, 40, 41), Event(0, 1, 100, 101)], kind=KIND_FILE)
    whole = list(range(0, 128))
    found = told(of, 1, whole, mapping=(0, 128, 0), noticed=True)
    assert {page: found[page] for page in (33, 40, 100, 70)} == {33: (0, 0), 40: (0, 1), 100: (0, 2), 70: (0, 2)}
    holed = [page for page in whole if page != 90]  # so that no folio of that size was mapped whole
    found = told(of, 1, holed, mapping=(0, 128, 0), noticed=True)
    assert {page: found[page] for page in (33, 40, 100)} == {33: (0, 0), 40: (0, 1), 100: (2, 2)}


def test_a_fault_on_what_may_have_come_without_one_is_an_estimate():
    """mlock() of 3 ... 5, a move of 4, a fork, and a write to each: it copies what was there already."""
    of = history([
        Event(LOSS_POPULATED, 1, 3, 6), Event(LOSS_UNMAPPED, 1, 3, 4), Event(LOSS_MOVED, 1, 4, 5, to=9),
        Event(LOSS_FORKED, 2, other=1), *(Event(0, 1, page, page + 1) for page in (3, 5, 9)),
        *(Event(0, 2, page, page + 1) for page in (3, 9)),
    ])  # fmt: skip
    for pid, pages in (1, [3, 5, 9, 12]), (2, [3, 5, 9]):
        found = of.bringers(pages_of(pid, pages, 1000))
        doubted = dict(zip(pages, (found.doubted | (found.populated & (found.first < 0))).tolist(), strict=True))
        assert doubted == {page: page in (5, 9) for page in pages}, "3 was mapped anew after that"


def test_a_page_of_a_file_may_have_come_with_one_that_came_without_a_fault():
    of = history([Event(LOSS_POPULATED, 1, 600, 601), Event(0, 1, 40, 41), Event(0, 1, 540, 541)], kind=KIND_FILE)
    found = of.bringers(pages_of(1, [40, 540, 541], 1000, mapping=(0, 2048, 0)))
    assert found.doubted.tolist() == [False, True, True]


def test_the_only_fault_in_a_huge_page_brought_all_of_it():
    pages = list(range(512, 1024))
    assert told(history([Event(0, 1, 700, 701)]), 1, pages, huge=True) == dict.fromkeys(pages, (0, 0))
    of = history([Event(0, 1, 700, 701), Event(0, 1, 701, 702)])
    assert set(told(of, 1, pages, huge=True)) == {700, 701}
    how = of.bringers(pages_of(1, pages, 1000, huge=True)).how.tolist()
    assert how[0] == KHUGEPAGED
    assert told(history([Event(0, 1, 700, 701)]), 1, pages) == {700: (0, 0)}, "not a huge page"


def test_a_child_has_its_parents_huge_page_whole_from_its_bringer():
    of = history([Event(0, 1, 700, 701), Event(LOSS_FORKED, 2, other=1)])
    pages = list(range(512, 1024))
    assert told(of, 2, pages, huge=True) == dict.fromkeys(pages, (0, 0))


def test_what_a_child_wrote_alone_still_belongs_to_who_loaded_it():
    loaded = [Event(0, 1, page, page + 1) for page in range(8)]
    forked, ended = Event(LOSS_FORKED, 2, other=1), Event(LOSS_EXECUTED, 2)
    rewritten = [Event(0, 1, page, page + 1) for page in range(8)]
    of = history([*loaded, forked, ended, *rewritten])
    assert told(of, 1, list(range(8))) == {page: (page, page) for page in range(8)}
    assert not len(of.copies.faults)


@pytest.mark.parametrize("children", [1, 4])
def test_of_k_processes_k_minus_one_copy(children):
    pages = 64
    events = [Event(0, 0, page, page + 1) for page in range(pages)]
    events += [Event(LOSS_FORKED, child, other=0) for child in range(1, children + 1)]
    events += [Event(0, pid, page, page + 1) for page in range(pages) for pid in range(children + 1)]
    of = history(events)
    assert len(of.copies.faults) == children * pages
    assert len(of.copies.taken) == pages


def test_lazily_freed_pages_stay_unless_they_are_found_gone():
    freed = [Event(0, 1, 3, 4), Event(0, 1, 4, 5), Event(LOSS_LAZILY_FREED, 1, 3, 5), Event(0, 1, 4, 5)]
    assert told(history(freed), 1, [3, 4]) == {3: (0, 0), 4: (3, 3)}


def test_nothing_is_given_to_an_older_tenant_of_an_address():
    of = history([Event(0, 1, 3, 4), Event(LOSS_UNMAPPED, 1, 3, 4)])
    assert told(of, 1, [3]) == {}
    assert told(of, 1, [3], time=15) == {3: (0, 0)}, "before it was unmapped"


def test_what_was_perhaps_discarded_had_to_come_again_with_a_fault():
    events = [Event(0, 1, 3, 4), Event(0, 1, 4, 5), Event(LOSS_PERHAPS, 1), Event(0, 1, 4, 5)]
    certain = history(events).bringers(pages_of(1, [3, 4], 1000))
    assert told(history(events), 1, [3, 4]) == {3: (0, 0), 4: (1, 3)}, "the second fault on 4 is one of the two"
    assert certain.assumed.tolist() == [False, False]
    lossy = history(events, lossless=False).bringers(pages_of(1, [3], 1000))
    assert lossy.assumed.tolist() == [True], "that fault, or a move, may be among what was lost"


def test_a_window_that_came_again_after_a_perhaps_has_two_candidates():
    events = [Event(0, 1, 40, 41), Event(LOSS_PERHAPS, 1), Event(0, 1, 42, 43)]
    resident = [*range(32, 48), 60]
    found = told(history(events, kind=KIND_FILE), 1, resident, mapping=(32, 64, 0))
    assert {page: found[page] for page in (41, 42)} == {41: (0, 2), 42: (0, 2)}


def test_a_page_of_a_file_that_was_read_before_a_fork_came_with_the_read_or_the_write():
    events = [Event(0, 1, 3, 4), Event(LOSS_FORKED, 2, other=1), Event(0, 1, 3, 4)]
    assert told(history(events, kind=KIND_FILE), 1, [3]) == {3: (0, 2)}, "a fork explains the second fault, too"
    assert told(history(events, kind=KIND_FILE), 1, [3], mapping=(0, 16, 0)) == {3: (0, 0)}, "still one of the file"


def test_what_is_rewritten_behind_a_fork_may_have_been_the_page_of_zeros():
    events = [Event(0, 1, 3, 4), Event(LOSS_FORKED, 2, other=1), Event(0, 1, 3, 4)]
    of = history(events, places={0: 7, 2: 8})
    assert told(of, 1, [3]) == {3: (0, 0)}
    assert doubted(of, [3]) == [True]
    assert doubted(history(events), [3]) == [False], "both came from one place"
    moved = [Event(0, 1, 3, 4), Event(LOSS_MOVED, 1, 3, 4, to=7), Event(0, 1, 7, 8)]
    assert doubted(history(moved), [7]) == [True], "what was moved would not have faulted"


def test_what_was_perhaps_discarded_twice_is_told_with_a_doubt():
    chained = [Event(0, 1, 3, 4), Event(LOSS_PERHAPS, 1), Event(0, 1, 3, 4), Event(LOSS_PERHAPS, 1), Event(0, 1, 3, 4)]
    assert told(history(chained), 1, [3]) == {3: (2, 4)}, "the two last ones"
    assert doubted(history(chained), [3]) == [True]
    assert doubted(history(chained[2:]), [3]) == [False]


def test_what_was_perhaps_discarded_many_times_is_told_with_a_doubt():
    events = [Event(0, 1, 3, 4), Event(LOSS_PERHAPS, 1)] * 3000
    assert told(history(events), 1, [3])[3][1] == len(events) - 2
    assert doubted(history(events), [3]) == [True]


def test_what_processes_share_is_not_freed():
    events = [Event(0, 1, 3, 4), Event(LOSS_FORKED, 2, other=1), Event(LOSS_LAZILY_FREED, 1, 3, 4), Event(0, 1, 3, 4)]
    assert told(history(events), 1, [3]) == {3: (0, 3)}
    assert told(history([events[0], *events[2:]]), 1, [3]) == {3: (2, 2)}


def test_a_page_of_a_file_may_have_come_with_another_one_before_it_was_moved():
    events = [Event(0, 1, 33, 34), Event(LOSS_MOVED, 1, 32, 48, to=96), Event(0, 1, 98, 99)]
    of = history(events, kind=KIND_FILE)
    moved = {"mapping": (96, 112, 0), "noticed": True}
    assert told(of, 1, [97, 98, 99], **moved) == dict.fromkeys((97, 98, 99), (2, 2))
    assert doubted(of, [97, 98, 99], **moved) == [True] * 3
