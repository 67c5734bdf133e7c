"""Instructions: numbers of the instructions that faulted, by their place in the file, wherever that is mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch
from wstrace.schema import KIND_ANON, KIND_SHIFT

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A place is the code of its file above so many bits of its offset there: 16 TiB, and a million files.
_OF_OFFSET = 44
_OFFSET = np.uint64((1 << _OF_OFFSET) - 1)
#: of a mapping that is not known this is all of an address that is the same wherever its file is mapped
_IN_PAGE, _NOT_KNOWN = np.uint64(4095), np.uint64(1 << (_OF_OFFSET - 1))
#: The numbers of the last places are in a table, each at the slot that these top bits of a product give.
_SLOTS, _MIX = 16, np.uint64(0x9E37_79B9_7F4A_7C15)


class Instructions:
    """Gives each instruction of a file a number, the same one in all processes.

    Processes have a file at different addresses, of which only the place in a page is the same, and a program has many
    instructions at each place of a page: of a postgres, 4,077 faults of `fork` were told as 8,914.

    Args:
        limit: how many mappings are known. Of further ones the place in a page is all that tells instructions apart.
        most: how many instructions are; further ones are taken for one. A program that makes its code while it runs
            may fault at a new instruction each time: with a million, sums took 260 MB, and a fault 5 us instead of 0.2.
    """

    LIMIT, MOST = 1 << 22, 1 << 18

    def __init__(self, limit: int = LIMIT, most: int = MOST) -> None:
        self._limit, self._most = limit, most
        self._moved = np.zeros(1, np.uint64)  # by the id of a mapping: what makes an address an offset in its file
        self._known = np.zeros(1, np.bool_)
        # By number: the place, and a mapping of its file.
        self._places, self._mapping = np.zeros(1, np.uint64), np.zeros(1, np.uint32)
        self._ordered, self._numbers = self._places, np.zeros(1, np.uint32)  # the places, ascending
        self._last, self._at = np.zeros(1 << _SLOTS, np.uint64), np.zeros(1 << _SLOTS, np.uint32)

    def learn(self, batch: Batch) -> None:
        """Takes mappings."""
        zero = np.zeros(len(batch), np.uint64)
        ids, start, offset, flags = (batch.columns.get(name, zero) for name in ("id", "start", "offset", "flags"))
        rows = np.flatnonzero((ids != 0) & (ids < self._limit))
        ids = ids[rows]
        if (more := int(ids.max(initial=0)) + 1 - len(self._known)) > 0:
            more = max(more, min(len(self._known), self._limit - len(self._known)))
            self._moved = np.append(self._moved, np.zeros(more, np.uint64))
            self._known = np.append(self._known, np.zeros(more, np.bool_))
        # Code without a file is no other process's, and keeps its address where its mapping is split or extended.
        anonymous = flags[rows] >> KIND_SHIFT & 15 == KIND_ANON
        self._moved[ids], self._known[ids] = np.where(anonymous, np.uint64(0), offset[rows] - start[rows]), True

    def of(self, batch: Batch) -> NDArray[np.uint32]:
        """The number of each fault's instruction; 13 to 30 ns each in batches of 5,000, 180 of 100,000 instructions."""
        pc, columns = batch["pc"].astype(np.uint64), batch.columns
        mapping = columns.get("pc_mapping", np.zeros(1, np.uint32))
        at = np.where(mapping < len(self._known), mapping, 0)
        places, known = (pc + self._moved[at]) & _OFFSET, self._known[at]
        if not known.all():
            places = np.where(known, places, pc & _IN_PAGE | _NOT_KNOWN)
        if (file := columns.get("pc_file")) is not None:
            places |= file.astype(np.uint64) << np.uint64(_OF_OFFSET)
        before = len(self._places)
        found = self._of_places(places)
        if len(self._places) > before:
            self._mapping = np.append(self._mapping, np.zeros(len(self._places) - before, np.uint32))
            new = found >= before
            self._mapping[found[new]] = np.broadcast_to(np.where(known, at, 0), len(found))[new]
        return found

    def places(self, numbers: NDArray[Any]) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """A mapping of the file of each instruction, and the offset in that file; 0 for one that is not known."""
        return self._mapping[numbers], self._places[numbers] & _OFFSET

    def _of_places(self, places: NDArray[np.uint64]) -> NDArray[np.uint32]:
        slots = (places * _MIX >> np.uint64(64 - _SLOTS)).astype(np.intp)
        found, other = self._at[slots], np.flatnonzero(self._last[slots] != places)
        if len(other):
            own, at = places[other], slots[other]
            self._last[at] = own  # of several places at a slot the last one takes it
            taken = np.zeros(len(self._last), np.bool_)
            taken[at] = True
            self._at[taken] = self._searched(self._last[taken])
            found[other], without = self._at[at], self._last[at] != own
            found[other[without]] = self._searched(own[without])
        return found

    def _searched(self, places: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """The numbers of places, of which new ones get the next."""
        new = distinct(places)
        at = self._ordered.searchsorted(new)
        there = self._ordered.take(at, mode="clip") == new
        new = new[~there][: self._most - len(self._places)]
        if len(new):
            where = self._ordered.searchsorted(new)
            self._numbers = np.insert(self._numbers, where, np.arange(len(new)) + len(self._places))
            self._ordered = np.insert(self._ordered, where, new)
            self._places = np.append(self._places, new)
        at = self._ordered.searchsorted(places)
        there = self._ordered.take(at, mode="clip") == places
        return np.where(there, self._numbers.take(at, mode="clip"), np.uint32(0))
