"""Reads a trace file while it is being written."""

from __future__ import annotations

from collections.abc import Iterator

from wstrace.batch import Batch, Dictionary
from wstrace.errors import TraceFileError
from wstrace.schema import TABLES
from wstrace.table import Selection
from wstrace_msgpack.format import frames, osfile
from wstrace_msgpack.format.frames import Header, unpack_header
from wstrace_msgpack.format.layout import END, EVENTS, HEADER, LIMITS, MAPPINGS, MARK, STRINGS, FrameError, Limits
from wstrace_msgpack.format.part_names import is_trace, part_path
from wstrace_msgpack.read.decoder import Decoder
from wstrace_msgpack.read.id_tables import PartLookups, Tables, Whole
from wstrace_msgpack.read.local_input import LocalInput
from wstrace_msgpack.read.part import first_header
from wstrace_msgpack.read.row_ids import RowIds, ids_in, same_session, tables_of_part
from wstrace_msgpack.read.scan import Damage, Frame, Scanner
from wstrace_msgpack.read.schemas import Schemas


class Follower:
    """Reads one growing file, and the parts that follow it, until the trace ends.

    Args:
        path: the path of a part.
        strings: the dictionary for the names of the batches.

    Attributes:
        finished: whether the trace has ended, or its writer has.
        ledger: the ledger in the END frame.
        facts: the content of the last facts mark.
        header: the header of the first part; None when it was not yet written.

    Raises:
        TraceFileError: the file cannot be opened.
    """

    def __init__(self, path: str, strings: Dictionary, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.damage = Damage()
        self.unreadable: set[str] = set()
        self.finished = False
        self.ledger: dict[str, int] = {}
        self.facts: dict[str, object] = {}
        self.header = first_header(path, limits)
        self._path, self._number = path, 0
        self._whole = Whole(strings)
        self._schemas = Schemas(limits)
        self._row_ids = {table: RowIds(limits.table_rows) for table in TABLES}
        self._before = Header()  # the header of the previous part
        self._open(path)

    def _open(self, path: str) -> None:
        self._input = LocalInput(path)
        self._scanner = Scanner(self._input, self.limits)
        self._size = -1
        self._tables = Tables(self.limits)
        self._decoder: Decoder | None = None

    def batches(self) -> Iterator[Batch]:
        """Yields what was written since the last call, mappings before the rows that refer to them."""
        before = self._size
        self._size = self._input.refresh()
        for frame in self._scanner.frames(growing=True):
            try:
                yield from self._frame(frame)
            except FrameError:
                self.damage.bad_frames += 1
        if self._size == before and not self.finished and not osfile.is_being_written(self._input.path):
            self.finished = not self._next_part()

    def _frame(self, frame: Frame) -> Iterator[Batch]:
        if frame.kind == HEADER:
            header = unpack_header(frame.body, self.limits)
            if why := header.refused():
                raise TraceFileError(f"{self._input.path}: {why}", "read it with a newer wstrace")
            self._number = header.part
            self._schemas.add(header.schema)
            for ids in self._row_ids.values():
                ids.begin_part(same=same_session(header, self._before))
            self._before = header
        elif frame.kind == STRINGS:
            self._tables.add_strings(*frames.unpack_strings(frame.body, self.limits))
            self._decoder = None
        elif frame.kind == MAPPINGS:
            self._tables.add_mappings(frames.unpack_rows(frame.body, limits=self.limits).columns)
            self._decoder = None
        elif frame.kind == END:
            self.ledger = frames.unpack_end(frame.body, self.limits).ledger
            self.finished = not self._next_part()
        else:
            yield from self._rows(frame)

    def _rows(self, frame: Frame) -> Iterator[Batch]:
        if frame.kind == MARK:
            mark = frames.unpack_mark(frame.body, self.limits)
            self._schemas.add_mark(mark)
            if mark.get("m") == "facts" and isinstance(mark.get("facts"), dict):
                self.facts = mark["facts"]
        for table, ids in self._row_ids.items() if frame.kind == EVENTS else ():
            if ids.add(ids_in(frame.body, table, self.limits)):
                self._decoder = None
        if self._decoder is None:
            known = self._whole.n_rows
            lookups = PartLookups(self._tables, self._whole, tables_of_part(self._row_ids))
            self._decoder = Decoder(self, lookups, Selection(), self._schemas, self._whole.strings)
            if self._whole.n_rows > known:
                yield self._whole.batch(known)
        if frame.kind in self._decoder.kinds:
            batch = self._decoder.batch(frame)
            if batch is not None and (len(batch) or batch.lost):
                yield batch

    def _next_part(self) -> bool:
        """Opens the part that follows this one; returns False when there is none."""
        before = self._scanner.file_id
        path = part_path(self._path, self._number + 1)
        if not is_trace(path):
            return False
        header = first_header(path, self.limits)
        if header is None or header.prev != before:
            return False
        self._input.close()
        self._open(path)
        return True

    def close(self) -> None:
        """Closes the file."""
        self._input.close()
