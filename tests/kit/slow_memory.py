"""The memory of processes as an obvious model: events applied one by one, in order of time, to a dict of pages."""

import itertools
from dataclasses import dataclass, replace
from typing import NamedTuple

from wstrace.schema import (
    LOSS_DISCARDED,
    LOSS_EXECUTED,
    LOSS_FORKED,
    LOSS_LAZILY_FREED,
    LOSS_MOVED,
    LOSS_UNMAPPED,
)

PAGES = 12
HUGE = 4  # pages of a huge page


class Event(NamedTuple):
    """A fault (what = 0) or a loss of a process: of a page, or of a range of pages.

    end: of a fault past the next page: it brings a huge page where there is nothing.
    """

    what: int
    pid: int
    start: int = 0
    end: int = 0
    to: int = 0
    other: int = 0


@dataclass
class Page:
    """What a page holds: the fault that brought it, the other fault that may have, and who holds the same page."""

    thing: int
    bringer: int
    second: int = -1
    faults: int = 0  # in this life
    brought: bool = False  # by the first fault of this life
    forks: int = 0
    freed: bool = False


class Memory:
    """All processes. After run(), `pages` says what each holds, `copies` which faults copied a shared page.

    huge: the faults that brought a huge page.
    """

    def __init__(self) -> None:
        self.pages = {}
        self.life = {}  # the loss with which the life of a page began
        self.forks = {}
        self.copies = []
        self.huge = set()
        self.brought = set()
        self._things = itertools.count(1)

    def run(self, events: list[Event]) -> "Memory":
        for number, event in enumerate(events):
            if not event.what:
                block = range(event.start // HUGE * HUGE, event.start // HUGE * HUGE + HUGE)
                if event.end > event.start + 1 and not any((event.pid, page) in self.pages for page in block):
                    self.huge.add(number)
                    for page in block:
                        self._fault(event.pid, page, number)
                else:
                    self._fault(event.pid, event.start, number)
            elif event.what == LOSS_FORKED:
                self._fork(event.pid, event.other)
            elif event.what == LOSS_MOVED:
                self._move(event)
            else:
                self._lose(event)
        return self

    def bringers(self, pid: int) -> dict[int, tuple[int, int]]:
        """page -> the faults that may have brought it, of those that are there."""
        return {page: (one.bringer, one.second if one.second >= 0 else one.bringer)
                for (whose, page), one in self.pages.items() if whose == pid}  # fmt: skip

    def _fault(self, pid: int, page: int, number: int) -> None:
        one = self.pages.get((pid, page))
        forked = self.life.get((pid, page), 0) == LOSS_FORKED
        if one is None or one.freed:
            self.pages[pid, page] = Page(next(self._things), number, -1, 1, True, self.forks.get(pid, 0))
            self.brought.add(number)
            return
        if any(other is not one and other.thing == one.thing for other in self.pages.values()):
            self.copies.append(number)
            one.thing = next(self._things)
            if forked and not one.faults:
                one.bringer, one.second = number, -1
                self.brought.add(number)
        if one.faults == 1 and one.brought and one.forks == self.forks.get(pid, 0):
            one.second = number
        one.faults += 1

    def _fork(self, pid: int, parent: int) -> None:
        self._lose(Event(LOSS_FORKED, pid, 0, PAGES))
        for (whose, page), one in list(self.pages.items()):
            if whose == parent:
                self.pages[pid, page] = replace(one, faults=0, brought=False)
        self.forks[parent] = self.forks.get(parent, 0) + 1

    def _move(self, event: Event) -> None:
        moved = {page: self.pages.pop((event.pid, page), None) for page in range(event.start, event.end)}
        self._lose(event)
        there = range(event.to, event.to + event.end - event.start)
        self._lose(event._replace(start=there.start, end=there.stop))
        for page, one in moved.items():
            if one is not None:
                new = replace(one, thing=next(self._things), faults=0, brought=False, freed=False)
                self.pages[event.pid, page - event.start + event.to] = new

    def _lose(self, event: Event) -> None:
        whole = event.what in (LOSS_EXECUTED, LOSS_FORKED)
        for page in range(PAGES) if whole else range(event.start, event.end):
            self.life[event.pid, page] = event.what
            if event.what == LOSS_LAZILY_FREED:
                if one := self.pages.get((event.pid, page)):
                    one.freed, one.thing, one.faults, one.brought = True, next(self._things), 0, False
            else:
                self.pages.pop((event.pid, page), None)


LOSSES = (LOSS_UNMAPPED, LOSS_DISCARDED, LOSS_LAZILY_FREED, LOSS_EXECUTED)
