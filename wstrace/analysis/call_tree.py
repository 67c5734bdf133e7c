"""CallTree: the call sites of a trace (rows of `call_site`) by id, and the frames of stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Batch, Columns, Dictionary
from wstrace.schema import CALL_SITE, DTYPES, FRAME_CUT, MOST_FRAMES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAMED_LATER = ("kind", "function")


class CallTree:
    """The call sites so far, each at the place of its id in columns of their own.

    A row's parent must have come before it, so that a walk to the root ends whatever a file contains. A row with any
    other parent is kept as one of which the callers were cut. A later row of an id has the name of a JIT compiler's
    function, which came when its process ended.
    strings: the dictionary that `function` and `file` are codes of: that of the first batch.
    """

    LIMIT = 1 << 22

    def __init__(self) -> None:
        self.strings = Dictionary()
        self._known = np.zeros(1, np.bool_)  # by id
        self._columns: Columns = {
            column.name: np.zeros(1, DTYPES[column.type]) for column in CALL_SITE.columns if column.name != "id"
        }
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def learn(self, batch: Batch) -> bool:
        """Takes a batch of call sites; returns False for any other stream."""
        if batch.schema.name != CALL_SITE.name:
            return False
        if not self._n:
            self.strings = batch.strings
        batch = batch.recode(self.strings)
        if "id" not in batch:  # a damaged file, or another writer: no stack can name these rows
            return True
        ids = batch["id"]
        self._make_room(int(ids[ids < self.LIMIT].max(initial=0)) + 1)
        _, first = np.unique(ids, return_index=True)
        fits = (ids != 0) & (ids < self.LIMIT)
        rows = np.sort(first[fits[first]])
        rows = rows[~self._known[ids[rows]]]
        own = ids[rows]
        position = np.full(len(self._known), -1, np.intp)
        position[own] = np.arange(len(own))
        parent = batch["parent"][rows] if "parent" in batch else np.full(len(rows), self.LIMIT, "<u4")
        inside = np.where(parent < len(self._known), parent, 0)
        before = self._known[inside] | ((position[inside] >= 0) & (position[inside] < np.arange(len(own))))
        for name, column in self._columns.items():
            if name in batch:  # what a batch lacks is 0
                of = fits if name in _NAMED_LATER else rows
                column[ids[of]] = batch[name][of]
        cut = (parent != 0) & ~((parent < len(self._known)) & before)
        self._columns["parent"][own[cut]] = 0
        self._columns["flags"][own[cut]] |= FRAME_CUT
        self._known[own] = True
        self._n += len(own)
        return True

    def known(self, ids: NDArray[Any]) -> NDArray[np.intp]:
        """The ids as indices of columns; 0 for one without a row."""
        inside = np.where(ids < len(self._known), ids, 0).astype(np.intp)
        return np.where(self._known[inside], inside, 0)

    def column(self, name: str) -> NDArray[Any]:
        """A column of CALL_SITE by id; the value at 0 is 0."""
        return self._columns[name]

    def ids(self) -> NDArray[np.intp]:
        """The ids that have a row, ascending."""
        return np.flatnonzero(self._known)

    def stack(self, leaf: int) -> list[int]:
        """The ids of a stack's frames, innermost first."""
        found: list[int] = []
        parent = self._columns["parent"]
        leaf = int(self.known(np.array([leaf]))[0])
        while leaf and len(found) < MOST_FRAMES:
            found.append(leaf)
            leaf = int(parent[leaf])
        return found

    def stacks(self, leaves: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The ids of several stacks' frames, innermost first, one stack behind the other; and where each begins.

        leaves: ids as known() returns them, shape (n,). Returns the ids; n + 1 places in these.
        """
        at, parent = leaves.astype(np.intp), self._columns["parent"]
        rows, depth = np.flatnonzero(at), np.zeros(len(at) + 1, np.intp)
        parts = [(rows, at[rows])]
        while len(rows) and len(parts) < MOST_FRAMES:
            at[rows] = parent[at[rows]]
            rows = rows[at[rows] != 0]
            parts.append((rows, at[rows]))
        of, ids = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        depth[1:] = np.bincount(of, minlength=len(at))
        return ids[np.argsort(of, kind="stable")], np.cumsum(depth)

    def text(self, code: int) -> str:
        """The name behind a code of `function` or `file`; "" for none."""
        return self.strings[code] if code < len(self.strings) else ""

    def first_above(self, leaves: NDArray[np.intp], wanted: NDArray[np.bool_]) -> NDArray[np.intp]:
        """For each stack its innermost frame of a set; 0 where it has none.

        leaves: ids as known() returns them, shape (n,). wanted: by id, whether the frame is in the set.
        """
        at, parent = leaves.copy(), self._columns["parent"]
        going = np.flatnonzero((at != 0) & ~wanted[at])
        for _ in range(MOST_FRAMES):
            if not len(going):
                return at
            at[going] = parent[at[going]]
            going = going[(at[going] != 0) & ~wanted[at[going]]]
        at[going] = 0
        return at

    def _make_room(self, n: int) -> None:
        if n > len(self._known):
            n = max(n, min(2 * len(self._known), self.LIMIT))
            self._known = np.concatenate((self._known, np.zeros(n - len(self._known), np.bool_)))
            for name, column in self._columns.items():
                self._columns[name] = np.concatenate((column, np.zeros(n - len(column), column.dtype)))
