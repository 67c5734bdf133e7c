"""CallSites: stacks as a tree of frames, each frame once, whose rows (stream `call_site`) are given as they appear."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Batch, Dictionary, StackIds
from wstrace.schema import CALL_SITE, DTYPES, FRAME_CUT, FRAME_NONE

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: A frame is packed into 4 words, because comparing them costs a tenth of comparing 8 columns.
#: _PLACES: column -> (word, shift in bits).
_WORDS = 4
_PLACES = {
    "parent": (0, 0),
    "mapping": (0, 32),
    "offset": (1, 0),
    "function": (2, 0),
    "file": (2, 32),
    "line": (3, 0),
    "kind": (3, 32),
    "flags": (3, 40),
}
_TYPES = {column.name: np.dtype(DTYPES[column.type]) for column in CALL_SITE.columns}
#: in the index: a free slot
_FREE = -1
_FIRST_BITS = 12


class CallSites:
    """The frames of one thread's stacks, in bounded memory.

    A hash index with open addressing. Its multipliers are drawn anew for each tree, so that a traced program cannot
    choose frames that collide, and a match is decided by comparing the whole frame.

    Args:
        ids: where the ids come from: the session's (Context.stack_ids).
        strings: the dictionary that `function` and `file` are codes of.
        source: the name that the rows' batches carry.

    Attributes:
        cut: the id that every frame without room gets, and all that it calls: of a frame of which nothing is known.
        refused: how often a frame found no room.

    Raises:
        ValueError: no id is left. Trees are made when a session starts.
    """

    def __init__(self, ids: StackIds, strings: Dictionary, source: str = "") -> None:
        self._source_ids, self._strings, self._source = ids, strings, source
        # Odd and not to be guessed; from os.urandom, as numpy.random takes 6 ms of every start.
        self._multipliers = np.frombuffer(os.urandom(8 * _WORDS), "<u8") | np.uint64(1)
        self._frames = np.zeros((1 << 10, _WORDS), "<u8")
        self._ids = np.zeros(1 << 10, "<u4")
        self._index = np.full(1 << _FIRST_BITS, _FREE, "<i4")
        self._n = self._given = self.refused = 0
        self.cut = 0
        first = self.add(0, kind=FRAME_NONE, flags=FRAME_CUT)
        if self.refused:
            raise ValueError("no id of a call site is left")
        self.cut = int(first[0])

    def __len__(self) -> int:
        return self._n

    def add(
        self,
        parent: ArrayLike,
        *,
        kind: ArrayLike,
        mapping: ArrayLike = 0,
        offset: ArrayLike = 0,
        function: ArrayLike = 0,
        file: ArrayLike = 0,
        line: ArrayLike = 0,
        flags: ArrayLike = 0,
    ) -> NDArray[Any]:
        """The ids of frames, which are added where they are new: one level of the tree a call, from the root down.

        Args:
            parent: the ids of their callers, as an earlier call of this tree gave them; 0 = none.
            kind, mapping, offset, function, file, line, flags: as the columns of `call_site`; shape (n,), or one
                value for all.

        Returns:
            u32, shape (n,).
        """
        wanted = _words(parent=parent, kind=kind, mapping=mapping, offset=offset, function=function, file=file,
                        line=line, flags=flags)  # fmt: skip
        room = min(self._n + len(wanted), self._source_ids.limit)
        while 2 * room > len(self._index):
            self._grow_index()
        found = np.full(len(wanted), _FREE, "<i4")
        rows = np.arange(len(wanted))
        if self.cut:
            rows = rows[_column(wanted, "parent") != self.cut]
        slots = self._slots(wanted[rows])
        while len(rows):
            at = self._index[slots]
            if (at == _FREE).any():
                self._settle(wanted, rows[at == _FREE], slots[at == _FREE])
                at = self._index[slots]
            mine = (at != _FREE) & (self._frames[at] == wanted[rows]).all(axis=1)
            found[rows[mine]] = at[mine]
            further = ~mine & (at != _FREE)  # another frame has that slot; a free one means that there was no room
            rows, slots = rows[further], (slots[further] + 1) & (len(self._index) - 1)
        known = found != _FREE
        self.refused += len(found) - int(known.sum())
        return np.where(known, self._ids[found], np.uint32(self.cut))

    def new_rows(self) -> Batch | None:
        """The rows that came since the last call, callers first; None without any. They go before what uses them."""
        if self._given == self._n or (self._n == 1 and not self.refused):  # the row `cut` goes with those that matter
            return None
        ids, frames = self._ids[self._given : self._n].copy(), self._frames[self._given : self._n]
        self._given = self._n
        columns = {c.name: ids if c.name == "id" else _column(frames, c.name) for c in CALL_SITE.columns}
        return Batch(CALL_SITE, columns, source=self._source, strings=self._strings)

    def _slots(self, frames: NDArray[Any]) -> NDArray[np.intp]:
        """Where the search for each frame begins in the index: the upper bits of a multilinear hash."""
        hashes = (frames * self._multipliers).sum(axis=1, dtype="<u8")
        bits = len(self._index).bit_length() - 1
        slots: NDArray[np.intp] = (hashes >> np.uint64(64 - bits)).astype(np.intp)
        return slots

    def _settle(self, wanted: NDArray[Any], rows: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        """Gives each of these vacant slots to one of the frames that want it, as far as there are ids."""
        self._index[slots] = rows  # of several for one slot the last one stays
        won = self._index[slots] == rows
        rows, slots = rows[won], slots[won]
        ids = self._source_ids.take(len(rows))
        n, end = self._n, self._n + len(ids)
        while end > len(self._frames):
            self._frames = np.concatenate((self._frames, np.zeros_like(self._frames)))
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
        self._frames[n:end] = wanted[rows[: len(ids)]]
        self._ids[n:end] = ids
        self._index[slots] = _FREE
        self._index[slots[: len(ids)]] = np.arange(n, end)
        self._n = end

    def _grow_index(self) -> None:
        self._index = np.full(2 * len(self._index), _FREE, "<i4")
        numbers = np.arange(self._n)
        slots = self._slots(self._frames[: self._n])
        while len(numbers):
            vacant = self._index[slots] == _FREE
            self._index[slots[vacant]] = numbers[vacant]
            waiting = self._index[slots] != numbers
            numbers, slots = numbers[waiting], (slots[waiting] + 1) & (len(self._index) - 1)


def _words(**columns: ArrayLike) -> NDArray[Any]:
    """Frames as words, u64, shape (n, 4)."""
    given = {name: np.atleast_1d(np.asarray(values)).astype(_TYPES[name]) for name, values in columns.items()}
    n = next((len(array) for array in given.values() if len(array) != 1), 1)
    words = np.zeros((n, _WORDS), "<u8")
    for name, (word, shift) in _PLACES.items():
        words[:, word] |= given[name].astype("<u8") << np.uint64(shift)
    return words


def _column(words: NDArray[Any], name: str) -> NDArray[Any]:
    """A column of frames that are given as words, in its own type."""
    word, shift = _PLACES[name]
    column: NDArray[Any] = (words[:, word] >> np.uint64(shift)).astype(_TYPES[name])
    return column
