"""The reader's tables of names and mappings, for one part and for all parts together."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary, Recoding
from wstrace.schema import DTYPES, FAULT_PC_KERNEL, KIND_FILE, KIND_SHIFT, KINDS, MAPPING, TABLES
from wstrace_exporters.msgpack.format.layout import LOST, FrameError, Limits

_U32 = (1 << 32) - 1
#: A table whose ids are below this is an array indexed by id.
_DENSE = 1 << 22
#: The columns that identify a mapping in several parts.
_IDENTITY = ("time_ns", "pid", "start", "end", "offset", "file", "flags")
#: At most this many distinct missing ids are counted of each kind; a hostile file may have four billion.
_MISSING_KEPT = 1 << 16


class Tables:
    """The names and mappings of one part, from its STRINGS and MAPPINGS frames."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        #: The name of each id, None for an id without one; a list, because a dict of a million names takes 70 MB more.
        self.names: list[str | None] = [None]
        self._chars = 0
        self._rows: list[dict[str, NDArray[Any]]] = []
        self.n_mappings = 0

    def add_strings(self, base: int, names: list[str]) -> None:
        """Adds names with ids from `base` on; an id keeps its first name. Raises FrameError past the limits."""
        if base < 1 or base + len(names) > self._limits.strings:
            raise FrameError(f"names {base:,} to {base + len(names):,}")
        self.names += [None] * (base + len(names) - len(self.names))
        for position, name in enumerate(names, base):
            if self.names[position] is None:
                self._chars += len(name)
                if self._chars > self._limits.strings_total:
                    raise FrameError("more names than the limit")
                self.names[position] = name

    def add_mappings(self, columns: dict[str, NDArray[Any]]) -> None:
        """Adds rows of mappings. Raises FrameError past the limits, or if they have no ids."""
        if "id" not in columns:
            raise FrameError("mappings without ids")
        n = len(columns["id"])
        if self.n_mappings + n > self._limits.mappings:
            raise FrameError("more mappings than the limit")
        self.n_mappings += n
        self._rows.append(columns)

    def mappings(self) -> dict[str, NDArray[Any]]:
        """All mappings as columns, one row per id, ascending; `file` and `build_id` are ids of names."""
        columns = {}
        for column in MAPPING.columns:
            parts = [_typed(rows, column.name, column.type, len(rows["id"])) for rows in self._rows]
            columns[column.name] = _joined(parts, column.type)
        ids = columns["id"]
        if _ascending(ids) and not (len(ids) and ids[0] == 0):
            return columns  # our writer's order; this avoids a copy of up to 60 MB
        _, first = np.unique(ids, return_index=True)
        first = first[ids[first] != 0]
        return {name: array[first] for name, array in columns.items()}


def _joined(parts: list[NDArray[Any]], kind: str) -> NDArray[Any]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, DTYPES[kind])


def _ascending(ids: NDArray[Any]) -> bool:
    return bool((ids[1:] > ids[:-1]).all())


def _typed(rows: dict[str, NDArray[Any]], name: str, kind: str, n: int) -> NDArray[Any]:
    array = rows.get(name)
    return np.zeros(n, DTYPES[kind]) if array is None else array.astype(DTYPES[kind], copy=False)


class Lookup:
    """A function from u32 ids to u32 values, with 0 -> 0, and `unknown` for an id without a value."""

    def __init__(self, ids: NDArray[Any], values: NDArray[Any], unknown: int) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids, self._values, self._unknown = ids[order], values[order].astype("<u4"), np.uint32(unknown)
        top = int(self._ids[-1]) if len(ids) else 0
        self._dense: NDArray[Any] | None = None
        if top < _DENSE:
            self._dense = np.full(top + 2, self._unknown, "<u4")
            self._dense[0] = 0
            self._dense[self._ids] = self._values

    def __call__(self, ids: NDArray[Any]) -> NDArray[Any]:
        """The value of each id, u32, in the shape of `ids`."""
        if self._dense is not None:
            values: NDArray[Any] = self._dense[np.minimum(ids, len(self._dense) - 1)]
            return values
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        found = np.where(self._ids[at] == ids, self._values[at], self._unknown)
        return np.where(ids == 0, np.uint32(0), found).astype("<u4")


class PartLookups:
    """Translates one part's ids to those of the whole trace, and mappings to their files and kinds.

    Args:
        tables: the part's names and mappings.
        whole: the mappings of the whole trace, to which the part's are added.
        rows: table -> (the Lookup of its rows' ids, the ids that earlier parts have given, how many of its rows they
            have): see row_ids.RowIds.
    """

    def __init__(self, tables: Tables, whole: Whole, rows: Mapping[str, tuple[Lookup, NDArray[Any], int]]) -> None:
        self._lost = lost = whole.strings.code(LOST)
        self._missing: dict[str, set[int]] = {kind: set() for kind in ("name", "mapping", *rows)}
        ids = np.array([i for i, name in enumerate(tables.names) if name is not None], "<u4")
        codes = np.array(whole.strings.codes(name for name in tables.names if name is not None), "<u4")
        self._name = Lookup(ids, codes, lost)
        mappings = tables.mappings()
        for column in ("file", "build_id"):
            mappings[column] = self.name(mappings[column])
        given = whole.add(mappings)
        #: semantic -> the function that translates the part's ids
        self.spaces: dict[str, Recoding] = {"str": self.name}
        if not np.array_equal(given, mappings["id"]):
            self.spaces["map"] = Lookup(mappings["id"], given, 0)
        #: table -> ids in the whole trace of rows that an earlier part has given
        self.given = {table: before for table, (_, before, _) in rows.items() if len(before)}
        #: table -> number of this part's rows that an earlier part has given
        self.repeated = {table: n for table, (_, _, n) in rows.items()}
        for table, (lookup, _, _) in rows.items():
            self.spaces[TABLES[table]] = functools.partial(self._row, table, lookup)
        kinds = (mappings["flags"] >> KIND_SHIFT) & 15
        labels = label_codes(mappings["file"], kinds, whole.strings)
        self._file = Lookup(mappings["id"], labels, lost)
        self.kind = Lookup(mappings["id"], kinds, 0)
        self._kernel = whole.strings.code("[kernel]")

    @property
    def n_missing(self) -> int:
        """The number of names, mappings and rows of tables that were referred to but are in no table."""
        return sum(map(len, self._missing.values()))

    def _noted(self, kind: str, ids: NDArray[Any], codes: NDArray[Any]) -> NDArray[Any]:
        self._note(kind, ids[codes == self._lost])
        return codes

    def _note(self, kind: str, lost: NDArray[Any]) -> None:
        if len(lost) and len(self._missing[kind]) < _MISSING_KEPT:
            self._missing[kind].update(distinct(lost)[:_MISSING_KEPT].tolist())

    def _row(self, table: str, lookup: Lookup, ids: NDArray[Any]) -> NDArray[Any]:
        """The whole trace's ids of a table's rows; a missing row gives 0 and is counted."""
        found = lookup(ids)
        self._note(table, ids[(found == 0) & (ids != 0)])
        return found

    def name(self, ids: NDArray[Any]) -> NDArray[Any]:
        """The codes of names by their ids in the part; a missing name gives `[lost]` and is counted."""
        return self._noted("name", ids, self._name(ids))

    def file(self, ids: NDArray[Any]) -> NDArray[Any]:
        """The `file` codes of mappings by their ids in the part; a missing one gives `[lost]` and is counted."""
        return self._noted("mapping", ids, self._file(ids))

    def derived(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The derived columns file, pc_file and kind, as far as the columns that they need are present."""
        found = {}
        if "mapping" in columns:
            found["file"] = self.file(columns["mapping"])
            found["kind"] = self.kind(columns["mapping"]).astype("|u1")
        if "pc_mapping" in columns:
            found["pc_file"] = self.file(columns["pc_mapping"])
            if "flags" in columns:
                kernel = (columns["flags"] & FAULT_PC_KERNEL != 0) & (columns["pc_mapping"] == 0)
                found["pc_file"][kernel] = self._kernel
        return found


class Whole:
    """The mappings of all parts of a trace.

    Parts of one session share the ids of their mappings. A mapping of another session whose id is taken gets a new id.
    """

    def __init__(self, strings: Dictionary | None = None) -> None:
        self.strings = strings if strings is not None else Dictionary()
        self._rows: list[dict[str, NDArray[Any]]] = []
        self._known: dict[int, tuple[int, ...]] = {}
        self._by_row: dict[tuple[int, ...], int] = {}
        self._next = 1

    def add(self, rows: dict[str, NDArray[Any]]) -> NDArray[Any]:
        """Adds a part's mappings, with names as codes; returns the whole trace's id of each, u32, shape (n,)."""
        if not self._rows:  # the only part, as a rule: its ids are kept
            self._rows.append(rows)
            return rows["id"]
        if not self._known:
            self._learn(self._rows[0])
        identity = [rows[name].tolist() for name in _IDENTITY]
        ids, new = [], []
        for position, (own, row) in enumerate(zip(rows["id"].tolist(), zip(*identity, strict=True), strict=True)):
            known = self._by_row.get((own, *row))
            if known is None:
                known = own if own not in self._known else self._unused()
                self._known[known] = row
                self._by_row[own, *row] = known
                self._next = max(self._next, known + 1)
                new.append(position)
            ids.append(known)
        given = np.array(ids, "<u4")
        self._rows.append({**{name: array[new] for name, array in rows.items()}, "id": given[new]})
        return given

    def _unused(self) -> int:
        """An unused id: above all others, or between them when the greatest id is taken."""
        if self._next > _U32:
            self._next = 1
        while self._next in self._known:
            self._next += 1
        return self._next

    def _learn(self, rows: dict[str, NDArray[Any]]) -> None:
        """Indexes the first part's mappings, for the parts that follow."""
        identity = (rows[name].tolist() for name in _IDENTITY)
        for own, row in zip(rows["id"].tolist(), zip(*identity, strict=True), strict=True):
            self._known[own] = row
            self._by_row[own, *row] = own
            self._next = max(self._next, own + 1)

    def batch(self) -> Batch:
        """The mappings as one batch, with ascending ids."""
        columns = {c.name: _joined([rows[c.name] for rows in self._rows], c.type) for c in MAPPING.columns}
        if _ascending(columns["id"]):
            return Batch(MAPPING, columns, strings=self.strings)
        order = np.argsort(columns["id"], kind="stable")
        return Batch(MAPPING, {name: array[order] for name, array in columns.items()}, strings=self.strings)


def label_codes(files: NDArray[Any], kinds: NDArray[Any], strings: Dictionary) -> NDArray[Any]:
    """The `file` codes of mappings: the path, or `[heap]`, `[stack]`, `[anon]` ... by their kind."""
    unnamed = np.array(
        [0 if kind == "other" else strings.code(f"[{kind}]") for kind in KINDS] + [0] * (16 - len(KINDS)), "<u4"
    )
    return np.where(files != 0, files, np.where(kinds == KIND_FILE, 0, unnamed[kinds]))
