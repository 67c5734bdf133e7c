"""What a part's ids mean: its names, its mappings, and the ids of its rows of other tables.

The ids of a file are those of the session that wrote it. All parts of a session share them, so they are valid in the
whole trace. Where a trace has parts of several sessions, those of each further one are moved behind those before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary, Recoding
from wstrace.schema import (
    DTYPES,
    FAULT_PC_KERNEL,
    KIND_FILE,
    KIND_SHIFT,
    KINDS,
    MAPPING,
    MOST_FRAMES,
    TABLES,
    own_id,
)
from wstrace_exporters.msgpack.format.frames import unpack_rows
from wstrace_exporters.msgpack.format.layout import LOST, FrameError, Limits

#: A table whose ids are below this is an array indexed by id.
_DENSE = 1 << 22
#: At most this many distinct missing ids are counted of each kind; a hostile file may have four billion.
_MISSING_KEPT = 1 << 16
_NONE: NDArray[Any] = np.empty(0, "<u4")
#: The column of a table whose rows form trees.
_PARENT = "parent"


class Tables:
    """The names and mappings of one part, from its STRINGS and MAPPINGS frames. Of each id the first row counts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._ids: list[NDArray[Any]] = []
        self._names: list[str] = []
        self._chars = 0
        self._rows: list[dict[str, NDArray[Any]]] = []
        self.n_mappings = 0

    def add_strings(self, ids: NDArray[Any], names: list[str]) -> None:
        """Adds names. Raises FrameError past the limits."""
        self._chars += sum(map(len, names))
        if len(self._names) + len(names) > self._limits.strings or self._chars > self._limits.strings_total:
            raise FrameError("more names than the limit")
        self._ids.append(ids)
        self._names += names

    def add_mappings(self, columns: dict[str, NDArray[Any]]) -> None:
        """Adds rows of mappings. Raises FrameError past the limits, or if they have no ids."""
        if "id" not in columns:
            raise FrameError("mappings without ids")
        n = len(columns["id"])
        if self.n_mappings + n > self._limits.mappings:
            raise FrameError("more mappings than the limit")
        self.n_mappings += n
        self._rows.append({c.name: columns[c.name].astype(DTYPES[c.type], copy=False) if c.name in columns
                           else np.zeros(n, DTYPES[c.type]) for c in MAPPING.columns})  # fmt: skip

    def names(self, strings: Dictionary) -> tuple[NDArray[Any], NDArray[Any]]:
        """The ids of names, distinct, and the code of each in a dictionary, u32."""
        codes = np.array(strings.codes(self._names), "<u4")
        ids, codes = first_of_each([np.stack((np.concatenate([_NONE, *self._ids]), codes))])
        return ids, codes

    def mappings(self) -> dict[str, NDArray[Any]]:
        """All mappings as columns, one row per id, ascending; `file` and `build_id` are ids of names."""
        return _by_id(self._rows)


def _by_id(rows: Sequence[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """The rows of mappings as columns, one per id, ascending."""
    columns = {c.name: np.concatenate([np.empty(0, DTYPES[c.type]), *(one[c.name] for one in rows)])
               for c in MAPPING.columns} if len(rows) != 1 else rows[0]  # fmt: skip
    ids = columns["id"]
    if (ids[1:] > ids[:-1]).all() and not (len(ids) and ids[0] == 0):
        return columns  # our writer's order; this avoids a copy of up to 60 MB
    first = np.unique(ids, return_index=True)[1]
    first = first[ids[first] != 0]
    return {name: array[first] for name, array in columns.items()}


def ids_in(body: Any, table: str, limits: Limits) -> NDArray[Any]:
    """The rows' own ids in an EVENTS body of a table, and their parents', u32, shape (2, n); 0 = no parent.

    There are none for another stream. Raises FrameError.
    """
    key = own_id(table)
    rows = unpack_rows(body, (key, _PARENT).__contains__, limits)
    ids = rows.columns.get(key, _NONE)
    if rows.stream != table or not np.can_cast(ids.dtype, "<u4"):
        return np.empty((2, 0), "<u4")
    parents = rows.columns.get(_PARENT, _NONE)
    if len(parents) != len(ids) or not np.can_cast(parents.dtype, "<u4"):
        parents = np.zeros_like(ids)
    return np.stack((ids, parents)).astype("<u4")


def first_of_each(found: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The ids of several frames and another value of each, of each id its first row, ascending. u32, shape (2, n)."""
    rows = np.concatenate(found, axis=1)
    first: NDArray[Any] = rows[:, np.unique(rows[0], return_index=True)[1]]
    return first[:, first[0] != 0]


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


class Numbering(NamedTuple):
    """How the ids of a part are numbered in the whole trace.

    Attributes:
        base: semantic -> what is added to ids of that space, 0 for those of the first session.
        given: table -> ids in the whole trace of the rows that earlier parts of the session have, ascending.
    """

    base: Mapping[str, int] = {}
    given: Mapping[str, NDArray[Any]] = {}


class PartLookups:
    """What a part's ids are in the whole trace, and the files and kinds of its mappings.

    Args:
        tables: the part's names and mappings.
        rows: table -> the ids of the part's rows.
        numbering: where they are in the whole trace.
        strings: the dictionary of the whole trace.

    Attributes:
        spaces: semantic -> the function that gives the ids in the whole trace.
        mappings: the part's mappings, with these ids.
        given: table -> ids in the whole trace of rows that an earlier part has given, for those tables.
        rows: table -> ids in the whole trace of the part's rows.
        repeated: table -> number of this part's rows that an earlier part has given.
        top: semantic -> the greatest id in the whole trace, which may be too large for one.
    """

    def __init__(
        self, tables: Tables, rows: Mapping[str, NDArray[Any]], numbering: Numbering, strings: Dictionary
    ) -> None:
        base, self.given = numbering.base, {table: ids for table, ids in numbering.given.items() if len(ids)}
        self._lost = lost = strings.code(LOST)
        self._missing: dict[str, set[int]] = {kind: set() for kind in ("name", "mapping", *rows)}
        self._name = Lookup(*tables.names(strings), lost)
        self.spaces: dict[str, Recoding] = {"str": self.name}
        self.mappings = mappings = dict(tables.mappings())
        ids = mappings["id"]
        for column in ("file", "build_id"):
            mappings[column] = self.name(mappings[column])
        if shift := base.get("map", 0):
            mappings["id"] = moved(ids, shift)
            self.spaces["map"] = Lookup(ids, mappings["id"], 0)
        self.top = {"map": shift + int(ids.max(initial=0))}
        self.rows, self.repeated = dict[str, NDArray[Any]](), dict[str, int]()
        for table, own in rows.items():
            space, shift = TABLES[table], base.get(TABLES[table], 0)
            self.rows[table] = whole = moved(own, shift)
            self.spaces[space] = _Rows(own, whole, self._missing[table])
            self.repeated[table] = int(np.isin(whole, self.given.get(table, _NONE)).sum())
            self.top[space] = shift + int(own.max(initial=0))
        kinds = (mappings["flags"] >> KIND_SHIFT) & 15
        self._file = Lookup(ids, label_codes(mappings["file"], kinds, strings), lost)
        self.kind = Lookup(ids, kinds, 0)
        self._kernel = strings.code("[kernel]")

    @property
    def n_missing(self) -> int:
        """The number of names, mappings and rows of tables that were referred to but are in no table."""
        return sum(map(len, self._missing.values()))

    def _noted(self, kind: str, ids: NDArray[Any], codes: NDArray[Any]) -> NDArray[Any]:
        _note(self._missing[kind], ids[codes == self._lost])
        return codes

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


class _Rows:
    """A Recoding of the ids of a table's rows to the whole trace's; a missing row gives 0 and is counted."""

    def __init__(self, own: NDArray[Any], whole: NDArray[Any], missing: set[int]) -> None:
        self._lookup, self._missing = Lookup(own, whole, 0), missing

    def __call__(self, ids: NDArray[Any]) -> NDArray[Any]:
        found = self._lookup(ids)
        _note(self._missing, ids[(found == 0) & (ids != 0)])
        return found


def _note(missing: set[int], lost: NDArray[Any]) -> None:
    if len(lost) and len(missing) < _MISSING_KEPT:
        missing.update(distinct(lost)[:_MISSING_KEPT].tolist())


def moved(ids: NDArray[Any], base: int) -> NDArray[Any]:
    """Ids plus `base`, modulo 2**32; 0, which is no id, stays."""
    return ids if base == 0 else np.where(ids == 0, ids, ids + np.uint32(base % (1 << 32))).astype("<u4")


def joined(lookups: Sequence[PartLookups], strings: Dictionary) -> Batch:
    """The mappings of several parts as one batch, with ascending ids."""
    return Batch(MAPPING, _by_id([part.mappings for part in lookups]), strings=strings)


def label_codes(files: NDArray[Any], kinds: NDArray[Any], strings: Dictionary) -> NDArray[Any]:
    """The `file` codes of mappings: the path, or `[heap]`, `[stack]`, `[anon]` ... by their kind."""
    unnamed = np.array(
        [0 if kind == "other" else strings.code(f"[{kind}]") for kind in KINDS] + [0] * (16 - len(KINDS)), "<u4"
    )
    return np.where(files != 0, files, np.where(kinds == KIND_FILE, 0, unnamed[kinds]))
