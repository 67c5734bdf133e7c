"""The rows and names of a session that others name by id, and which of them the present part has.

A file has the session's own ids. A part begins with none of these rows: those that its rows name are repeated in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary
from wstrace.schema import Schema

Columns = dict[str, NDArray[Any]]

#: New rows that wait to be sorted in among the others.
_UNSORTED = 65_536
_FOR_EVER = np.iinfo(np.int64).max
#: Of a row: by which call of lacking() it was named last, and whether the present part lacks it.
_NAMED, _ABSENT = "*named", "*absent"


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
        """Those of the codes of which the part lacks the names, distinct, ascending; it has them from now on."""
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
        self._rows: Columns = {}  # in the order of their ids
        self._new: list[Columns] = []
        self._n_new = self._calls = 0
        self._first_part = True

    @property
    def _ids(self) -> NDArray[Any]:
        return self._rows.get(self.key, np.empty(0, "<u4"))

    def add(self, batch: Batch) -> bool:
        """Adds rows, which are about to be written to the present part; returns False when they do not fit."""
        if not self._forget and len(self._ids) + self._n_new + len(batch) > self._most:
            return False
        if self.key in batch:
            columns = {column.name: np.array(batch[column.name]) for column in self.schema.columns
                       if column.name in batch and not column.derived}  # fmt: skip
            n = len(batch)
            self._new.append({**columns, _NAMED: np.full(n, self._calls), _ABSENT: np.zeros(n, np.bool_)})
            self._n_new += n
            if self._n_new > max(_UNSORTED, len(self._ids) // 4):
                self._sort()
        return True

    def _sort(self) -> None:
        """Sorts the new rows in; the first row of an id counts."""
        if not self._new:
            return
        rows = concatenate([self._rows, *self._new] if self._rows else self._new)
        self._new, self._n_new = [], 0
        order = np.unique(rows[self.key], return_index=True)[1]
        if len(order) > self._most:
            order = order[np.sort(np.argsort(rows[_NAMED][order], kind="stable")[-(self._most // 2) :])]
        self._rows = {name: array[order] for name, array in rows.items()}

    def begin_part(self) -> None:
        """Begins a part, which has none of the rows."""
        self._sort()
        self._mark_absent(slice(None))

    def _mark_absent(self, at: Any) -> None:
        if self._rows:
            self._rows[_ABSENT][at] = True
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
        self._calls += 1
        if for_ever:
            self._sort()
        at = self._at(ids)
        if not len(at):
            return None
        named, absent = self._rows[_NAMED], self._rows[_ABSENT]
        named[at] = np.maximum(named[at], _FOR_EVER if for_ever else self._calls)
        wanted = at = at[absent[at]]
        while len(at):
            absent[at] = False
            linked = [self._rows[name][at] for name in self._links if name in self._rows]
            at = self._at(np.concatenate(linked)) if linked else at[:0]
            at = at[absent[at]]
            wanted = np.append(wanted, at)
        if not len(wanted):
            return None
        wanted.sort()
        return {name: array[wanted] for name, array in self._rows.items() if name not in (_NAMED, _ABSENT)}

    def forget(self, ids: NDArray[Any]) -> None:
        """Notes that rows could not be written."""
        self._sort()
        self._mark_absent(self._at(ids))


def concatenate(rows: list[Columns]) -> Columns:
    """The rows of several batches as one set of columns; a column that any batch lacks is left out."""
    if len(rows) == 1:
        return rows[0]
    names = [name for name in rows[0] if all(name in other for other in rows)]
    return {name: np.concatenate([r[name] for r in rows]) for name in names}
