"""Which fault brought each page of a file: windows, folios, and what was unmapped unseen."""

from __future__ import annotations

import pytest
from blame_histories import doubted, history, pages_of, told
from slow_memory import Event

from wstrace.analysis.blame.bringers import BEFORE, NOT_SEEN, WINDOW
from wstrace.schema import KIND_FILE, LOSS_DISCARDED, LOSS_PERHAPS_UNMAPPED


@pytest.mark.parametrize("noticed", [False, True], ids=["read only", "written back"])
def test_a_page_of_a_file_that_faults_again_may_have_been_unmapped_unseen(noticed):
    """Reclaim unmaps what it then keeps in the page cache, such as dirty pages, and no record tells it."""
    mapped = {"mapping": (0, 16, 0), "noticed": noticed}
    faults = [Event(0, 1, 3, 4)] * 3
    of = history(faults[:2], kind=KIND_FILE, places={0: 7, 1: 8})
    assert told(of, 1, [3], **mapped) == {3: (0, 1)}
    assert doubted(of, [3], **mapped) == [False]
    assert told(history(faults, kind=KIND_FILE, places={1: 8}), 1, [3], time=25, **mapped) == {3: (0, 1)}, "by then"
    for places, one, other, doubt in (({}, 0, 0, False), ({2: 8}, 0, 8, False), ({0: 7, 1: 8, 2: 9}, 7, 9, True),
                                      ({1: 8}, 0, 0, True)):  # fmt: skip
        of = history(faults, kind=KIND_FILE, places=places)
        assert [places.get(fault, 0) for fault in told(of, 1, [3], **mapped)[3]] == [one, other], places
        assert doubted(of, [3], **mapped) == [doubt], places


@pytest.mark.parametrize("noticed", [False, True], ids=["read only", "written back"])
def test_what_was_perhaps_unmapped_may_have_come_again_with_its_neighbours(noticed):
    """A folio of which a part is punched is unmapped as a whole; the rest of it stays in the page cache."""
    events = [Event(0, 1, 3, 4), Event(LOSS_PERHAPS_UNMAPPED, 1, 0, 8), Event(0, 1, 5, 6)]
    of = history(events, kind=KIND_FILE, places={0: 7, 2: 8})
    mapped = {"mapping": (0, 14, 0), "noticed": noticed}
    assert told(of, 1, [3, 5, 6], **mapped) == dict.fromkeys((3, 5, 6), (0, 2))
    assert told(history(events[:2], kind=KIND_FILE), 1, [3, 5], **mapped) == dict.fromkeys((3, 5), (0, 0))
    assert told(history(events[:2]), 1, [3]) == {3: (0, 0)}, "what a process wrote itself stays"


def test_a_folio_that_lies_across_two_windows_may_have_come_with_either():
    """Measured on 6.18: the fault on 29 mapped the folio 28 ... 43, that on 45 what was not there of its window."""
    events = [Event(0, 1, 29, 30), Event(0, 1, 45, 46)]
    mapped, whole = {"mapping": (12, 60, 0)}, list(range(12, 48))
    of = history(events, kind=KIND_FILE, places={0: 7, 1: 8})
    sure = dict(zip(whole, (not one for one in doubted(of, whole, **mapped)), strict=True))
    assert [page for page in range(32, 44) if sure[page]] == []
    assert [sure[page] for page in (29, 30, 45)] == [True] * 3
    assert told(of, 1, whole, **mapped)[36] == (1, 1)
    # a fault in that folio behind the other one says that it was not there as a whole
    later = [*events, Event(0, 1, 38, 39)]
    found = doubted(history(later, kind=KIND_FILE, places={0: 7, 1: 8, 2: 8}), whole, **mapped)
    assert not found[whole.index(36)]


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


def test_what_came_behind_a_write_hides_nothing_that_was_there_before_it():
    four = [Event(0, 1, 34, 35), Event(0, 1, 38, 39), Event(0, 1, 37, 38), Event(0, 1, 39, 40)]
    mapped = {"mapping": (32, 64, 0), "noticed": True}
    for places, doubt in (({0: 7, 1: 8, 2: 7, 3: 9}, False), ({0: 6, 1: 8, 2: 7, 3: 9}, True)):
        of = history(four, kind=KIND_FILE, places=places)
        for resident in ([34, 37, 38, 39], list(range(32, 64))):  # with and without a larger folio
            assert told(of, 1, resident, **mapped)[37] == (0 if doubt else 1, 2), places
            assert doubted(of, resident, **mapped)[resident.index(37)] is doubt, places


def test_a_page_that_faulted_twice_behind_one_beside_it_has_three_that_may_have_brought_it():
    """Its first fault may be a write to what came with the neighbour, or have brought it; so may its second one."""
    three = [Event(0, 1, 38, 39), Event(0, 1, 37, 38), Event(0, 1, 37, 38)]
    mapped = {"mapping": (32, 64, 0), "noticed": True}
    for places, doubt in (({0: 7, 1: 8, 2: 9}, True), ({0: 7, 1: 8, 2: 8}, False), ({0: 7, 1: 7, 2: 9}, False)):
        of = history(three, kind=KIND_FILE, places=places)
        assert doubted(of, [37, 38], **mapped)[0] is doubt, places


def test_larger_pages_have_smaller_windows_and_larger_tables():
    """arm64: 64 KiB are 4 pages of 16 KiB, or one of 64 KiB; a huge page has 2,048 of them, or 8,192."""
    for page_size, around in ((16384, {41, 43}), (65536, {41})):
        of = history([Event(0, 1, 41, 42)], kind=KIND_FILE, page_size=page_size)
        resident = [page for page in range(32, 64) if page not in (40, 42)]  # so no folio was mapped whole
        assert set(told(of, 1, resident, mapping=(32, 64, 0))) == around
        of = history([Event(0, 1, 7, 8)], page_size=page_size)
        whole = list(range(page_size // 8))
        assert told(of, 1, [*whole, len(whole)], huge=True) == dict.fromkeys(whole, (0, 0))


def test_a_window_is_as_large_as_the_machine_of_the_trace_had_it():
    holed = [page for page in range(1000, 1300) if page % 2]  # so no folio was mapped whole
    for around, pages in ((4096, {1101}), (1 << 14, {1101, 1103}), (1 << 16, set(range(1089, 1104, 2))),
                          (1 << 20, set(range(1025, 1280, 2)))):  # fmt: skip
        of = history([Event(0, 1, 1101, 1102)], kind=KIND_FILE, around=around)
        assert set(told(of, 1, holed, mapping=(1000, 1300, 0))) == pages, around


def test_a_write_maps_its_own_page_alone_so_that_a_larger_folio_may_have_brought_the_others():
    two = [Event(0, 1, 33, 34), Event(0, 1, 50, 51)]
    of, mapping, resident = history(two, kind=KIND_FILE, places={0: 7, 1: 8}), (32, 64, 0), list(range(32, 64))
    assert doubted(of, resident, mapping=mapping) == [False] * 32, "what can only be read is mapped with its window"
    found = doubted(of, resident, mapping=mapping, writable=True)
    assert [page for page, one in zip(resident, found, strict=True) if not one] == [33, 50]


def test_pages_in_the_first_window_of_a_mapping_ask_for_their_own_ends():
    faults = [Event(0, 1, 10, 11), Event(0, 1, 17, 18)]
    of = history(faults, kind=KIND_FILE, places={0: 7, 1: 8})
    assert told(of, 1, [10, 11, 16, 17], mapping=(10, 64, 0)) == {10: (0, 0), 11: (0, 0), 16: (0, 1), 17: (1, 1)}


def test_of_three_places_that_may_have_brought_a_page_two_are_told_with_a_doubt():
    three = [Event(0, 1, 33, 34), Event(0, 1, 35, 36), Event(0, 1, 37, 38)]
    for places, doubt in (({0: 7, 1: 8, 2: 9}, True), ({0: 7, 1: 8, 2: 7}, False)):
        of = history(three, kind=KIND_FILE, places=places)
        assert doubted(of, [33, 34, 35, 37], mapping=(32, 64, 0))[1] is doubt
