"""TraceWriter: encodes batches as frames, and writes these to the parts of a trace.

All of it runs on one thread. Small batches of a stream wait until together they fill a frame or are a second old. The
names and mappings that a frame refers to are written before it: a file has the session's own ids, and a part begins
with none of these rows, so those that its rows name are repeated in it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Columns, Dictionary, SnapshotPart
from wstrace.schema import MAPPING, PROCESS, STREAMS, TABLES, Schema
from wstrace_exporters.msgpack.format import frames, osfile
from wstrace_exporters.msgpack.format.columns import TYPES
from wstrace_exporters.msgpack.format.frames import pid_set
from wstrace_exporters.msgpack.format.layout import (
    CLOCK_MARK_SECONDS,
    EVENTS,
    FRAME_ROWS,
    FRAME_SECONDS,
    LIMITS,
    MAPPINGS,
    MARK,
    SNAPSHOT,
    STRINGS,
)
from wstrace_exporters.msgpack.format.values import packb, text
from wstrace_exporters.msgpack.write.parts import Parts

#: New rows that wait to be sorted in among the others, and batches of them, at 3 kB each besides their rows.
_UNSORTED, _UNSORTED_BATCHES = 16_384, 1024
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

    schema: the table. semantic: that of its ids. most: the rows that are held. forget: whether those are forgotten past
    it that were named least recently; else no more are taken.
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
            if self._n_new > max(_UNSORTED, len(self._ids) // 4) or len(self._new) > _UNSORTED_BATCHES:
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

    def files(self, ids: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The files of mappings of these ids, without new ones, which the part has."""
        files = self._rows.get("file", self._ids)
        return files[self._at(np.concatenate(ids))] if ids else files[:0]

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


#: A session's rows of a table may fill this fraction of a reader's limit, so that a part that repeats them has room.
_HELD_SHARE = 0.5
#: Mappings that are held to be repeated: 13 MB, and thrice that while they are sorted. Past it those are forgotten that
#: records named least recently.
HELD_MAPPINGS = 1 << 17


#: About the most characters of names in one STRINGS frame, so that its body stays below a megabyte in any encoding.
_STRINGS_CHARS = 128 << 10
#: A part ends when a table reaches this fraction of a reader's limit.
_TABLE_SHARE = 0.75


def of_tables() -> dict[str, str]:
    """The tables, in the order in which they are written -> the semantic of their rows' ids."""
    return {"mapping": "map", **TABLES}


class TraceWriter:
    """Writes one trace, in one or several parts. Every method raises OutputError when the output can take no more.

    parts: the first part, and what opens each further one. strings: the session's dictionary, for the codes in `str`
    columns. mappings: how many mappings are held, so that later parts repeat those that they need. facts: the
    description of the trace so far, which stands before the first rows of each part, for a trace of a killed writer.
    """

    def __init__(
        self, parts: Parts, strings: Dictionary, *, mappings: int = HELD_MAPPINGS,
        facts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:  # fmt: skip
        self._parts, self._facts = parts, facts
        self._strings = strings
        self._gathered: dict[str, list[Batch]] = {}  # stream -> batches that wait to become a frame
        self._gathered_rows: Counter[str] = Counter()
        self._since = 0.0  # when the first of them came
        self._names, self._files = Names(strings), Names(strings)  # all; those of the files of mappings
        most = int(_HELD_SHARE * LIMITS.table_rows)
        self._tables = {space: Rows(STREAMS[table], space, mappings if space == "map" else most, forget=space == "map")
                        for table, space in of_tables().items()}  # fmt: skip
        self._announced: dict[str, set[str]] = {}  # stream -> columns that its rows have had in this part
        self.rows: Counter[str] = Counter()  # rows accepted, by stream
        self.left_out: Counter[str] = Counter()  # column of a type that the format lacks -> its rows
        self._clocked = 0.0
        self._skew = 0
        self._begin_part()

    def _begin_part(self) -> None:
        self._sink = self._parts.sink
        self._announced.clear()
        self._clock()

    def write(self, batch: Batch) -> None:
        """Takes a batch of any stream except address_space."""
        name = batch.schema.name
        self.rows[name] += len(batch)
        if name == "mark":
            self._user_marks(batch)
        elif (batch.schema.snapshot and len(batch) > LIMITS.rows) or self._too_many(batch):
            self._sink.drop(name, len(batch), f"{name} has more rows than a reader takes")
        elif batch.schema.snapshot:
            one = batch.snapshot or SnapshotPart(time_ns=batch.window[0])
            self._frame(batch.schema, len(batch), self._stored(batch), (one.time_ns, one.time_ns), snapshot=one)
        elif name in of_tables() and not self._tables[of_tables()[name]].add(batch):
            self._sink.drop(name, len(batch), f"{name} has more rows than a reader takes")
        elif len(batch) or batch.lost:
            self._gather(batch)

    def _too_many(self, batch: Batch) -> bool:
        """Whether the part cannot take these rows of a table: it is a pipe, or no further part can be begun."""
        if batch.schema is MAPPING and "file" in batch:
            self._count_files(lambda: batch["file"])
            return self._files.n >= LIMITS.files  # 0, no file, is one for readers
        n = self._sink.rows["process"] + self._gathered_rows["process"] + len(batch)
        return batch.schema is PROCESS and n > LIMITS.processes

    def _count_files(self, files: Callable[[], NDArray[Any]]) -> None:
        """Counts files of mappings that the part gets; begins the next one for them where it gets too many."""
        new = self._files.lacking(files())
        full = len(new) > 0 < self._files.n and self._files.n + len(new) > _TABLE_SHARE * LIMITS.files
        if full and self._parts.due(full) and self.rotate():
            new = self._files.lacking(files())
        self._files.n += len(new)

    def _gather(self, batch: Batch) -> None:
        """Lets a batch wait until half a frame has come, which is one batch mostly: to join batches is to copy them."""
        name = batch.schema.name
        first = self._gathered.get(name, [batch])[0]
        if set(first) != set(batch) or first.schema != batch.schema:
            self._cut(name)
        self._since = self._since or time.monotonic()
        self._gathered.setdefault(name, []).append(batch)
        self._gathered_rows[name] += len(batch)
        if self._gathered_rows[name] >= FRAME_ROWS // 2:
            self._cut(name)

    def tick(self) -> None:
        """Does what is due by time: writes old rows and a clock mark, retries a failed disk, begins a new part."""
        if self._since and time.monotonic() - self._since >= FRAME_SECONDS:
            self.flush()
        self._clock(CLOCK_MARK_SECONDS)
        self._sink.settle()
        self._rotate_if_due()

    def copy_mark(self, mark: Mapping[str, Any]) -> None:
        """Writes a mark of another trace unchanged."""
        body = packb({key: plain(value) for key, value in mark.items()})
        self._sink.append(MARK, body, stream=str(mark.get("m", "")))

    def flush(self) -> None:
        """Writes all waiting rows."""
        for name in sorted(self._gathered, key=lambda name: name == "page_fault"):
            self._cut(name)
        self._since = 0.0

    def mark(self, kind: str, **fields: Any) -> None:
        """Writes a MARK frame with the present time."""
        self._sink.mark(kind, **fields)

    def settle(self) -> None:
        """Writes all waiting rows before close(); those that cannot be written are dropped and counted in `dropped`."""
        self.flush()
        self._sink.settle()

    def close(self, ledger: Mapping[str, int], facts: Mapping[str, Any]) -> None:
        """Writes the rest and ends the file. Raises OutputError when the end cannot be written."""
        self.flush()
        self._clock()
        if facts:
            self.mark("facts", facts=plain(facts))
        self._parts.end(dict(ledger))

    def abandon(self) -> None:
        """Closes the descriptor and writes nothing, in a forked child."""
        self._sink.out.close()

    def discard(self) -> None:
        """Removes what this writer has begun to write, after a failed start."""
        self._parts.discard()

    def _clock(self, seconds: float = 0.0) -> None:
        """Writes a clock mark, if the last one is as old as that, or the machine was suspended since."""
        if self._parts.like is not None:
            return  # the times are those of another trace, not of our clock
        now, clocks = time.monotonic(), osfile.clocks()
        skew = clocks.get("boottime", 0) - clocks["monotonic"]
        if now - self._clocked >= seconds or abs(skew - self._skew) > 10**9:
            self._clocked, self._skew = now, skew
            self._sink.append(MARK, packb({"m": "clock", "t": clocks["monotonic"], **clocks}), stream="clock")

    def _user_marks(self, batch: Batch) -> None:
        self._announce(batch.schema, {})
        columns = {name: batch[name].tolist() for name in batch}
        for row in range(len(batch)):
            at = {name: values[row] for name, values in columns.items()}
            mark = {"m": "user", "t": at.pop("time_ns", 0), **at, "text": text(self._strings[at.get("text", 0)])}
            pids = pid_set([at["pid"]]) if "pid" in at else 0
            if not self._sink.append(MARK, packb(mark), stream="mark", n=1, pids=pids):
                self._sink.drop("mark", 1)

    def _cut(self, name: str) -> None:
        """Writes the waiting rows of a stream, if any, as one or several frames of about the same size."""
        if name == "page_fault":  # readers count a fault for the program that its process is known to run by then
            self._cut("process")
        batches, n = self._gathered.pop(name, []), self._gathered_rows.pop(name, 0)
        if not batches:
            return
        schema, columns = batches[0].schema, concatenate([self._stored(batch) for batch in batches])
        lost = sum(batch.lost for batch in batches)
        window = (min(b.window[0] for b in batches), max(b.window[1] for b in batches))
        number = max(round(n / FRAME_ROWS), 1)  # rather larger ones: a frame takes 0.2 ms to read besides its rows
        for start, end in pairwise(n * i // number for i in range(number + 1)):
            part = {key: array[start:end] for key, array in columns.items()}
            self._frame(schema, end - start, part, window, lost if start == 0 else 0)

    def _frame(
        self, schema: Schema, n: int, columns: Columns, window: tuple[int, int], lost: int = 0,
        snapshot: SnapshotPart | None = None,
    ) -> None:  # fmt: skip
        """Writes n rows, and before them what they name. window: their times; of rows with a time, those count."""
        name = schema.name
        table = self._tables.get(of_tables().get(name, ""))
        if table is None:
            ids = [columns[column.name] for column in schema.columns
                   if column.semantic == "map" and column.name in columns]  # fmt: skip
            self._count_files(lambda: self._tables["map"].files(ids))
        self._announce(schema, columns)
        self._precede(schema, columns, for_ever=table is not None)
        times, pids = columns.get("time_ns"), columns.get("pid")
        if snapshot is not None:
            pages = int(columns["pages"].sum()) if "pages" in columns else 0
            kind, header = SNAPSHOT, {"s": name, **snapshot._replace(pages=pages).to_dict(), "n": n}
            pids = np.array([snapshot.pid] if snapshot.pid else [], "<u4")
        else:
            if times is not None and n:
                window = (int(times.min()), int(times.max()))
            kind = MAPPINGS if name == MAPPING.name else EVENTS
            header = {"s": name, "n": n, "t": list(window), "lost": lost}
        body, among = frames.pack_rows(header, columns), 0
        if pids is not None and pids.dtype == "<u4":
            among = pid_set(pids)
        written = self._sink.append(kind, body, stream=name, n=n, t=window, pids=among)
        if table is None:
            if not written:
                self._sink.drop(name, n)
            self._rotate_if_due()  # not behind a table: the rows that refer to it belong in the same part
        elif not written and table.key in columns:
            table.forget(columns[table.key])  # they are written when the next rows name them

    def _precede(self, schema: Schema, columns: Mapping[str, NDArray[Any]], *, for_ever: bool) -> None:
        """Writes the names and the rows of tables that these rows name, where the part lacks them.

        for_ever: whether they are rows of a table, which other parts repeat.
        """
        own = self._tables.get(of_tables().get(schema.name, ""))
        for name in of_tables():
            if name == schema.name:
                break
            self._cut(name)
        codes = []
        for column in schema.columns:
            ids = columns.get(column.name)
            if ids is None or (own is not None and column.name == own.key):
                continue
            if column.semantic == "str":
                codes.append(self._names.lacking(ids))
            elif (table := self._tables.get(column.semantic)) is not None:
                rows = table.lacking(ids, for_ever=for_ever)
                if rows is not None:
                    self._frame(table.schema, len(rows[table.key]), rows, (0, 0))
        self._strings_frames(np.concatenate(codes) if codes else np.empty(0, "<u4"))

    def _stored(self, batch: Batch) -> Columns:
        """The columns to write: those that are not derived and of a type that the format has."""
        kept: Columns = {}
        for name, array in batch.columns.items():
            column = batch.schema.column(name)
            if column is not None and column.derived:
                continue
            if array.dtype.newbyteorder("<").str not in TYPES or len(kept) >= LIMITS.columns:
                self.left_out[name] += len(batch)
            else:
                kept[name] = array
        return kept

    def _announce(self, schema: Schema, columns: Mapping[str, NDArray[Any]]) -> None:
        """Announces a stream's columns before its first rows in a part, and further columns when they first appear.

        A batch may have columns that earlier ones lacked: columns of the schema, or columns that an enricher added.
        """
        if not self._announced and (facts := self._facts()):
            self.mark("facts", facts=plain(facts))
        name = schema.name
        known = self._announced.setdefault(name, set())
        new = [column for column in columns if column not in known]
        if known and not new:
            return
        rows = [] if known else frames.schema_rows(schema)
        rows += [[column, TYPES[columns[column].dtype.newbyteorder("<").str], "count"]
                 for column in new if schema.column(column) is None]  # fmt: skip
        known.update(new or [""])
        kinds = {word: [name] for word in ("snapshot", "essential") if getattr(schema, word)}
        if not self._sink.mark("schema", schema={name: rows}, present=new, **kinds):
            del self._announced[name]  # again before the next rows

    def _strings_frames(self, codes: NDArray[Any]) -> None:
        names = [self._strings[code] for code in codes.tolist()]
        self._names.n += len(names)
        self._names.characters += sum(map(len, names))
        sums = np.cumsum(list(map(len, names))) // _STRINGS_CHARS
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(sums)) + 1).tolist(), len(names)] if names else []):
            body = frames.pack_strings(codes[start:end], names[start:end])
            if not self._sink.append(STRINGS, body):
                self._names.forget(codes[start:end])

    def _rotate_if_due(self) -> None:
        rows = self._sink.rows
        most = {"mapping": LIMITS.mappings, "process": LIMITS.processes, **dict.fromkeys(TABLES, LIMITS.table_rows)}
        full = any(rows[name] > _TABLE_SHARE * limit for name, limit in most.items())
        full |= self._names.n > _TABLE_SHARE * LIMITS.strings
        full |= self._names.characters > _TABLE_SHARE * LIMITS.strings_total
        if self._parts.due(full):
            self.rotate()

    def rotate(self) -> bool:
        """Writes the waiting rows of tables and begins the next part; False when no file can be opened."""
        for name in of_tables():
            self._cut(name)
        if not self._parts.next():
            return False
        self._names.begin_part()
        self._files.begin_part()
        for table in self._tables.values():
            table.begin_part()
        self._begin_part()
        return True

    @property
    def dropped(self) -> int:
        """The number of rows that were dropped for good."""
        if self._sink.dead:
            return sum(n - self._parts.rows(name) for name, n in self.rows.items() if name not in of_tables())
        return sum(self._sink.dropped.values())

    @property
    def why_dropped(self) -> str:
        """Why rows were dropped first; "" when none were, or when the output was not the reason."""
        return self._sink.dead or self._sink.why_dropped

    @property
    def stalled(self) -> str:
        """Why frames wait for the output; "" when none do."""
        return self._sink.dead or self._sink.error


def plain(value: Any, depth: int = 0) -> Any:
    """A value as msgpack can encode it: scalars, lists and maps, bounded in size; anything else as text."""
    if isinstance(value, Mapping) and depth < 6:
        return {str(key): plain(item, depth + 1) for key, item in list(value.items())[:1000]}
    if isinstance(value, list | tuple | set | frozenset) and depth < 6:
        return [plain(item, depth + 1) for item in list(value)[:1000]]
    if isinstance(value, np.integer):
        value = int(value)
    known = value is None or isinstance(value, bool | float)
    if known or (isinstance(value, int) and -(1 << 63) <= value < 1 << 64):
        return value
    return text(str(value)[:4096])
