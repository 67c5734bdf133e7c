"""Reads pieces of trace files as Arrow batches, in the tasks of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_wstrace.request import LEDGER, Request, folders_of, path_of
from pyspark_wstrace.rows import RowConverter, ledger_rows, stored_columns
from wstrace.errors import TraceFileError
from wstrace.table import Selection
from wstrace_msgpack.read.pieces import Piece, cut, read
from wstrace_msgpack.read.snapshot_rows import looked, stored_names
from wstrace_msgpack.read.trace import TraceFile

#: Files whose indexes are read before the tasks begin; of more files, each task reads whole ones.
OPENED = 1000
_TASKS, _THREADS = 4 * OPENED, 16
_WHOLE = Piece(0, 1 << 62, 0)


@dataclass
class Task(InputPartition):
    """What one task reads: pieces of files."""

    pieces: list[tuple[Any, Piece]]


class WstraceReader(DataSourceReader):
    """Reads what was asked for.

    Args:
        request: the options.
        types: name -> Spark's type of each column.
    """

    def __init__(self, request: Request, types: dict[str, str]) -> None:
        self.request, self.types = request, types

    def partitions(self) -> list[Any]:
        """The tasks: of large files pieces of rowsPerPartition rows, of small ones several."""
        places = [place for place in self.request.places() if self.wants(folders_of(path_of(place)))]
        if len(places) > OPENED or self.request.stream == LEDGER:
            some = max(1, len(places) // _TASKS)
            return [Task([(place, _WHOLE) for place in places[at : at + some]]) for at in range(0, len(places), some)]
        with ThreadPoolExecutor(_THREADS, "wstrace-index") as pool:
            cuts = list(pool.map(self._cut, places))
        tasks, rows = [Task([])], 0
        for place, pieces in zip(places, cuts, strict=True):
            for piece in pieces:
                if rows and rows + piece.rows > self.request.rows:
                    tasks.append(Task([]))
                    rows = 0
                tasks[-1].pieces.append((place, piece))
                rows += piece.rows
        return tasks

    def wants(self, folders: dict[str, str]) -> bool:
        """Whether files in these `key=value` folders can hold rows of the query."""
        return True

    def read(self, partition: Any) -> Iterator[Any]:
        """Yields the rows of a task as batches of pyarrow."""
        for place, piece in partition.pieces:
            if self.request.stream == LEDGER:
                yield ledger_rows(place, self.types)
                continue
            with self._opened(place) as trace:
                if trace is not None:
                    yield from self._rows(trace, path_of(place), piece)

    def _rows(self, trace: TraceFile, path: str, piece: Piece) -> Iterator[Any]:
        selection = self.selection(trace)
        convert = RowConverter(trace, path, self.request.stream, self.types)
        if not trace.schema(self.request.stream).snapshot:
            yield from map(convert, read(trace, selection, piece))
            return
        selection = selection._replace(columns=tuple(stored_names(selection.columns or ())))
        for batch in read(trace, selection, piece):
            yield convert(looked(batch))

    def _cut(self, place: Any) -> list[Piece]:
        with self._opened(place) as trace:
            return [] if trace is None else cut(trace, self.selection(trace), self.request.rows)

    @contextmanager
    def _opened(self, place: Any) -> Iterator[TraceFile | None]:
        """A file; None for one that cannot be read, if such are ignored."""
        try:
            trace = TraceFile([place])
        except TraceFileError:
            if not self.request.ignore:
                raise
            yield None
            return
        trace.trusting = True  # every byte that is read is checked, but no others are for its description
        with trace:
            yield trace

    def selection(self, trace: TraceFile) -> Selection:
        """The rows that are wanted of a trace, whose clock is its own."""
        request = self.request
        start, end = (None if at is None else _on_its_clock(trace, at) for at in (request.start_ns, request.end_ns))
        known = {column.name: column for column in trace.schema(request.stream).columns} | {"host": None}
        return Selection(request.stream, stored_columns(self.types, known), start, end, request.pids)


def _on_its_clock(trace: TraceFile, wall_ns: int) -> int:
    """A wall time on the clock of a trace's records."""
    clock = trace.info.clock
    near = wall_ns - clock.offset(trace.begin_ns)
    return max(0, wall_ns - clock.offset(near))
