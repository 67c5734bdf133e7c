"""Decodes frames into batches: decodes columns, translates a part's ids to the trace's, computes derived columns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Columns, Dictionary, SnapshotPart, recoded
from wstrace.errors import TraceFileError
from wstrace.schema import DTYPES, MARK, PAGE_FAULT, PROCESS, STREAMS, Column, Schema, own_id
from wstrace.table import Selection
from wstrace_exporters.msgpack.format import frames
from wstrace_exporters.msgpack.format.layout import EVENTS, SNAPSHOT, FrameError
from wstrace_exporters.msgpack.format.layout import MARK as MARK_FRAME
from wstrace_exporters.msgpack.read.ids import PartIds
from wstrace_exporters.msgpack.read.part import Part, time64
from wstrace_exporters.msgpack.read.scan import Frame

#: Derived column -> the stored columns that it is computed from.
DERIVED_FROM = {"file": ("mapping",), "kind": ("mapping",), "pc_file": ("pc_mapping", "flags")}
#: What a snapshot's rows have in common, in a file once for all of them: columns of a selection that names them.
COMMON = (Column("time_ns", "u64", "ns", "of the snapshot"), Column("pid", "u32", "id", "the process"))


def columns_of(schema: Schema) -> tuple[Column, ...]:
    """The columns that the table of a stream has: a snapshot's rows have its process and time."""
    return (*COMMON, *schema.columns) if schema.snapshot else schema.columns


@functools.cache
def _keep_memory() -> None:
    """Lets the memory of one batch's columns serve the next one, which reading takes a sixth less time with.

    glibc returns what is free at the heap's end to the system, beyond twice the size of the largest block that it had
    mapped alone and that was freed: mallopt(3), M_MMAP_THRESHOLD. After this one, which nobody touches, that is 32 MiB.
    """
    np.empty(16 << 20, "|u1")


class Decoder:
    """Makes batches of one part's frames. A malformed body is counted in the part's damage.

    ids: what its ids are in the whole trace. selection: which rows and columns to decode. schema: gives the schema of a
    stream by its name. strings: the dictionary of the resulting batches.
    """

    def __init__(
        self, part: Part, ids: PartIds, selection: Selection, schema: Callable[[str], Schema], strings: Dictionary
    ) -> None:
        _keep_memory()
        self.part, self.selection = part, selection
        self._ids, self._schema, self._strings = ids, schema, strings
        self._processes = 0  # rows of the stream `process` so far
        self._threads: NDArray[Any] = np.empty(0, "<u4")  # of faults so far
        self._stored: set[str] | None = None  # the columns to decode; None = all
        if selection.columns is not None:
            # the name itself, too: what one stream derives, another stores (`file` of a call site)
            self._stored = {one for name in selection.columns for one in (name, *DERIVED_FROM.get(name, ()))}
            self._stored.update(map(own_id, ids.given))
            self._stored.update(["time_ns"] * ((selection.start, selection.end) != (None, None)))
            self._stored.update(["pid"] * (selection.pids is not None))

    @property
    def kinds(self) -> tuple[int, ...]:
        """The kinds of frames that can hold the selected stream."""
        if self.selection.stream == "mark":
            return (MARK_FRAME,)
        return (EVENTS, SNAPSHOT) if self.selection.stream else (EVENTS, SNAPSHOT, MARK_FRAME)

    def batches(self, first: int = 0, last: int = 1 << 63) -> Iterator[Batch]:
        """Yields the batches that have rows or counted a loss, one per frame, in the order of the file.

        first, last: the byte offsets of the first and the last frame to read.
        """
        for frame in self.part.read(self.kinds, self.selection, first, last):
            try:
                batch = self._batch(frame)
            except FrameError:
                self.part.damage.bad_frames += 1
                continue
            if batch is not None and (len(batch) or batch.lost):
                yield batch

    def _batch(self, frame: Frame) -> Batch | None:
        """The batch of a frame; None when the frame belongs to another stream. Raises FrameError."""
        limits, wanted = self.part.limits, self.selection.columns
        if frame.kind == MARK_FRAME:
            return self._mark(frames.unpack_map(frame.body, limits))
        rows = frames.unpack_rows(frame.body, self._is_decoded, limits)
        self._processes += rows.n * (rows.stream == PROCESS.name)
        if rows.stream == PAGE_FAULT.name and "tid" in rows.columns:
            self._threads = distinct(np.append(self._threads, distinct(rows.columns["tid"])))
        if max(self._processes, len(self._threads)) > limits.processes:
            why = f"{self.part.path}: it names more than {limits.processes:,} processes and threads, which are not read"
            raise TraceFileError(why, "record in shorter parts: rotate_bytes=64MiB")
        if self.selection.stream not in (None, rows.stream):
            return None
        self.part.unreadable.update(rows.unreadable)
        schema = STREAMS.get(rows.stream)
        if schema is None or any(schema.column(name) is None for name in rows.columns):
            schema = self._schema(rows.stream)  # of the file, which has to be read for it
        columns, n = self._translated(rows.columns, schema), rows.n
        keep = self._kept(rows, columns)
        if not keep.all():
            columns, n = {name: array[keep] for name, array in columns.items()}, int(keep.sum())
        snapshot = SnapshotPart.from_dict(rows.header) if frame.kind == SNAPSHOT else None
        if wanted is not None:
            if snapshot is not None:
                columns = {c.name: np.full(n, getattr(snapshot, c.name), DTYPES[c.type]) for c in COMMON} | columns
            columns = {name: columns[name] for name in wanted if name in columns}
        window = min(rows.window), max(rows.window)
        return Batch(schema, columns, window=window, lost=rows.lost, source="replay", strings=self._strings, rows=n,
                     snapshot=snapshot)  # fmt: skip

    def _is_decoded(self, column: str) -> bool:
        return self._stored is None or column in self._stored

    def _translated(self, columns: Columns, schema: Schema) -> Columns:
        """The columns in the schema's order and types, with the ids of the whole trace, and the derived ones."""
        found, stored, wanted = {}, set(), self.selection.columns
        for column in schema.columns:
            array = columns.pop(column.name, None)
            stored.update([column.name] * (not column.derived))
            if array is not None and np.can_cast(array.dtype, DTYPES[column.type]):
                found[column.name] = array.astype(DTYPES[column.type], copy=False)
            elif array is not None:  # the cast would lose digits
                self.part.unreadable.add(column.name)
        found.update(columns)
        derived: Columns = {}
        if schema.column("mapping") is not None and (wanted is None or not DERIVED_FROM.keys().isdisjoint(wanted)):
            derived = {name: array for name, array in self._ids.derived(found).items() if name not in stored}
        return {**recoded(schema, found, self._ids.spaces), **derived}

    def _kept(self, rows: frames.Rows, columns: Columns) -> NDArray[np.bool_]:
        """Which rows are within the selection's times and processes, and are no repetition, bool, shape (n,).

        Rows without a process, in a column or in the frame's header, match no selection of processes.
        """
        selection, keep = self.selection, np.ones(rows.n, np.bool_)
        if "time_ns" in columns and selection.start is not None:
            keep &= columns["time_ns"] >= time64(selection.start)
        if "time_ns" in columns and selection.end is not None:
            keep &= columns["time_ns"] < time64(selection.end)
        if selection.pids is not None:
            keep &= np.isin(columns.get("pid", rows.header.get("pid", -1)), selection.pids)
        if rows.stream in self._ids.given and (key := own_id(rows.stream)) in columns:
            keep &= ~np.isin(columns[key], self._ids.given[rows.stream])  # a part repeats rows of earlier parts
        return keep

    def _mark(self, mark: dict[str, Any]) -> Batch | None:
        """A user mark as a batch of one row; None for another mark, or one outside the selection. Raises FrameError."""
        if mark.get("m") != "user":
            return None
        text = mark.get("text", "")
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        values = {"time_ns": mark.get("t"), "pid": mark.get("pid"), "tid": mark.get("tid"),
                  "text": self._strings.code(str(text))}  # fmt: skip
        columns = {}
        for column in MARK.columns:
            value, most = values[column.name], np.iinfo(DTYPES[column.type]).max
            if type(value) is int and 0 <= value <= most:
                columns[column.name] = np.array([value], DTYPES[column.type])
        if "time_ns" not in columns:
            raise FrameError("a mark without its time")
        if not self._kept(frames.Rows(n=1), columns).all():
            return None
        time = int(columns["time_ns"][0])
        return Batch(MARK, columns, window=(time, time), source="replay", strings=self._strings)
