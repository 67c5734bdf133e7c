"""Copies of pages that no fault of their own had brought before the fork, and how many more there may be."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from blame_histories import history, pages_of
from blame_scripted import ANON, APP, PAGE, SAVE, Script
from slow_memory import Event

from wstrace.analysis.blame.history import History
from wstrace.analysis.blame.losses import page_of, space_of
from wstrace.analysis.blame.resident import keys_of
from wstrace.analysis.blame.unshared import Unshared
from wstrace.schema import (
    KIND_STACK,
    LOSS_EXECUTED,
    LOSS_FORKED,
    LOSS_PERHAPS_UNMAPPED,
    LOSS_POPULATED,
    LOSS_UNMAPPED,
    PAGE_EXCLUSIVE,
)
from wstrace_exporters.console.unshared_tables import answer, perhaps

FORK = Event(LOSS_FORKED, 2, other=1)


def fault(pid: int, page: int) -> Event:
    return Event(0, pid, page, page + 1)


def copied(of: History) -> list[int]:
    """The events that copied a page."""
    return sorted((of.faults.time[of.copies.faults] // np.uint64(10) - np.uint64(1)).tolist())


def test_what_is_unmapped_of_a_file_leaves_the_pages_that_were_written_of_it():
    gone = Event(LOSS_PERHAPS_UNMAPPED, 2, 0, 8), Event(LOSS_PERHAPS_UNMAPPED, 1, 0, 8)
    assert copied(history([fault(1, 3), FORK, *gone, fault(2, 3), fault(1, 3)])) == [4]
    assert copied(history([fault(1, 3), FORK, *gone, fault(1, 3), fault(2, 3)])) == [4]


def test_a_fork_is_told_of_each_copy_whatever_began_the_life_of_its_page():
    gone = Event(LOSS_PERHAPS_UNMAPPED, 2, 0, 8)
    of = history([fault(1, 3), FORK, Event(LOSS_FORKED, 3, other=1), gone, fault(2, 3)])
    assert of.losses.rows.space[of.losses.row[of.copies.fork]].tolist() == [2]


def test_what_an_exec_wrote_on_the_stack_was_there():
    begun = [Event(LOSS_EXECUTED, 1), fault(1, 20)]
    of = history([*begun, FORK, fault(1, 22), fault(2, 22), fault(2, 19)], kind=KIND_STACK)
    assert copied(of) == [3], "19 is below where the program began: it is new"
    of = history([Event(LOSS_EXECUTED, 1), FORK, fault(2, 22)], kind=KIND_STACK)
    assert copied(of) == [], "where it began is not known"


def test_what_was_populated_was_there():
    asked = [Event(LOSS_POPULATED, 1, 3, 6), FORK, fault(2, 3), fault(1, 3), fault(1, 5), fault(2, 5), fault(2, 7)]
    assert copied(history(asked)) == [2, 4]
    late = [FORK, Event(LOSS_POPULATED, 1, 3, 6), fault(2, 3), fault(1, 3)]
    assert copied(history(late)) == [], "behind the fork"


def test_pages_beside_the_only_one_that_was_touched_may_have_come_with_a_huge_page():
    written = [fault(2, 600), fault(1, 600), fault(1, 601), fault(2, 1500)]
    of = history([fault(1, 700), FORK, *written])
    assert (copied(of), of.perhaps_copied) == ([], 2)
    of = history([fault(1, 700), fault(1, 701), FORK, *written])
    assert (copied(of), of.perhaps_copied) == ([], 0), "two were touched: there was no huge page"
    of = history([FORK, fault(1, 700), *written])
    assert (copied(of), of.perhaps_copied) == ([], 0), "the huge page came behind the fork"


def test_a_page_that_a_snapshot_shows_without_a_fault_proves_the_huge_page():
    events = [fault(1, 700), FORK, fault(2, 600), fault(1, 600), fault(1, 601)]
    of = history(events, seen=[pages_of(1, [600, 601, 602, 700], 1000)])
    assert (copied(of), of.perhaps_copied) == ([2, 4], 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_only_page_that_was_brought_in_a_range_is_found_as_by_looking_at_each_fault(seed: int) -> None:
    chance = np.random.default_rng(seed)
    events = []
    for _ in range(60):
        pid, page = chance.integers(1, 4), 512 * chance.integers(4) + chance.integers(3)
        what = LOSS_UNMAPPED if chance.random() < 0.3 else 0
        events.append(Event(what, int(pid), int(page), int(page) + 1))
    faults = history(events).faults
    low = np.repeat(np.append(np.unique(faults.key >> np.uint64(9) << np.uint64(9)), np.uint64(1) << np.uint64(60)), 40)
    since, until = (chance.integers(0, 700, len(low)).astype(np.uint64) for _ in range(2))
    expected = []
    for range_, begin, end in zip(low, since, until, strict=True):
        of_range = (
            (faults.key >> np.uint64(9) << np.uint64(9) == range_) & (begin <= faults.time) & (faults.time <= end)
        )
        rows = np.flatnonzero(of_range & faults.brings)
        alone = len(set(faults.key[rows].tolist())) == 1
        expected.append(int(rows[np.argmin(faults.time[rows])]) if alone else -1)
    assert faults.alone(low, 9, since, until).tolist() == expected
    assert max(expected) >= 0 > min(expected)


def test_many_forks_of_a_range_that_is_mapped_again_and_again_take_no_memory_for_each_pair() -> None:
    events, gone = [], Event(LOSS_UNMAPPED, 1, 0, 512)
    for child in range(2, 602):
        events += [*(fault(1, page) for page in range(8)), Event(LOSS_FORKED, child, other=1), fault(child, 9), gone]
    tracemalloc.start()
    try:
        of = history(events)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (copied(of), of.perhaps_copied) == ([], 0)
    assert peak < 40_000_000, "600 forks times 4,800 faults of 8 bytes in several columns are 200 MB"


def test_unshared_tells_how_much_more_it_may_be():
    huge = ANON + (-ANON) % (1 << 21)
    script = Script()
    script.fault(10, huge + 9 * PAGE, APP)
    script.lose(20, LOSS_FORKED, 8, other=7)
    for page in range(3):
        script.fault(30 + page, huge + page * PAGE, SAVE, pid=8)
    script.snapshot(100, (huge + 9 * PAGE, 1, PAGE_EXCLUSIVE))
    told = Unshared(script.blame())
    assert (told.total, told.perhaps, told.at_least) == (0, 3 * PAGE, True)
    assert told.as_dict(["line"])["perhaps"] == {"bytes": 3 * PAGE, "pages": 3}
    assert answer(told) == f"what was un-shared is not known: {perhaps(told)}"


def test_a_run_past_the_last_page_stays_in_its_space() -> None:
    runs = {"space": np.array([1, 0]), "start": np.array([(1 << 64) - 8192, 4096], "<u8"), "pages": np.array([5, 2])}
    run, keys = keys_of(runs, 4096)
    assert run.tolist() == [0] * 5 + [1] * 2
    assert space_of(keys).tolist() == [1] * 5 + [0] * 2
    assert page_of(keys).tolist()[-2:] == [1, 2]
    assert (np.diff(page_of(keys[:5]).astype(np.int64)) >= 0).all()
