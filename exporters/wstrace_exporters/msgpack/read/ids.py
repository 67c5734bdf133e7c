"""What a part's ids mean: its names, its mappings, and the ids of its rows of other tables.

The ids of a file are those of the session that wrote it. All parts of a session share them, so they are valid in the
whole trace. Where a trace has parts of several sessions, those of each further one are moved behind those before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Columns, Dictionary, Recoding
from wstrace.errors import TraceFileError
from wstrace.schema import DTYPES, FAULT_PC_KERNEL, KIND_FILE, KIND_SHIFT, KINDS, MAPPING, MOST_FRAMES, TABLES, own_id
from wstrace.table import Selection
from wstrace_exporters.msgpack.format.frames import unpack_rows, unpack_strings
from wstrace_exporters.msgpack.format.layout import EVENTS, LOST, MAPPINGS, STRINGS, FrameError
from wstrace_exporters.msgpack.read.part import Part

#: A table whose ids are below this is an array indexed by id.
_DENSE = 1 << 22
#: At most this many distinct missing ids are counted of each kind; a hostile file may have four billion.
_MISSING_KEPT = 1 << 16
_NONE: NDArray[Any] = np.empty(0, "<u4")


class Lookup:
    """A function from u32 ids to u32 values, with 0 -> 0, and `unknown` for an id without a value.

    ids: shape (n,); of equal ones the first counts. values: of these. unknown: the value of other ids. missing: gets
    the ids without a value that were looked up; None = they are not noted.
    """

    def __init__(self, ids: NDArray[Any], values: NDArray[Any], unknown: int, missing: set[int] | None = None) -> None:
        self._ids, first = np.unique(ids, return_index=True)
        self._values, self._unknown, self._missing = values[first].astype("<u4"), np.uint32(unknown), missing
        top = int(self._ids[-1]) if len(ids) else 0
        self._dense: NDArray[Any] | None = None
        if top < _DENSE:
            self._dense = np.full(top + 2, self._unknown, "<u4")
            self._dense[self._ids] = self._values
            self._dense[0] = 0

    def __call__(self, ids: NDArray[Any]) -> NDArray[Any]:
        """The value of each id, u32, in the shape of `ids`."""
        found: NDArray[Any]
        if self._dense is not None:
            found = self._dense[np.minimum(ids, len(self._dense) - 1)]
        else:
            at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            found = np.where(self._ids[at] == ids, self._values[at], self._unknown)
            found = np.where(ids == 0, np.uint32(0), found).astype("<u4")
        if self._missing is not None and len(self._missing) < _MISSING_KEPT:
            lost = ids[(found == self._unknown) & (ids != 0)]
            if len(lost):
                self._missing.update(distinct(lost)[:_MISSING_KEPT].tolist())
        return found


class PartIds:
    """What a part's ids are in the whole trace, and the files and kinds of its mappings.

    Args:
        part: the part.
        strings: the dictionary of the whole trace.
        base: semantic -> what is added to ids of that space; none to those of the first session.
        given: table -> ids in the whole trace of rows that earlier parts of the session have.

    Attributes:
        spaces: semantic -> the function that gives the ids in the whole trace.
        mappings: the part's mappings as columns, with these ids, ascending. Of each id the first row counts.
        rows: table -> ids in the whole trace of the part's rows.
        given: those of `given` that are not empty.
        top: semantic -> the greatest id in the whole trace, which may be too large for one.

    Raises:
        TraceFileError: it names too many files, or a stack is deeper than any that is recorded, or has no end.
    """

    def __init__(
        self, part: Part, strings: Dictionary, base: Mapping[str, int] = {}, given: Mapping[str, NDArray[Any]] = {}
    ) -> None:
        self.given = {table: ids for table, ids in given.items() if len(ids)}
        self._missing: list[set[int]] = []
        self._kernel, self._lost = strings.code("[kernel]"), strings.code(LOST)
        ids, names, self.mappings = _tables(part)
        name = self._counted(ids, np.array(strings.codes(names), "<u4"), self._lost)
        self.spaces: dict[str, Recoding] = {"str": name}
        mappings, shift = self.mappings, base.get("map", 0)
        ids, kinds = mappings["id"], (mappings["flags"] >> KIND_SHIFT) & 15
        for column in ("file", "build_id"):
            mappings[column] = name(mappings[column])
        if (n := len(distinct(mappings["file"]))) > part.limits.files:
            raise TraceFileError(f"{part.path}: it names {n:,} files, and at most {part.limits.files:,} are read",
                                 "record in shorter parts: rotate_bytes=64MiB")  # fmt: skip
        self._file = self._counted(ids, label_codes(mappings["file"], kinds, strings), self._lost)
        self._kind = Lookup(ids, kinds, 0)
        if shift:
            mappings["id"] = moved(ids, shift)
            self.spaces["map"] = Lookup(ids, mappings["id"], 0)
        self.top, self.rows = {"map": shift + int(ids.max(initial=0))}, Columns()
        for table, space in TABLES.items():
            own, shift = _row_ids(part, table), base.get(space, 0)
            self.rows[table] = moved(own, shift)
            self.spaces[space] = self._counted(own, self.rows[table], 0)
            self.top[space] = shift + int(own.max(initial=0))

    def _counted(self, ids: NDArray[Any], values: NDArray[Any], unknown: int) -> Lookup:
        """A Lookup of which the missing ids count."""
        self._missing.append(set())
        return Lookup(ids, values, unknown, self._missing[-1])

    @property
    def n_missing(self) -> int:
        """The number of names, mappings and rows of tables that were referred to but are in no table."""
        return sum(map(len, self._missing))

    def repeated(self) -> dict[str, int]:
        """table -> number of the part's rows that an earlier part has given."""
        return {table: int(np.isin(self.rows[table], ids).sum()) for table, ids in self.given.items()}

    def derived(self, columns: Columns) -> Columns:
        """The derived columns file, pc_file and kind of rows with the part's own ids, as far as they can be made."""
        found = {}
        if "mapping" in columns:
            found["file"] = self._file(columns["mapping"])
            found["kind"] = self._kind(columns["mapping"]).astype("|u1")
        if "pc_mapping" in columns:
            found["pc_file"] = self._file(columns["pc_mapping"])
            if "flags" in columns:
                kernel = (columns["flags"] & FAULT_PC_KERNEL != 0) & (columns["pc_mapping"] == 0)
                found["pc_file"][kernel] = self._kernel
        return found


def _tables(part: Part) -> tuple[NDArray[Any], list[str], Columns]:
    """The ids of a part's names, the names, and its mappings as by_id() gives them; `file` is an id of a name."""
    limits, ids, names, rows = part.limits, [_NONE], list[str](), list[Columns]()
    chars = n_rows = 0
    for frame in part.read((STRINGS, MAPPINGS)):
        good = False
        with suppress(FrameError):
            if frame.kind == STRINGS:
                some, texts = unpack_strings(frame.body, limits)
                chars += sum(map(len, texts))
                if good := len(names) + len(texts) <= limits.strings and chars <= limits.strings_total:
                    ids.append(some)
                    names += texts
            else:
                columns = unpack_rows(frame.body, limits=limits).columns
                n = len(columns.get("id", _NONE))
                if good := "id" in columns and n_rows + n <= limits.mappings:
                    n_rows += n
                    rows.append({c.name: columns[c.name].astype(DTYPES[c.type], copy=False) if c.name in columns
                                 else np.zeros(n, DTYPES[c.type]) for c in MAPPING.columns})  # fmt: skip
        part.damage.bad_frames += not good
    return np.concatenate(ids), names, by_id(rows)


def by_id(rows: Sequence[Mapping[str, NDArray[Any]]]) -> Columns:
    """Rows of mappings as columns, one per id, ascending."""
    columns = {c.name: np.concatenate([np.empty(0, DTYPES[c.type]), *(one[c.name] for one in rows)])
               for c in MAPPING.columns} if len(rows) != 1 else dict(rows[0])  # fmt: skip
    ids = columns["id"]
    if (ids[1:] > ids[:-1]).all() and not (len(ids) and ids[0] == 0):
        return columns  # our writer's order; this avoids a copy of up to 60 MB
    first = np.unique(ids, return_index=True)[1]
    first = first[ids[first] != 0]
    return {name: array[first] for name, array in columns.items()}


def _row_ids(part: Part, table: str) -> NDArray[Any]:
    """The distinct ids of a part's rows of a table, u32, ascending, up to the limit.

    Raises TraceFileError: a stack is deeper than any that is recorded, or has no end.
    """
    found, most, key = [np.empty((2, 0), "<u4")], part.limits.table_rows, own_id(table)
    for frame in part.read((EVENTS,), Selection(table)):
        try:
            rows = unpack_rows(frame.body, (key, "parent").__contains__, part.limits)
        except FrameError:
            continue  # counted as damage when the rows are read
        columns = [rows.columns.get(name, np.zeros(rows.n, "<u4")) for name in (key, "parent")]
        if rows.stream == table and key in rows.columns and all(np.can_cast(one.dtype, "<u4") for one in columns):
            found.append(np.stack(columns).astype("<u4"))
        if sum(rows.shape[1] for rows in found) > 2 * most:
            found = [_first_of_each(found)[:, :most]]
    ids, parents = _first_of_each(found)[:, :most]
    if too_deep(ids, parents):
        why = f"{part.path} has stacks of more than {MOST_FRAMES:,} frames, which wstrace never records"
        raise TraceFileError(why)
    return np.asarray(ids)


def _first_of_each(found: Sequence[NDArray[Any]]) -> NDArray[Any]:
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


def moved(ids: NDArray[Any], base: int) -> NDArray[Any]:
    """Ids plus `base`, modulo 2**32; 0, which is no id, stays."""
    return ids if base == 0 else np.where(ids == 0, ids, ids + np.uint32(base % (1 << 32))).astype("<u4")


def label_codes(files: NDArray[Any], kinds: NDArray[Any], strings: Dictionary) -> NDArray[Any]:
    """The `file` codes of mappings: the path, or `[heap]`, `[stack]`, `[anon]` ... by their kind."""
    unnamed = np.array(
        [0 if kind == "other" else strings.code(f"[{kind}]") for kind in KINDS] + [0] * (16 - len(KINDS)), "<u4"
    )
    return np.where(files != 0, files, np.where(kinds == KIND_FILE, 0, unnamed[kinds]))
