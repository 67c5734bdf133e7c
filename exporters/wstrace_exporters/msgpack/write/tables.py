"""The rows and names of a session that others name by id, and which of them the present part has.

A file has the session's own ids. A part begins with none of these rows: those that its rows name are repeated in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary
from wstrace.schema import Schema

Columns = dict[str, NDArray[Any]]

#: New rows that wait to be sorted in among the others.
_UNSORTED = 65_536
_FOR_EVER = np.uint64((1 << 64) - 1)


class Names:
    """Which names of the session's Dictionary the present part has. Their ids are its codes."""

    def __init__(self, strings: Dictionary) -> None:
        self._strings = strings
        self.begin_part()

    def begin_part(self) -> None:
        """Begins a part, which has no names yet, of no characters."""
        self.n = self.characters = 0
        self._have = np.ones(1, np.bool_)  # of 0, which is no name

    def lacking(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Those of the codes whose names the part lacks, distinct, ascending; it has them from now on."""
        known = len(self._strings)
        if len(codes) and int(codes.max()) >= known:
            codes = codes[codes < known]
        if known > len(self._have):
            self._have = np.append(self._have, np.zeros(max(known - len(self._have), len(self._have)), np.bool_))
        new = distinct(codes[~self._have[codes]])
        self._have[new] = True
        return new

    def forget(self, codes: NDArray[Any]) -> None:
        """Notes that names could not be written."""
        self._have[codes] = False


class Rows:
    """The rows of one table that the session has given, by id.

    Args:
        schema: the table.
        semantic: that of its ids.
        most: the rows that are held.
        forget: whether those are forgotten past it that were named least recently; else no more are taken.
    """

    def __init__(self, schema: Schema, semantic: str, most: int, *, forget: bool) -> None:
        self.schema, self._most, self._forget = schema, most, forget
        self.key, *self._links = (column.name for column in schema.columns if column.semantic == semantic)
        self._sorted: Columns = {}
        self._ids = np.empty(0, "<u4")
        self._named = np.empty(0, "<u8")  # by which call of name() last
        self._absent = np.empty(0, np.bool_)  # not in this part
        self._new: list[Columns] = []
        self._n_new = 0
        self._calls = np.uint64(0)
        self._first_part = True

    def add(self, batch: Batch) -> bool:
        """Adds rows, which are about to be written to the present part; returns False when they do not fit."""
        if not self._forget and len(self._ids) + self._n_new + len(batch) > self._most:
            return False
        if self.key in batch:
            self._new.append({column.name: np.array(batch[column.name]) for column in self.schema.columns
                              if column.name in batch and not column.derived})  # fmt: skip
            self._n_new += len(batch)
            if self._n_new > max(_UNSORTED, len(self._ids) // 4):
                self._sort()
        return True

    def _sort(self) -> None:
        """Sorts the new rows in; the first row of an id counts."""
        rows = [self._sorted, *self._new] if len(self._ids) else self._new
        if not self._new:
            return
        n, n_before = len(self._ids) + self._n_new, len(self._ids)
        self._new, self._n_new = [], 0
        ids = np.concatenate([one[self.key] for one in rows])
        order = np.argsort(ids, kind="stable")
        order = order[np.append(True, ids[order][1:] != ids[order][:-1])]
        named = np.append(self._named, np.full(n - n_before, self._calls, "<u8"))[order]
        if len(order) > self._most:
            kept = np.sort(np.argsort(named, kind="stable")[-(self._most // 2) :])
            order, named = order[kept], named[kept]
        names = [name for name in rows[0] if all(name in one for one in rows)]
        self._sorted = {name: np.concatenate([one[name] for one in rows])[order] for name in names}
        self._ids, self._named = ids[order].astype("<u4"), named
        self._absent = np.append(self._absent, np.zeros(n - n_before, np.bool_))[order]

    def begin_part(self) -> None:
        """Begins a part, which has none of the rows."""
        self._sort()
        self._absent[:] = True
        self._first_part = False

    def _at(self, ids: NDArray[Any]) -> NDArray[np.intp]:
        """The positions of those ids that have rows, in no order."""
        ids = distinct(ids)
        at = np.minimum(np.searchsorted(self._ids, ids), max(len(self._ids) - 1, 0))
        return at[self._ids[at] == ids] if len(self._ids) else at[:0]

    def lacking(self, ids: NDArray[Any], *, for_ever: bool = False) -> Columns | None:
        """The rows of these ids, and those that they name, that the part lacks; None = it has them all.

        It has them from now on. for_ever: whether what names them is repeated by other parts, too.
        """
        if self._first_part and not (self._forget and (for_ever or len(self._ids))):
            return None
        self._calls += np.uint64(1)
        if for_ever:
            self._sort()
        at = self._at(ids)
        if self._forget:
            self._named[at] = np.maximum(self._named[at], _FOR_EVER if for_ever else self._calls)
        wanted = at = at[self._absent[at]]
        while len(at):
            self._absent[at] = False
            linked = [self._sorted[name][at] for name in self._links if name in self._sorted]
            at = self._at(np.concatenate(linked)) if linked else at[:0]
            at = at[self._absent[at]]
            wanted = np.append(wanted, at)
        if not len(wanted):
            return None
        wanted.sort()
        return {name: array[wanted] for name, array in self._sorted.items()}

    def forget(self, ids: NDArray[Any]) -> None:
        """Notes that rows could not be written."""
        self._sort()
        self._absent[self._at(ids)] = True
        self._first_part = False


def pieces(names: list[str], most: int) -> Iterator[slice]:
    """Slices of names of at most so many characters together, or of one name."""
    start = size = 0
    for position, name in enumerate(names):
        if size and size + len(name) > most:
            yield slice(start, position)
            start, size = position, 0
        size += len(name)
    if start < len(names):
        yield slice(start, len(names))
