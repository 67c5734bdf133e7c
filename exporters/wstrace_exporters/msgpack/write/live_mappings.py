"""The writer's tables: which names and mappings the present part has, and which mappings are still live.

A part of a rotated trace begins with the live mappings and their names, so that it can be read alone. A mapping is dead
when newer mappings of its address space cover it, or when the last process that uses the space has ended. It is
forgotten some seconds later, because records may arrive after the exit.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary
from wstrace.schema import DTYPES, MAPPING, PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK

#: Seconds for which a dead mapping is kept, while its last records wait in a ring and for a frame.
GRACE_SECONDS = 3.0
#: The number of rows at which dead ones are first removed.
PRUNE_ROWS = 65_536


class Names:
    """The names of one part: ids for codes of the session's Dictionary, numbered in the order of first use."""

    def __init__(self, strings: Dictionary, first: int = 1) -> None:
        self._strings = strings
        self._ids = np.zeros(1024, "<u4")
        self.next = first
        self.total = 0  # characters
        self.new: list[str] = []  # not yet in a STRINGS frame; the last has id next - 1

    def ids(self, codes: NDArray[Any]) -> NDArray[Any]:
        """The ids of codes, u32, shape (n,), 0 for a code without a name; first uses are appended to `new`."""
        if not len(codes):
            return codes.astype("<u4")
        if (top := int(codes.max())) >= len(self._strings):
            codes = np.where(codes < len(self._strings), codes, 0)
            top = int(codes.max())
        if top >= len(self._ids):
            grown = np.zeros(max(2 * len(self._ids), top + 1), "<u4")
            grown[: len(self._ids)] = self._ids
            self._ids = grown
        ids = self._ids[codes]
        for code in distinct(codes[(ids == 0) & (codes != 0)]).tolist():
            name = self._strings[code]
            self._ids[code] = self.next
            self.next += 1
            self.total += len(name)
            self.new.append(name)
        found: NDArray[Any] = self._ids[codes]
        return found


class Spaces:
    """Numbers address spaces, and notes which processes use them.

    fork() and exec() begin a space for new mappings; a forked child also uses its parent's.
    """

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # pid -> the space of its new mappings
        self._above: dict[int, int] = {}  # space -> that of the parent, whose mappings it also uses; 0 = none
        self._users: dict[int, int] = {}  # space -> its process, if that lives, and the spaces of its children
        self._next = 1

    def space(self, pid: int) -> int:
        """The space of a process's new mappings."""
        if pid not in self._of:
            self._begin(pid)
        return self._of[pid]

    def _begin(self, pid: int, above: int = 0) -> None:
        self._leave(pid)
        self._of[pid], self._above[self._next], self._users[self._next] = self._next, above, 1
        if above:
            self._users[above] += 1
        self._next += 1

    def _leave(self, pid: int) -> None:
        """Notes that a process no longer uses its space: it ended, or executes another program."""
        space = self._of.pop(pid, 0)
        while space:
            self._users[space] -= 1
            if self._users[space]:
                return
            del self._users[space]
            space = self._above.pop(space)

    def apply(self, batch: Batch) -> None:
        """Applies the forks, execs and exits of a batch of processes, in their order."""
        if not {"event", "pid", "tid", "ppid"} <= set(batch):
            return
        event, pid, tid = batch["event"], batch["pid"], batch["tid"]
        wanted = (event == PROCESS_FORK) | (event == PROCESS_EXEC) | ((event == PROCESS_EXIT) & (pid == tid))
        for what, who, parent in zip(*(a[wanted].tolist() for a in (event, pid, batch["ppid"])), strict=True):
            if what == PROCESS_FORK and who != parent and who not in self._of:
                self._begin(who, self._of.get(parent, 0))
            elif what == PROCESS_EXEC:
                self._begin(who)
            elif what == PROCESS_EXIT:
                self._leave(who)

    def used(self) -> dict[int, bool]:
        """The spaces that records of live processes may refer to; of each whether only its own process uses it."""
        own = set(self._of.values())
        return {space: n == 1 and space in own for space, n in self._users.items()}


class Mappings:
    """The live mappings, with the session's ids and codes; those in `new` are not yet in this part."""

    def __init__(self) -> None:
        self.spaces = Spaces()
        self._rows: list[dict[str, NDArray[Any]]] = []
        self._held = 0
        self._prune_at = PRUNE_ROWS
        self._dead_since: dict[int, float] = {}  # id -> monotonic seconds
        self._named: set[int] = set()  # ids in rows that every part repeats
        self.new: list[dict[str, NDArray[Any]]] = []
        self.new_rows = 0

    def add(self, batch: Batch) -> None:
        """Adds the rows of a batch of mappings."""
        n = len(batch)
        if not n:
            return
        rows = {c.name: batch[c.name].astype(DTYPES[c.type], copy=False) for c in MAPPING.columns if c.name in batch}
        self.new.append(rows)
        self.new_rows += n
        pids = batch["pid"].tolist() if "pid" in batch else [0] * n
        spaces = np.fromiter((self.spaces.space(pid) for pid in pids), "<u4", n)
        self._rows.append({**{name: array.copy() for name, array in rows.items()}, "space": spaces})
        self._held += n
        if self._held > self._prune_at:
            self.prune()
            self._prune_at = max(PRUNE_ROWS, 2 * self._held)

    def keep(self, ids: NDArray[Any]) -> None:
        """Keeps the mappings of those ids for good: rows that every part repeats name them."""
        self._named.update(distinct(ids).tolist())

    def take_new(self) -> dict[str, NDArray[Any]] | None:
        """The rows that are not yet in this part, as columns, or None; they count as written from now on."""
        rows, self.new, self.new_rows = self.new, [], 0
        return concatenate(rows) if rows else None

    def restart(self) -> None:
        """Begins a new part, to which all live mappings are to be written again."""
        self.prune()
        self.new = [{k: v for k, v in rows.items() if k != "space"} for rows in self._rows]
        self.new_rows = self._held

    def prune(self) -> None:
        """Removes the rows that have been dead for GRACE_SECONDS, and notes which have died since the last call."""
        if not self._rows:
            return
        rows = concatenate(self._rows)
        ids = rows["id"].tolist()
        now = time.monotonic()
        self._dead_since = {i: self._dead_since.get(i, now) for i in self._dead(rows) - self._named}
        until = now - GRACE_SECONDS
        keep = np.fromiter((self._dead_since.get(i, math.inf) > until for i in ids), bool, len(ids))
        self._rows = [{name: array[keep] for name, array in rows.items()}] if keep.any() else []
        self._held = int(keep.sum())

    def _dead(self, rows: Mapping[str, NDArray[Any]]) -> set[int]:
        used = self.spaces.used()
        spaces = rows["space"].tolist()
        ids, starts, ends = rows["id"].tolist(), rows["start"].tolist(), rows["end"].tolist()
        dead: set[int] = set()
        covered: dict[int, Covered] = {}
        for i in range(len(ids) - 1, -1, -1):  # from the newest to the oldest
            alone = used.get(spaces[i])
            if alone is None:
                dead.add(ids[i])
            elif alone and not covered.setdefault(spaces[i], Covered()).add(starts[i], ends[i]):
                dead.add(ids[i])  # with several users, a child may still have what its parent has covered
        return dead


class Covered:
    """A union of intervals."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> bool:
        """Adds [start, end); returns False when all of it was covered already."""
        first = bisect_left(self._ends, start)
        last = first
        while last < len(self._starts) and self._starts[last] <= end:
            last += 1
        if last - first == 1 and self._starts[first] <= start and end <= self._ends[first]:
            return False
        if last > first:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
        return True


def concatenate(rows: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """The rows of several batches as one set of columns; a column that any batch lacks is left out."""
    if len(rows) == 1:
        return rows[0]
    names = [name for name in rows[0] if all(name in other for other in rows)]
    return {name: np.concatenate([r[name] for r in rows]) for name in names}


def shifted(ids: NDArray[Any], base: int) -> NDArray[Any]:
    """Ids plus `base`, where a resumed file or another trace uses the lower ones; 0 (unknown) stays 0."""
    return ids if base == 0 else np.where(ids == 0, ids, ids + np.uint32(base)).astype("<u4")
