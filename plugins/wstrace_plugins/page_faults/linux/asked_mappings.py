"""Mappings of processes that ran before the trace: only those that a fault lies in are asked for.

A node has thousands of such processes, which fault now and then. All mappings of one take a millisecond to read, and
tens of KiB from here to the file; a fault touches two of them. A process is listed as a whole once it forks, as its
child inherits what it has, and when it faults much or in many mappings.

An answer is what lies there now, and the fault is up to a second old. So records come first: where they have told what
lay there nothing is asked, and where they have told of a change since the fault nobody knows what lay there before it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from wstrace.errors import Unavailable
from wstrace_plugins.os.linux.procmap_query import Answer, Question
from wstrace_plugins.page_faults.linux.calls import Call, pages

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Past so many faults at a time, or so many mappings, a process is listed.
_MOST_FAULTS, _MOST_MAPPINGS = 256, 32
_KERNEL_START, _PAGE_BITS = 1 << 63, 12
_COLUMNS = ("pid", "time_ns", "va", "pc")


class Told(NamedTuple):
    """What is known of the addresses [start, end) since a time in ns.

    known: what lies there, be it nothing; else only that something else lay there before.
    """

    time_ns: int
    start: int
    end: int
    known: bool = True


def changed_by(call: Call) -> list[Told]:
    """The addresses at which munmap() and mremap() change what lies there; of mremap() last those of what it moved."""
    if call.name == "munmap":
        start, length = call.arguments
        return [Told(call.entered_ns, start, start + pages(length))]
    if call.name != "mremap":
        return []
    start, old, new, _ = call.arguments
    old, new, now = pages(old), pages(new), call.result
    if now == start:
        return [Told(call.returned_ns, start + min(old, new), start + max(old, new), known=new < old)]
    return [Told(call.entered_ns, start, start + old), Told(call.returned_ns, now, now + new, known=False)]


class Place(NamedTuple):
    """The addresses [start, end) around one, of which the same is known, and since when it is to be asked of them."""

    time_ns: int
    start: int
    end: int


class Asking(Protocol):
    """Who is told of the answers: the side band."""

    def asked_for(self, pid: int, place: Place, there: Answer) -> None:
        """Adds one mapping of a process of which only some are known, as far as it lies in that place."""

    def list_whole(self, pid: int) -> None:
        """Adds all mappings of a process of which only some are known. Raises Unavailable: it has ended."""

    def coming(self, pid: int) -> list[Told]:
        """What a process has mapped, as told by records that are not yet given out."""


class AskedMappings:
    """The processes of which only some mappings are known, and where these lie.

    wanted: whether there are to be any; else each is listed when it is met.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._told: dict[int, list[Told]] = {}
        self._since: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._answered: dict[int, set[int]] = {}  # the last pages that were looked for and are known
        self._large: set[int] = set()  # processes with so many mappings that they are to be listed

    def __contains__(self, pid: int) -> bool:
        return pid in self._told

    def begin(self, pid: int, time_ns: int) -> None:
        """A process is known since that time, and none of its mappings."""
        self.end(pid)
        self._told[pid], self._since[pid] = [], time_ns
        self._begun[pid] = time_ns

    def faulted(self, pid: int, time_ns: int) -> None:
        """It had faults since that time, if not earlier: often it is met by a record that is later than the first."""
        if pid in self._since:
            self._since[pid] = min(self._since[pid], time_ns)

    def times(self, pid: int, time_ns: int) -> list[int]:
        """When to tell of what lay somewhere since then: of what was there before the process was known, then again."""
        return sorted({time_ns, max(time_ns, self._begun[pid])})

    def partly(self, pid: int) -> bool:
        """Whether some mappings of a process may not be known, even if it was listed later."""
        return pid in self._begun

    def forked(self, pid: int, ppid: int, time_ns: int) -> None:
        """A child has what its parent had, of which some may not be known."""
        if ppid in self._begun:
            self._begun[pid] = time_ns

    def add(self, pid: int, told: Told) -> None:
        """A record or an answer has told of some of its addresses."""
        if (before := self._told.get(pid)) is not None:
            if len(before) <= _MOST_MAPPINGS:  # else it is listed soon
                before[:] = (one for one in before if one.start < told.start or told.end < one.end)
            before.append(told)
            self._answered.pop(pid, None)
            if len(before) > _MOST_MAPPINGS:
                self._large.add(pid)

    def _known(self, pid: int, address: int) -> bool:
        """Whether it is known what lies at an address. Most faults are where others were: these are found at once."""
        answered, page = self._answered.setdefault(pid, set()), address >> _PAGE_BITS
        if page in answered or address >= _KERNEL_START:
            return True
        there = max((one for one in self._told[pid] if one.start <= address < one.end), default=None)
        if there is None or not there.known:
            return False
        if len(answered) >= _MOST_MAPPINGS:
            answered.clear()
        answered.add(page)
        return True

    def place(self, pid: int, time_ns: int, address: int, coming: list[Told]) -> Place | None:
        """Where to ask what lay at an address at that time; None where it is known, or not to be known any more."""
        told = [*self._told[pid], *coming]
        there = max((one for one in told if one.start <= address < one.end), default=None)
        if address >= _KERNEL_START or (there is not None and (there.known or there.time_ns > time_ns)):
            return None
        bounds = [bound for one in told for bound in (one.start, one.end)]
        low = max((bound for bound in bounds if bound <= address), default=0)
        high = min((bound for bound in bounds if bound > address), default=_KERNEL_START)
        return Place(self._since[pid] if there is None else there.time_ns, low, high)

    def untold(self, pid: int, columns: dict[str, NDArray[Any]], coming: list[Told]) -> dict[str, NDArray[Any]]:
        """Of a listing (columns start, end, offset, ino ...) what nothing else has told, with time_ns: since when."""
        told = sorted([*self._told[pid], *coming])
        bounds = np.array([(one.start, one.end) for one in told], "<u8").reshape(-1, 2)
        cuts = np.unique(np.concatenate((columns["start"], columns["end"], bounds.ravel())))
        last = np.full(len(cuts), -1)
        for number, (low, high) in enumerate(cuts.searchsorted(bounds).tolist()):
            last[low:high] = number
        since = np.array([one.time_ns for one in told] + [self._since[pid]], "<u8")[last]
        row = columns["start"].searchsorted(cuts, "right") - 1
        free = (row >= 0) & ~np.array([*(one.known for one in told), False])[last]
        free[free] = cuts[free] < columns["end"][row[free]]  # a process that has just ended has no mappings, so no row
        found = {name: column[row[free]] for name, column in columns.items()}
        moved = cuts[free] - found["start"]
        found["offset"] = found["offset"] + np.where(found["ino"] > 0, moved, np.uint64(0))
        found["start"], found["end"], found["time_ns"] = cuts[free], np.append(cuts[1:], cuts[-1:])[free], since[free]
        return found

    def end(self, pid: int) -> None:
        """Nothing more is to be asked of a process."""
        self._told.pop(pid, None)
        self._since.pop(pid, None)
        self._answered.pop(pid, None)
        self._large.discard(pid)

    def forget(self, pid: int) -> None:
        """A process has ended, or has executed another program."""
        self.end(pid)
        self._begun.pop(pid, None)

    def ask(self, side: Asking, pids: list[int], columns: dict[str, NDArray[Any]]) -> bool:
        """Tells the side band in which mappings the faults lie; returns whether there is anything new.

        Args:
            side: the side band.
            pids: the processes that have faulted, ascending.
            columns: the faults in order of time, with pid, time_ns, va and pc.
        """
        much = set(self._large)
        mine = [pid for pid in pids if pid in self._told]
        rows = np.flatnonzero(np.isin(columns["pid"], mine)) if mine else np.zeros(0, np.intp)
        own, counts = np.unique(columns["pid"][rows], return_counts=True)
        much |= {pid for pid, n in zip(own.tolist(), counts.tolist(), strict=True) if n > _MOST_FAULTS}
        for pid in mine:
            self.faulted(pid, int(columns["time_ns"][np.argmax(columns["pid"] == pid)]))
        for pid in much:
            _list(side, pid)
        if much:
            rows = rows[~np.isin(columns["pid"][rows], list(much))]
        missing: dict[int, list[tuple[int, int]]] = {}
        for pid, time_ns, *both in zip(*(columns[name][rows].tolist() for name in _COLUMNS), strict=True):
            for address in both:
                if not self._known(pid, address) and self.place(pid, time_ns, address, []) is not None:
                    missing.setdefault(pid, []).append((time_ns, address))
        for pid, asked in missing.items():
            self._ask(side, pid, asked)
        return bool(much or missing)

    def _ask(self, side: Asking, pid: int, missing: list[tuple[int, int]]) -> None:
        try:
            with Question(pid) as question:
                coming = side.coming(pid)
                for time_ns, address in missing:
                    place = self.place(pid, time_ns, address, coming)
                    if place is not None and (there := question.ask(address)) is not None:
                        side.asked_for(pid, place, there)
        except Unavailable:  # before Linux 6.11, or it has ended
            _list(side, pid)


def _list(side: Asking, pid: int) -> None:
    with suppress(Unavailable):  # it has ended
        side.list_whole(pid)
