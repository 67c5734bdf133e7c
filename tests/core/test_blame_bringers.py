"""Which fault brought each page: as an obvious model says that applies all events in order of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slow_memory import LOSSES, PAGES, Event, Memory

from wstrace.analysis.blame.bringers import HUGE, KHUGEPAGED, NOT_SEEN, WINDOW, Found, PageRows
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
    LOSS_DISCARDED,
    LOSS_EXECUTED,
    LOSS_FORKED,
    LOSS_LAZILY_FREED,
    LOSS_MOVED,
    LOSS_UNMAPPED,
)

PIDS = 4
END = 1 << 52  # past all pages


def history(events: list[Event], flags: int = 0, kind: int = KIND_ANON, kinds: dict[int, int] | None = None) -> History:
    """Of events at the times 10, 20, 30 ...; kinds: event -> flags of that fault."""
    times = np.arange(1, len(events) + 1, dtype=np.uint64) * np.uint64(10)
    rows = [(number, event) for number, event in enumerate(events) if not event.what]
    at = np.array([number for number, _ in rows], np.intp)
    key = key_of(np.array([e.pid for _, e in rows], np.intp), np.array([e.start for _, e in rows], np.uint64))
    told = np.array([(kinds or {}).get(number, flags) for number, _ in rows], np.uint8)
    faults = FaultRows(key, times[at], told, np.full(len(rows), kind, np.uint8))
    lost = [(number, event) for number, event in enumerate(events) if event.what]
    whole = [e.what in (LOSS_EXECUTED, LOSS_FORKED) for _, e in lost]
    losses = LossRows(
        times[np.array([number for number, _ in lost], np.intp)],
        np.array([e.pid for _, e in lost], np.intp),
        np.array([e.what for _, e in lost], np.uint8),
        np.array([0 if all_ else e.start for all_, (_, e) in zip(whole, lost, strict=True)], np.uint64),
        np.array([END if all_ else e.end for all_, (_, e) in zip(whole, lost, strict=True)], np.uint64),
        np.array([e.to for _, e in lost], np.uint64),
        np.array([e.other for _, e in lost], np.intp),
    )
    return History(faults, np.full(len(rows), kind == KIND_ANON), losses, no_ends(), pages_of(0, [], 0))


def pages_of(
    pid: int, pages: list[int], time: int, *, huge: bool = False, mapping: tuple[int, int, int] | None = None
) -> PageRows:
    """Resident pages of a process; mapping: its first page, the one past it, and the page of the file."""
    n = len(pages)
    low, high, offset = (np.full(n, value, np.uint64) for value in mapping or (0, 0, 0))
    key = key_of(np.full(n, pid, np.intp), np.array(pages, np.uint64))
    return PageRows(key, np.full(n, time, np.uint64), np.full(n, mapping is not None), np.full(n, huge), low, high,
                    offset)  # fmt: skip


def told(of: History, pid: int, pages: list[int], time: int = 1 << 40, **how) -> dict[int, tuple[int, int]]:
    """page -> the numbers of the events that may have brought it, of those whose bringer is known."""
    found: Found = of.bringers(pages_of(pid, pages, time, **how))
    event = (of.faults.time // np.uint64(10)).astype(np.intp) - 1
    return {page: (int(event[a]), int(event[b]))
            for page, a, b in zip(pages, found.first.tolist(), found.second.tolist(), strict=True) if a >= 0}  # fmt: skip


def events() -> st.SearchStrategy[list[Event]]:
    pid, page = st.integers(0, PIDS - 1), st.integers(0, PAGES - 1)
    span = st.tuples(page, st.integers(1, 5)).map(lambda one: (one[0], min(one[0] + one[1], PAGES)))
    fault = st.builds(lambda p, a: Event(0, p, a, a + 1), pid, page)
    loss = st.builds(lambda what, p, s: Event(what, p, *s), st.sampled_from(LOSSES), pid, span)
    fork = st.builds(lambda p, other: Event(LOSS_FORKED, p, other=other), pid, pid).filter(lambda e: e.pid != e.other)
    move = st.builds(lambda p, s, to: Event(LOSS_MOVED, p, *s, to=to), pid, span, page).filter(
        lambda e: e.to >= e.end and e.to + e.end - e.start <= PAGES or e.to + e.end - e.start <= e.start
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
