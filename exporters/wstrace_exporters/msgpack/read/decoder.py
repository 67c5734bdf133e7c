"""Decodes frames into batches: decodes columns, translates a part's ids to the trace's, computes derived columns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch, Dictionary, SnapshotPart, recoded
from wstrace.schema import DTYPES, MARK, PROCESS, STREAMS, Schema, own_id
from wstrace.table import Selection
from wstrace_exporters.msgpack.format import frames
from wstrace_exporters.msgpack.format.layout import EVENTS, SNAPSHOT, FrameError, Limits
from wstrace_exporters.msgpack.format.layout import MARK as MARK_FRAME
from wstrace_exporters.msgpack.read.id_tables import PartLookups
from wstrace_exporters.msgpack.read.scan import Damage, Frame
from wstrace_exporters.msgpack.read.selection import DERIVED_FROM, stored_columns, time64


@functools.cache
def _keep_memory() -> None:
    """Lets the memory of one batch's columns serve the next one, which reading takes a sixth less time with.

    glibc returns what is free at the heap's end to the system, beyond twice the size of the largest block that it had
    mapped alone and that was freed: mallopt(3), M_MMAP_THRESHOLD. After this one, which nobody touches, that is 32 MiB.
    """
    np.empty(16 << 20, "|u1")


class Reading(Protocol):
    """The file that a decoder reads from, as far as the decoder needs it."""

    limits: Limits
    damage: Damage
    unreadable: set[str]


class Decoder:
    """Makes batches of one part's frames. A malformed body is counted in the part's damage and gives None.

    Args:
        part: the limits to respect, and where to count damage and unreadable columns.
        lookups: the translation of the part's ids.
        selection: which rows and columns to decode.
        schema: the schema of a stream, by name.
        strings: the dictionary of the resulting batches.
    """

    def __init__(
        self,
        part: Reading,
        lookups: PartLookups,
        selection: Selection,
        schema: Callable[[str], Schema],
        strings: Dictionary,
    ) -> None:
        _keep_memory()
        self._part = part
        self._lookups = lookups
        self.selection = selection
        self._schema = schema
        self._strings = strings
        stored = stored_columns(selection)
        if stored is not None:
            stored |= {own_id(table) for table in lookups.given}
        self._processes = 0  # rows of the stream `process` so far
        self._wanted = (lambda _: True) if stored is None else stored.__contains__

    def with_selection(self, selection: Selection) -> Decoder:
        """A decoder of the same part for another selection."""
        return Decoder(self._part, self._lookups, selection, self._schema, self._strings)

    @property
    def kinds(self) -> frozenset[int]:
        """The kinds of frames that can hold the selected stream."""
        stream = self.selection.stream
        if stream is None:
            return frozenset((EVENTS, SNAPSHOT, MARK_FRAME))
        if stream == "mark":
            return frozenset((MARK_FRAME,))
        known = STREAMS.get(stream)
        if known is None:  # the frame that announces the stream may be lost
            return frozenset((EVENTS, SNAPSHOT))
        return frozenset((SNAPSHOT if known.snapshot else EVENTS,))

    def batch(self, frame: Frame) -> Batch | None:
        """The batch of a frame; None when the frame belongs to another stream or is malformed."""
        limits, stream = self._part.limits, self.selection.stream
        try:
            if frame.kind == MARK_FRAME:
                return self._mark(frames.unpack_map(frame.body, limits))
            rows = self._rows(frame)
        except FrameError:
            self._part.damage.bad_frames += 1
            return None
        if stream is not None and rows.stream != stream:
            return None
        self._part.unreadable.update(rows.unreadable)
        schema = self._schema_of(rows.stream, rows.columns)
        keep, n = self._kept(rows), rows.n
        if keep is not None:
            rows.columns, n = {name: array[keep] for name, array in rows.columns.items()}, int(keep.sum())
        columns = self._translated(rows.columns, schema)
        given = self._lookups.given.get(rows.stream)
        if given is not None and (key := own_id(rows.stream)) in columns:  # a part repeats rows of earlier parts
            new = ~np.isin(columns[key], given)
            columns, n = {name: array[new] for name, array in columns.items()}, int(new.sum())
        if self.selection.columns is not None:
            columns = {name: columns[name] for name in self.selection.columns if name in columns}
        window = rows.window if rows.window[0] <= rows.window[1] else (rows.window[1], rows.window[0])
        return Batch(schema, columns, window=window, lost=rows.lost, source="replay",
                     strings=self._strings, rows=n,
                     snapshot=SnapshotPart.from_dict(rows.header) if frame.kind == SNAPSHOT else None)  # fmt: skip

    def _rows(self, frame: Frame) -> frames.Rows:
        """The rows of a frame. Raises FrameError for a malformed body, or past the limit of rows of `process`."""
        limits = self._part.limits
        if self._processes >= limits.processes and frames.peek_rows(frame.body, limits).stream == PROCESS.name:
            raise FrameError(f"more than {limits.processes:,} rows of processes")
        rows = frames.unpack_rows(frame.body, self._wanted, limits)
        self._processes += rows.n if rows.stream == PROCESS.name else 0
        return rows

    def _schema_of(self, stream: str, columns: Iterable[str]) -> Schema:
        """The stream's schema; the file's announced schema is read only when a column is not known here."""
        known = STREAMS.get(stream)
        if known is not None and all(known.column(name) is not None for name in columns):
            return known
        return self._schema(stream)

    def _translated(self, columns: dict[str, NDArray[Any]], schema: Schema) -> dict[str, NDArray[Any]]:
        found = {}
        for column in schema.columns:  # in the schema's order and types
            array = columns.pop(column.name, None)
            if array is None:
                continue
            if not np.can_cast(array.dtype, DTYPES[column.type]):  # the cast would lose digits
                self._part.unreadable.add(column.name)
                continue
            found[column.name] = array.astype(DTYPES[column.type], copy=False)
        found.update(columns)
        wanted = self.selection.columns
        derived = {}
        if schema.column("mapping") is not None and (wanted is None or not DERIVED_FROM.keys().isdisjoint(wanted)):
            stored = {column.name for column in schema.columns if not column.derived}
            derived = {name: a for name, a in self._lookups.derived(found).items() if name not in stored}
        return {**recoded(schema, found, self._lookups.spaces), **derived}

    def _kept(self, rows: frames.Rows) -> NDArray[Any] | None:
        """A mask of the rows within the selection's times and processes, bool, shape (n,); None = all rows.

        Rows without a process, in a column or in the frame's header, match no selection of processes.
        """
        selection, columns, keep = self.selection, rows.columns, None
        times = columns.get("time_ns")
        if times is not None and selection.start is not None:
            keep = times >= time64(selection.start)
        if times is not None and selection.end is not None:
            before = times < time64(selection.end)
            keep = before if keep is None else keep & before
        if selection.pids is not None:
            wanted = np.full(rows.n, rows.header.get("pid") in selection.pids)
            if "pid" in columns:
                wanted = np.isin(columns["pid"], selection.pids)
            keep = wanted if keep is None else keep & wanted
        return None if keep is None or keep.all() else keep

    def _mark(self, mark: dict[str, Any]) -> Batch | None:
        """A user mark as a batch of one row; None for another mark, or one outside the selection."""
        if mark.get("m") != "user":
            return None
        text = mark.get("text", "")
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        values = {"time_ns": mark.get("t"), "pid": mark.get("pid"), "tid": mark.get("tid")}
        columns = {}
        for column in MARK.columns:
            value = self._strings.code(str(text)) if column.name == "text" else values[column.name]
            most = (1 << 8 * np.dtype(DTYPES[column.type]).itemsize) - 1
            if type(value) is int and 0 <= value <= most:
                columns[column.name] = np.array([value], DTYPES[column.type])
        if "time_ns" not in columns:
            self._part.damage.bad_frames += 1
            return None
        time = int(columns["time_ns"][0])
        start, end = self.selection.start, self.selection.end
        if (start is not None and time < start) or (end is not None and time >= end):
            return None
        if self.selection.pids is not None and mark.get("pid") not in self.selection.pids:
            return None
        return Batch(MARK, columns, window=(time, time), source="replay", strings=self._strings)
