"""The owner of each page, beside an obvious model that applies all events in order of time."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.blame_histories import history, owned
from kit.slow_memory import HUGE, LOSSES, PAGES, Event, Memory

from wstrace.schema import (
    FAULT_ACCESS_KNOWN,
    FAULT_MAJOR,
    FAULT_WRITE,
    KIND_FILE,
    LOSS_DISCARDED,
    LOSS_FORKED,
    LOSS_LAZILY_FREED,
    LOSS_MOVED,
)

PIDS = 4


def events() -> st.SearchStrategy[list[Event]]:
    pid, page = st.integers(0, PIDS - 1), st.integers(0, PAGES - 1)
    span = st.tuples(page, st.integers(1, 5)).map(lambda one: (one[0], min(one[0] + one[1], PAGES)))
    fault = st.builds(lambda p, a, n: Event(0, p, a, a + n), pid, page, st.sampled_from([1, 1, 1, HUGE]))
    loss = st.builds(lambda what, p, s: Event(what, p, *s), st.sampled_from(LOSSES), pid, span)
    fork = st.builds(lambda p, other: Event(LOSS_FORKED, p, other=other), pid, pid).filter(lambda e: e.pid != e.other)
    move = st.builds(lambda p, s, to: Event(LOSS_MOVED, p, *s, to=to), pid, span, page).filter(
        lambda e: (e.to >= e.end and e.to + e.end - e.start <= PAGES) or e.to + e.end - e.start <= e.start
    )
    return st.lists(st.one_of(fault, fault, fault, fault, loss, fork, move), min_size=1, max_size=60)


@settings(max_examples=300, deadline=None)
@given(events())
@example([Event(0, 1, 3, 4), Event(LOSS_MOVED, 1, 3, 4, to=7), Event(0, 1, 7, 8)])
@example([Event(0, 1, 3, 4), Event(LOSS_FORKED, 2, other=1), Event(0, 2, 3, 4), Event(0, 1, 3, 4)])
@example([Event(0, 1, 3, 4), Event(LOSS_FORKED, 2, other=1), Event(LOSS_LAZILY_FREED, 1, 3, 4), Event(0, 1, 3, 4)])
def test_owners_and_copies_are_those_of_an_obvious_model(all_events):
    model = Memory().run(all_events)
    fast = history(all_events, huge=model.huge, span=HUGE.bit_length() - 1)
    for pid in range(PIDS):
        known = model.bringers(pid)
        found = owned(fast, pid, sorted(known))
        assert found.keys() == known.keys()
        for page, (owner, estimated) in found.items():
            assert estimated or known[page] == (owner, owner), (pid, page)
    event = (fast.faults.time // np.uint64(10)).astype(np.intp) - 1
    assert sorted(event[fast.copies.faults].tolist()) == sorted(model.copies)


def test_a_page_of_zeros_is_not_resident_and_its_first_write_brings():
    read, write = FAULT_ACCESS_KNOWN, FAULT_ACCESS_KNOWN | FAULT_WRITE
    both = [Event(0, 1, 3, 4), Event(0, 1, 3, 4)]
    assert owned(history(both, kinds={0: read, 1: write}), 1, [3]) == {3: (1, False)}
    assert owned(history(both, kinds={0: write, 1: write}), 1, [3]) == {3: (0, False)}
    assert owned(history(both), 1, [3]) == {3: (1, True)}, "the first one probably read"
    assert owned(history(both, kinds={1: FAULT_MAJOR}), 1, [3]) == {3: (0, False)}, "it was swapped in again"


def test_a_page_of_a_file_is_the_last_ones_and_a_private_copy_of_it_the_writers():
    both, mapping = [Event(0, 1, 3, 4), Event(0, 1, 3, 4)], (0, 16, 0)
    assert owned(history(both, KIND_FILE), 1, [3], mapping=mapping) == {3: (1, True)}, "it had left, unrecorded"
    assert owned(history(both, KIND_FILE, {1: FAULT_MAJOR}), 1, [3], mapping=mapping)[3][0] == 1
    assert owned(history(both, KIND_FILE), 1, [3]) == {3: (1, False)}, "not a page of the file any more"
    assert owned(history(both, KIND_FILE), 1, [3], mapping=mapping, noticed=True) == {3: (0, True)}, "a first write"
    one = history(both[:1], KIND_FILE)
    assert owned(one, 1, [3], mapping=mapping) == {3: (0, False)}, "a record decided"
    assert owned(one, 1, [3], mapping=mapping, noticed=True) == {3: (0, True)}, "or it was there, and is written to"


@pytest.mark.parametrize(("page", "owner"), [(8, 0), (15, 0), (17, 1), (40, 1), (600, None)])
def test_a_page_of_a_file_comes_with_the_earliest_fault_in_its_window_then_in_its_folio(page, owner):
    of = history([Event(0, 1, 3, 4), Event(0, 1, 20, 21)], KIND_FILE)
    found = owned(of, 1, [page], mapping=(0, 1024, 0))
    assert found == ({} if owner is None else {page: (owner if page < 32 else 0, True)})


def test_a_page_of_a_huge_page_is_its_faults_also_where_it_was_split():
    one = Event(0, 1, 3, 4)
    assert owned(history([one], huge={0}), 1, [3, 9, 511, 512]) == {3: (0, False), 9: (0, False), 511: (0, False)}
    assert owned(history([one]), 1, [9]) == {}, "a base page"
    split = [one, Event(LOSS_DISCARDED, 1, 5, 6), Event(0, 1, 5, 6)]
    assert owned(history(split, huge={0}), 1, [3, 5, 9]) == {3: (0, False), 5: (2, False), 9: (0, False)}
    fork = [one, Event(LOSS_FORKED, 2, other=1), Event(0, 2, 5, 6)]
    assert owned(history(fork, huge={0}), 2, [3, 5, 9]) == {3: (0, False), 5: (2, False), 9: (0, False)}
    assert len(history(fork, huge={0}).copies.faults) == 1
    rewritten = [one, Event(LOSS_FORKED, 2, other=1), Event(0, 1, 5, 6)]
    assert owned(history(rewritten, huge={0}), 1, [3, 5, 9]) == {3: (0, False), 5: (0, True), 9: (0, False)}
    zeros = [one, Event(0, 1, 5, 6)]
    assert owned(history(zeros, huge={0, 1}), 1, [3, 5, 9]) == {3: (1, True), 5: (1, True), 9: (1, True)}
    assert owned(history(zeros, huge={1}), 1, [3, 9]) == {3: (0, False)}, "put together by the kernel"


def test_a_page_of_zeros_that_was_moved_or_read_in_a_child_is_perhaps_the_writers():
    moved = [Event(0, 1, 3, 4), Event(LOSS_MOVED, 1, 3, 4, to=7), Event(0, 1, 7, 8)]
    assert owned(history(moved), 1, [7]) == {7: (2, True)}
    child = [Event(LOSS_FORKED, 2, other=1), Event(0, 2, 3, 4), Event(0, 2, 3, 4)]
    assert owned(history(child), 2, [3]) == {3: (2, True)}


def test_what_a_child_read_before_it_forked_itself_is_perhaps_the_writers():
    child = [Event(LOSS_FORKED, 2, other=1), Event(0, 2, 3, 4), Event(LOSS_FORKED, 3, other=2), Event(0, 2, 3, 4)]
    assert owned(history(child), 2, [3]) == {3: (1, True)}, "the page of zeros, or its own that it wrote"
    assert owned(history([Event(0, 1, 3, 4), *child]), 2, [3]) == {3: (2, False)}, "copied: the parent had it"


def test_what_a_child_writes_of_memory_that_its_parent_has_moved_is_an_estimate():
    moved = [Event(0, 1, 3, 4), Event(LOSS_FORKED, 2, other=1), Event(LOSS_MOVED, 1, 3, 4, to=7), Event(0, 2, 3, 4)]
    assert owned(history(moved), 2, [3])[3][1], "a copy while the parent has it there"


def test_what_a_child_writes_that_nobody_else_has_any_more_is_perhaps_what_its_parent_only_read():
    gone = [Event(0, 1, 3, 4), Event(LOSS_FORKED, 2, other=1), Event(LOSS_DISCARDED, 1, 0, 512), Event(0, 2, 3, 4)]
    assert owned(history(gone), 2, [3]) == {3: (0, True)}, "the page of zeros, or the parent's own that it left"
    assert owned(history(gone, huge={0, 3}), 2, [3, 9]) == {3: (0, True), 9: (0, True)}
    assert owned(history([*gone, Event(0, 1, 3, 4)]), 1, [3]) == {3: (4, False)}


def test_a_huge_page_behind_a_move_and_a_fork_is_no_copy():
    moved = [Event(0, 1, 3, 4), Event(LOSS_MOVED, 1, 0, 512, to=1024), Event(LOSS_FORKED, 2, other=1)]
    written = history([*moved, Event(0, 1, 1027, 1028)], huge={0, 3})
    assert owned(written, 1, [1027, 1030]) == {1027: (3, True), 1030: (3, True)}, "read first, as far as is known"


def test_lazily_freed_pages_stay_unless_they_are_written_again():
    freed = [Event(0, 1, 3, 4), Event(LOSS_LAZILY_FREED, 1, 0, 8)]
    assert owned(history(freed), 1, [3]) == {3: (0, True)}
    assert owned(history([*freed, Event(0, 1, 3, 4)]), 1, [3]) == {3: (2, True)}
