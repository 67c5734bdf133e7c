"""Translates ids of streams whose rows other streams refer to (schema.TABLES) from a part to the whole trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.schema import MOST_FRAMES, own_id
from wstrace_exporters.msgpack.format.frames import Header, unpack_rows
from wstrace_exporters.msgpack.format.layout import Limits
from wstrace_exporters.msgpack.read.id_tables import Lookup

_NONE: NDArray[Any] = np.empty(0, "<u4")
#: The column of a table whose rows form trees.
_PARENT = "parent"


def same_session(header: Header, before: Header, *, alike: bool = False) -> bool:
    """Whether a part continues the session of the part before it, and therefore its ids.

    Args:
        header, before: of the two parts.
        alike: whether their names are those of one trace. Then a part whose predecessor is missing, as one that was
            dropped or could not be read, continues the session, too.
    """
    follows = header.prev == before.id or (alike and header.part > before.part + 1)
    return header.part > 0 and follows and header.boot_id == before.boot_id


def ids_in(body: Any, table: str, limits: Limits) -> NDArray[Any]:
    """The rows' own ids in an EVENTS body of a table, and their parents', u32, shape (2, n); 0 = no parent.

    There are none for another stream. Raises FrameError.
    """
    key = own_id(table)
    rows = unpack_rows(body, (key, _PARENT).__contains__, limits)
    ids = rows.columns.get(key, _NONE)
    if rows.stream != table or not np.can_cast(ids.dtype, "<u4"):
        return np.empty((2, 0), "<u4")
    parents = rows.columns.get(_PARENT, np.zeros(len(ids), "<u4"))
    return np.stack((ids, parents if np.can_cast(parents.dtype, "<u4") else np.zeros_like(ids))).astype("<u4")


def first_of_each(found: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The ids and parents of several frames by id, of each id its first row. u32, shape (2, n)."""
    rows = np.concatenate(found, axis=1)
    first: NDArray[Any] = rows[:, np.unique(rows[0], return_index=True)[1]]
    return first


def too_deep(ids: NDArray[Any], parents: NDArray[Any]) -> bool:
    """Whether a row has more than MOST_FRAMES - 1 others above it, or no end of them; ids: distinct, ascending."""
    end = len(ids)
    at = ids.searchsorted(parents)
    ids = np.append(ids, np.uint32(0))
    above = np.append(np.where((ids[at] == parents) & (parents != 0), at, end), end)
    left, found = MOST_FRAMES, np.arange(end)
    while left:  # by powers of two: each step goes twice as far up as the one before
        if left & 1:
            found = above[found]
        above, left = above[above], left >> 1
    return bool((found != end).any())


class RowIds:
    """The ids of one table's rows, through the parts of a trace in their order.

    Parts of one session share their ids, and each repeats rows of the one before. An id of another session is kept if
    it is still unused, and otherwise replaced by an unused id.

    Args:
        most: the most new ids that are accepted from one part; further rows are missing.

    Attributes:
        given: ids in the whole trace of rows that an earlier part of this session has, ascending.
        lookup: from the part's ids to the whole trace's; 0 for an id without a row.
        repeated: the rows of this part that an earlier part of the session has.
    """

    def __init__(self, most: int) -> None:
        self._most = self._room = most
        self._taken = self._own = self._whole = self.given = _NONE
        self.lookup = Lookup(_NONE, _NONE, 0)
        self.repeated = 0

    def begin_part(self, *, same: bool) -> None:
        """Begins the next part; `same` says whether it belongs to the same session."""
        if not same:
            self._own = self._whole = _NONE
            self.lookup = Lookup(_NONE, _NONE, 0)
        self.given, self._room, self.repeated = np.sort(self._whole), self._most, 0

    def add(self, ids: NDArray[Any]) -> bool:
        """Adds rows of this part by their ids; returns whether any of these is new."""
        self.repeated += int(np.isin(self.lookup(ids), self.given).sum())
        new = distinct(ids[ids != 0])
        new = new[~np.isin(new, self._own)][: self._room]
        self._room -= len(new)
        if not len(new):
            return False
        whole = new.copy()
        clash = np.isin(new, self._taken)
        n = int(clash.sum())
        if n:
            used = distinct(np.concatenate((self._taken, new)))
            whole[clash] = np.setdiff1d(np.arange(1, len(used) + n + 1, dtype="<u4"), used)[:n]
        self._own, self._whole = np.concatenate((self._own, new)), np.concatenate((self._whole, whole))
        self._taken = np.concatenate((self._taken, whole))
        self.lookup = Lookup(self._own, self._whole, 0)
        return True


def tables_of_part(rows: Mapping[str, RowIds]) -> dict[str, tuple[Lookup, NDArray[Any], int]]:
    """table -> (lookup, given, repeated), for PartLookups."""
    return {table: (ids.lookup, ids.given, ids.repeated) for table, ids in rows.items()}
