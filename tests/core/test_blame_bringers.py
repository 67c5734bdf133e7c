"""Which fault brought each page: as an obvious model says that applies all events in order of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slow_memory import LOSSES, PAGES, Event, Memory

from wstrace.analysis.blame.bringers import BEFORE, KHUGEPAGED, NOT_SEEN, WINDOW, Found, PageRows
from wstrace.analysis.blame.faults import FaultRows
from wstrace.analysis.blame.history import History
from wstrace.analysis.blame.losses import LossRows, key_of
from wstrace.analysis.blame.sharing import no_ends
from wstrace.schema import (
    FAULT_ACCESS_KNOWN,
    FAULT_MAJOR,
    FAULT_WRITE,
    KIND_ANON,
    KIND_FILE,
    KIND_SHARED,
    LOSS_DISCARDED,
    LOSS_EXECUTED,
    LOSS_FORKED,
    LOSS_LAZILY_FREED,
    LOSS_MOVED,
    LOSS_PERHAPS,
    LOSS_UNMAPPED,
)

PIDS = 4
END = 1 << 52  # past all pages


def history(
    events: list[Event],
    flags: int = 0,
    kind: int = KIND_ANON,
    kinds: dict[int, int] | None = None,
    *,
    places: dict[int, int] | None = None,
    lossless: bool = True,
) -> History:
    """Of events at the times 10, 20, 30 ...; kinds: event -> flags of that fault; places: -> whence it came."""
    times = np.arange(1, len(events) + 1, dtype=np.uint64) * np.uint64(10)
    rows = [(number, event) for number, event in enumerate(events) if not event.what]
    at = np.array([number for number, _ in rows], np.intp)
    key = key_of(np.array([e.pid for _, e in rows], np.intp), np.array([e.start for _, e in rows], np.uint64))
    told = np.array([(kinds or {}).get(number, flags) for number, _ in rows], np.uint8)
    place = np.array([(places or {}).get(number, 0) for number, _ in rows], np.uint32)
    faults = FaultRows(key, times[at], told, np.full(len(rows), kind, np.uint8), place)
    lost = [(number, event) for number, event in enumerate(events) if event.what]
    whole = [e.what in (LOSS_EXECUTED, LOSS_FORKED, LOSS_PERHAPS) for _, e in lost]
    losses = LossRows(
        times[np.array([number for number, _ in lost], np.intp)],
        np.array([e.pid for _, e in lost], np.intp),
        np.array([e.what for _, e in lost], np.uint8),
        np.array([0 if all_ else e.start for all_, (_, e) in zip(whole, lost, strict=True)], np.uint64),
        np.array([END if all_ else e.end for all_, (_, e) in zip(whole, lost, strict=True)], np.uint64),
        np.array([e.to for _, e in lost], np.uint64),
        np.array([e.other for _, e in lost], np.intp),
    )
    copyable = np.full(len(rows), kind == KIND_ANON)
    return History(faults, copyable, losses, no_ends(), [], (np.zeros(0, np.uint64),) * 2, lossless=lossless)


def pages_of(
    pid: int,
    pages: list[int],
    time: int,
    *,
    huge: bool = False,
    mapping: tuple[int, int, int] | None = None,
    noticed: bool = False,
) -> PageRows:
    """Resident pages of a process; mapping: its first page, the one past it, and the page of the file."""
    n = len(pages)
    low, high, offset = (np.full(n, value, np.uint64) for value in mapping or (0, 0, 0))
    key = key_of(np.full(n, pid, np.intp), np.array(pages, np.uint64))
    return PageRows(key, np.full(n, time, np.uint64), np.full(n, mapping is not None), np.full(n, huge), low, high,
                    offset, np.full(n, noticed))  # fmt: skip


def told(of: History, pid: int, pages: list[int], time: int = 1 << 40, **how) -> dict[int, tuple[int, int]]:
    """page -> the numbers of the events that may have brought it, of those whose bringer is known."""
    found: Found = of.bringers(pages_of(pid, pages, time, **how))
    event = (of.faults.time // np.uint64(10)).astype(np.intp) - 1
    both = zip(pages, found.first.tolist(), found.second.tolist(), strict=True)
    return {page: (int(event[a]), int(event[b])) for page, a, b in both if a >= 0}


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
def test_bringers_and_copies_are_those_of_an_obvious_model(all_events):
    model, fast = Memory().run(all_events), history(all_events)
    for pid in range(PIDS):
        known = model.bringers(pid)
        assert told(fast, pid, sorted(known)) == known, pid
    event = (fast.faults.time // np.uint64(10)).astype(np.intp) - 1
    assert sorted(event[fast.copies.faults].tolist()) == sorted(model.copies)
    assert {int(event[at]) for at in np.flatnonzero(fast.faults.brings)} == model.brought


def test_a_page_of_zeros_is_not_resident_and_its_first_write_brings():
    read, write = FAULT_ACCESS_KNOWN, FAULT_ACCESS_KNOWN | FAULT_WRITE
    both = [Event(0, 1, 3, 4), Event(0, 1, 3, 4)]
    assert told(history(both, kinds={0: read, 1: write}), 1, [3]) == {3: (1, 1)}
    assert told(history(both, kinds={0: write, 1: write}), 1, [3]) == {3: (0, 0)}
    assert told(history(both), 1, [3]) == {3: (0, 1)}, "without knowing what was a write, either may have brought it"
    assert told(history(both, kinds={1: FAULT_MAJOR}), 1, [3]) == {3: (0, 0)}, "it was swapped in again"
    assert told(history(both[:1], flags=read), 1, [3]) == {}


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


def test_one_fault_maps_what_lies_around_it_in_the_mapping():
    of = history([Event(0, 1, 40, 41), Event(LOSS_DISCARDED, 1, 38, 39), Event(0, 1, 70, 71)], kind=KIND_FILE)
    mapped = (36, 200, 0)
    resident = [page for page in range(30, 80) if page not in (55, 62, 75)]  # so no folio was mapped whole
    found = of.bringers(pages_of(1, resident, 1000, mapping=mapped))
    how = dict(zip(resident, found.how.tolist(), strict=True))
    # the window of the fault on 40 has 16 pages and begins with the mapping, that of the one on 70 is aligned
    around = {36, 37, 39, *range(41, 52), *range(64, 80)} - {70, 75}
    assert {page for page in how if how[page] == WINDOW} == around
    assert how[38] == NOT_SEEN, "what was discarded came again without a fault that we saw"
    assert how[30] == BEFORE, "no page outside of the mapping came with one in it"


def test_a_large_folio_is_believed_where_it_is_whole():
    of = history([Event(0, 1, 100, 101)], kind=KIND_FILE)
    mapped = (100, 612, 0)  # the file's pages 0 ... 511
    assert set(told(of, 1, list(range(100, 612)), mapping=mapped)) == set(range(100, 612))
    holed = [page for page in range(100, 612) if page != 200]
    assert set(told(of, 1, holed, mapping=mapped)) == set(range(100, 164)), "the folio that page 200 would be in"


def test_a_folio_at_the_edge_of_a_window_is_mapped_whole():
    of = history([Event(0, 1, 93, 94)], kind=KIND_FILE)
    mapped = (91, 291, 475)  # as of algos.so: the window is 91 ... 106, and a folio has the file's pages 480 ... 495
    resident = list(range(91, 112))
    assert set(told(of, 1, resident, mapping=mapped)) == set(resident)
    assert set(told(of, 1, resident[:-1], mapping=mapped)) == set(range(91, 108)), "page 111 is not there"
    table = (1020, 1200, 0)  # a window ends with the page table, and nothing is mapped beyond it
    found = told(history([Event(0, 1, 1022, 1023)], kind=KIND_FILE), 1, [1021, 1022, 1023, 1025], mapping=table)
    assert set(found) == {1021, 1022, 1023}


def test_two_faults_whose_windows_hold_a_page_are_both_told():
    of = history([Event(0, 1, 33, 34), Event(0, 1, 35, 36)], kind=KIND_FILE)
    assert told(of, 1, [33, 34, 35], mapping=(32, 64, 0)) == {33: (0, 0), 34: (0, 1), 35: (1, 1)}


def test_of_three_faults_whose_windows_hold_a_page_two_of_different_places_are_told():
    three = [Event(0, 1, 33, 34), Event(0, 1, 35, 36), Event(0, 1, 37, 38)]
    resident, mapping = [33, 34, 35, 37], (32, 64, 0)
    for places, either in (({}, (0, 2)), ({0: 7, 2: 7}, (0, 1)), ({1: 7, 2: 7}, (0, 2))):
        of = history(three, kind=KIND_FILE, places=places)
        assert told(of, 1, resident, mapping=mapping)[34] == either, places
        # 36 was there when 37 was written to: the window of either fault before it may have brought it
    for places, either in (({}, (0, 2)), ({0: 7, 2: 7}, (1, 2))):
        of = history(three, kind=KIND_FILE, places=places)
        assert told(of, 1, resident, mapping=mapping, noticed=True)[37] == either, places
        # neither does a larger folio change that, where all of one is there
        whole = list(range(32, 64))
        assert told(of, 1, whole, mapping=mapping, noticed=True)[37] == either, places


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
