"""The cube: distinct cells of ids and codes with sums of measures, which every table of a trace is made of.

Millions of faults and pages have a few thousand combinations of process, file, stack ...: these are the cells. A live
session and a file fill it alike, batch by batch; `dimensions` names the cells, `report` shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.names import Names
from wstrace.analysis.tally import MIX, Numbers
from wstrace.batch import Batch, Columns
from wstrace.hookspecs import Dimension
from wstrace.schema import FAULT_MAJOR, HOW_NOT_SAMPLED, PAGE_FAULT
from wstrace.text import number, size

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: measure, in JSON and in `--sort` -> the head of its column; in the order of columns
MEASURES = {
    "grown": "growth",  # resident bytes at the moment less those at the beginning
    "change": "change",  # resident bytes that the second run has more
    "first": "first",  # resident bytes of the first run
    "second": "second",  # resident bytes of the second run
    "resident": "resident",  # bytes in memory at that moment; of several processes each page once
    "rss": "rss",  # of several processes the sum of what each has, where shared pages count once for each
    "private": "private",  # of these, what no other process has
    "shared": "shared",  # of these, what other processes have, too
    "pss": "pss",  # those of shared pages divided by all processes that have them
    "copied": "copied",  # of these, what a child process copied by writing to a page of its parent
    "at_the_end": "at the end",  # the same, while the process ended
    "written": "written",  # bytes of pages that were there already when a fault wrote to them
    "brought": "brought",  # bytes of all pages that arrived, those that are gone again included
    "again": "again",  # bytes of pages that arrived although they had been there before
    "faults": "faults",  # page faults
    "from_disk": "from disk",  # faults that read from disk
    "samples": "samples",  # recorded stacks or faults that stand for the row
    "estimated": "estimated",  # of the resident bytes, or else of the faults, what a rule and no record gives
}
#: those that are no bytes
COUNTS = frozenset(("faults", "from_disk", "samples"))
#: Their columns are shown where all rows have none of them, too.
ALWAYS = frozenset(("resident", "private", "faults"))


def shown(measure: str, amount: float) -> str:
    """An amount as tables show it: `1.5 MiB`, `1,234`."""
    return (number if measure in COUNTS else size)(round(amount))


#: The keys of every cube; dimensions may ask for further ones. process is a number of Names. stack is that of Python,
#: else a sampled native one; how says how it is known. place is the instruction of what has no stack of Python.
#: reason says why the owner of pages is not known, 0 = it is. pc_mapping, that of one instruction, parts no cells.
KEYS = ("process", "tid", "file", "kind", "cgroup", "pc_file", "stack", "how", "place", "reason", "pc_mapping")
#: The cell of all combinations past the limit.
OTHER = 0
#: Rows of which the hashes are computed at once: they stay in the cache.
_ROWS = 1 << 13


class Cube:
    """Cells with their sums, in bounded memory. Only one thread at a time may add.

    Past the limit the half of the cells that counted least is added to the cell `[other]`: totals stay exact, and rows
    of rare cells become lower bounds.
    by: the dimensions that will be wanted, where any needs more than KEYS; `report` can show all others, too. names:
    what the ids stand for; None = it learns that from the batches that are added. limit: the most cells. keys: name ->
    the key of each cell, shape (cells,). sums: measure -> the sum of each cell, i64. forgotten: the cells that were
    added to `[other]`. first_ns, last_ns: times of the first and last fault, monotonic; 0 = there was none.
    """

    LIMIT = 1 << 18

    def __init__(self, by: Iterable[Dimension] = (), *, names: Names | None = None, limit: int = LIMIT) -> None:
        self.names = Names() if names is None else names
        self.dimensions = tuple(by)
        more = (key for one in self.dimensions for key in one.keys if key not in KEYS)
        self.keys: Columns = {key: np.zeros(1, np.uint32) for key in KEYS}
        self.keys |= {key: np.zeros(1, np.uint64) for key in ("place", *more)}
        self._parting = [key for key in self.keys if key != "pc_mapping"]
        self.sums: dict[str, NDArray[np.int64]] = {}
        self.forgotten, self._limit = 0, limit
        self.first_ns = self.last_ns = 0
        self._n = 1  # cells; the arrays have room for more
        self._of_hash = Numbers()

    def __len__(self) -> int:
        """The number of cells, `[other]` included."""
        return self._n

    def key(self, name: str) -> NDArray[Any]:
        """A key of all cells."""
        return self.keys[name][: self._n]

    def measure(self, name: str) -> NDArray[np.int64]:
        """The sum of a measure of all cells."""
        return self.sums[name][: self._n] if name in self.sums else np.zeros(self._n, np.int64)

    def total(self, name: str) -> int:
        """The sum of a measure of all that was ever added."""
        return int(self.measure(name).sum())

    def add(self, batch: Batch) -> None:
        """Counts a batch of faults, or learns the names in one of another stream."""
        batch = self.names.recoded(batch)
        if batch.schema.name != PAGE_FAULT.name:
            self.names.learn(batch)
        elif len(batch):
            self.faults(batch)

    def faults(self, batch: Batch, chosen: NDArray[np.bool_] | None = None) -> NDArray[np.uint32]:
        """Counts a batch of faults; returns the cell of each, which holds until the cube forgets.

        chosen: those that count, shape (n,); None = all.
        """
        self._span(batch)
        keys, own = self.keys_of(batch)
        each = batch.columns.get("sampled")
        major = (batch["flags"] & FAULT_MAJOR) != 0
        one = np.ones(len(batch), np.bool_)
        sums: Columns = {"faults": one, "from_disk": major}
        if own is not None:
            sums["samples"] = own
        if each is not None:
            stands_for = np.maximum(each, 1).astype(np.int64)
            sums = {
                "faults": stands_for,
                "from_disk": np.where(major, stands_for, 0),
                "samples": sums.get("samples", one),
            }
        if chosen is not None:
            sums = {name: amounts * chosen for name, amounts in sums.items()}
        return self.count(keys, sums)

    def keys_of(self, batch: Batch) -> tuple[Columns, NDArray[np.bool_] | None]:
        """The keys of each fault, and where native stacks are sampled, which of the faults are samples."""
        columns, names = batch.columns, self.names
        found: Columns = {name: columns[name] for name in self.keys if name in columns and name != "stack"}
        found["process"] = names.processes.numbers(columns.get("host"), batch["pid"])
        none = np.zeros(len(batch), np.uint32)
        stack, how = columns.get("stack", none), columns.get("stack_how", none)
        without = stack == 0
        own: NDArray[np.bool_] | None = None
        if without.any() or "instruction" in self.keys:
            found["place"], found["pc_mapping"] = names.instructions.of(batch)
        if "native_stack" in columns and without.any():
            own = (columns["native_stack"] != 0) & (columns.get("weight", none) != 0) & without
            if own.any():
                files, places = columns.get("pc_file", none), found["place"]
                names.meet(batch.take(own & names.own_code(files, places)))
                programs = names.of_processes.programs(found["process"], columns.get("time_ns", none))
                stack, how = _sampled(batch, stack, how, own, ~names.own_code(files, places), programs)
            else:
                own = None
        found["stack"], found["how"] = stack, how
        if "place" in found:
            found["place"] *= without
        for one in self.dimensions:
            if one.code is not None:
                found[one.keys[0]] = one.code(batch, names)
        return found, own

    def count(self, keys: Columns, sums: Columns) -> NDArray[np.uint32]:
        """Adds rows; keys and measures that they lack are 0.

        keys: name -> the key of each row, shape (n,). sums: measure -> the amount of each row, shape (n,); bools count
        1. Returns the cell of each row, shape (n,).
        """
        of = self._cells(keys)
        for name, values in sums.items():
            if name not in self.sums:
                self.sums[name] = np.zeros(len(self.keys["process"]), np.int64)
            rows, amounts = (of, values) if values.dtype != np.bool_ else (of[values], None)
            if 4 * len(rows) > self._n:
                more = np.bincount(rows, amounts, self._n)
                self.sums[name][: self._n] += more if amounts is None else more.astype(np.int64)
            else:
                np.add.at(self.sums[name], rows, 1 if amounts is None else amounts.astype(np.int64))
        if self._n > self._limit:
            self._forget()
        return of

    def _span(self, batch: Batch) -> None:
        times = batch.columns.get("time_ns")
        first, last = batch.window if times is None else (int(times.min()), int(times.max()))
        self.first_ns = min(self.first_ns, first) if self.first_ns else first
        self.last_ns = max(self.last_ns, last)

    def _cells(self, keys: Columns) -> NDArray[np.uint32]:
        """The cell of each row; combinations of keys that are new get the next ones."""
        found, new = self._of_hash.of(_hash([keys.get(name) for name in self._parting]))
        if len(new):
            self._make_room(len(new))
            for name in self.keys.keys() & keys.keys():
                self.keys[name][self._n : self._n + len(new)] = keys[name][new]
            self._n += len(new)
        return found

    def _make_room(self, more: int) -> None:
        have = len(self.keys["process"])
        if self._n + more <= have:
            return
        grow = max(self._n + more, 2 * have) - have
        for columns in (self.keys, self.sums):
            for name, column in columns.items():
                columns[name] = np.append(column, np.zeros(grow, column.dtype))

    def _forget(self) -> None:
        """Keeps the half of the cells that counted most."""
        amounts = sum(self.measure(name) / (1 if name in COUNTS else 4096) for name in self.sums)
        ranked = np.argsort(-np.asarray(amounts)[1:], kind="stable") + 1
        kept, rest = np.sort(ranked[: self._limit // 2]), ranked[self._limit // 2 :]
        self.forgotten += len(rest)
        for column in self.sums.values():
            column[OTHER] += column[rest].sum()
            column[1 : 1 + len(kept)] = column[kept]
            column[1 + len(kept) :] = 0
        for key in self.keys.values():
            key[1 : 1 + len(kept)] = key[kept]
            key[1 + len(kept) :] = 0
        self._n = 1 + len(kept)
        self._of_hash.clear(_hash([self.key(name)[1:] for name in self._parting]))


def _hash(columns: Sequence[NDArray[Any] | None]) -> NDArray[np.uint64]:
    """A number for each combination of values of these columns; None = a column of zeros."""
    n = next(len(column) for column in columns if column is not None)
    hashes = np.zeros(n, np.uint64)
    mix = np.uint64(MIX)
    varied = [column if column is None or not n or (column != column[0]).any() else column[0] for column in columns]
    for start in range(0, n, _ROWS):
        part = hashes[start : start + _ROWS]
        for column in varied:
            if column is not None and column.ndim:
                np.add(part, column[start : start + _ROWS], out=part, casting="unsafe")
            elif column is not None:
                part += np.uint64(column)
            part *= mix
        part ^= part >> np.uint64(32)
        part *= mix
    return hashes


def _sampled(
    batch: Batch,
    stack: NDArray[Any],
    how: NDArray[Any],
    own: NDArray[np.bool_],
    needs: NDArray[np.bool_],
    programs: NDArray[np.uint64],
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The stacks of faults of which samples have native ones, and how each is known.

    A fault without a stack counts for the next sample of its thread in the same program, after the last one for that;
    but in the program's own code it needs none, and its sample counts for no other. own: which are samples. needs:
    which need one. programs: which of its programs the process of each ran.
    """
    native, native_how = batch["native_stack"], batch.columns.get("native_how", how)
    runs = programs << np.uint64(32) | batch["tid"]
    order = np.argsort(runs, kind="stable")
    samples = np.flatnonzero((own & needs)[order])
    if not len(samples):
        return np.where(own, native, stack), np.where(own, native_how, how)
    runs = runs[order]
    at = samples.searchsorted(np.arange(len(order)))
    after, before = samples[np.minimum(at, len(samples) - 1)], samples[np.maximum(at - 1, 0)]
    chosen = np.where(runs[after] == runs, after, before)
    same = runs[chosen] == runs
    of = np.empty(len(order), np.intp)
    of[order] = order[np.where(same, chosen, np.arange(len(order)))]
    stacked = (stack == 0) & (own | (own[of] & needs))
    of = np.where(needs, of, np.arange(len(order)))
    return (np.where(stacked, native[of], stack), np.where(own, native_how, np.where(stacked, HOW_NOT_SAMPLED, how)))
