"""Part: one file of a trace, opened by its footer if that is intact, otherwise by a scan from the start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import TraceFileError
from wstrace.schema import MOST_FRAMES, STREAMS
from wstrace.table import Selection
from wstrace_exporters.msgpack.format import frames
from wstrace_exporters.msgpack.format.frames import Rows
from wstrace_exporters.msgpack.format.index import IndexPage, pid_set, unpack_index
from wstrace_exporters.msgpack.format.layout import (
    END,
    END_BYTES,
    EVENTS,
    HEAD_BYTES,
    HEADER,
    INDEX,
    LIMITS,
    MAPPINGS,
    MARK,
    SNAPSHOT,
    STRINGS,
    SYNC,
    FrameError,
    Limits,
    unpack_head,
)
from wstrace_exporters.msgpack.read.id_tables import Tables, first_of_each, ids_in, too_deep
from wstrace_exporters.msgpack.read.input import Input
from wstrace_exporters.msgpack.read.local_input import open_input
from wstrace_exporters.msgpack.read.scan import Damage, Frame, Scanner, frame_at
from wstrace_exporters.msgpack.read.selection import EVERYTHING, pids_wanted, time64
from wstrace_exporters.msgpack.storage.urls import Place

ENTRY = np.dtype(
    [("kind", "|u1"), ("offset", "<u8"), ("length", "<u4"), ("n", "<u4"), ("t0", "<u8"), ("t1", "<u8"),
     ("stream", "<u2"), ("pids", "<u8"), ("seq", "<u8")]
)  # fmt: skip
assert ENTRY.itemsize == 51  # the size in memory; the file has another layout
_U32 = (1 << 32) - 1


def tiled(rows: NDArray[Any], size: int) -> NDArray[Any] | None:
    """Entries in the order of the file if they cover it without a gap, so that no frame is hidden; else None."""
    if (rows[:, :4] > np.array([127, size, _U32, _U32], "<u8")).any():
        return None
    rows = rows[np.argsort(rows[:, 1], kind="stable")]
    entries = np.zeros(len(rows), ENTRY)
    for name, column in zip(ENTRY.names or (), rows.T, strict=False):
        entries[name] = column
    entries["seq"] = np.arange(len(rows))
    ends = entries["offset"] + entries["length"]
    if entries["offset"][0] != 0 or ends[-1] != size or not np.array_equal(entries["offset"][1:], ends[:-1]):
        return None
    return entries


#: What to do about a file that is refused.
OTHER_VERSION = "read it with the version of wstrace that wrote it"
#: Later times are ignored: no clock has run for 146 years.
_LATEST = 1 << 62
#: The most streams that entries distinguish; of further ones, the frames must be read.
_STREAMS = 4096


class Part:
    """One file of a trace: its header, the positions of its frames, and its tables.

    Args:
        place: the path of a regular file, a URL, or an object of a listing.
        limits: the limits past which a frame or a table is malformed.
        scan: True = ignore the index and check every byte.

    Attributes:
        path: its path or URL, without credentials.
        entries: one ENTRY for each good frame, in the order of the file.
        damage: what was found wrong so far.
        unreadable: the names of columns that could not be decoded so far.
        end: the content of the END frame; None when the file has none.

    Raises:
        TraceFileError: the file is no trace, has a greater major version, or needs a feature that this reader lacks.
    """

    def __init__(self, place: Place, limits: Limits = LIMITS, *, scan: bool = False) -> None:
        self.limits = limits
        self.input = open_input(place)
        self.path = self.input.path
        self.damage = Damage()
        self.unreadable: set[str] = set()
        self.end: frames.End | None = None
        self.file_id: bytes | None = None
        self.scanned = self._checked = False
        self.streams = [""]  # names by their number in `entries`; number 0 = not known
        self.checked_bytes = self.bad_heads = 0  # by the scan
        self._tables: Tables | None = None
        self._counts: list[Rows] | None = None
        try:
            entries = None if scan else self._by_footer()
            self.entries: NDArray[Any] = self._by_scan() if entries is None else entries
            self.header = self._header()
        except BaseException:
            self.close()
            raise

    # -- positions of the frames -------------------------------------------------------------------------------------

    def _by_footer(self) -> NDArray[Any] | None:
        """The entries from the END and INDEX frames, or None when anything in these is inconsistent."""
        source = self.input
        base = max(0, source.size - END_BYTES)
        tail = bytes(source.read(base, END_BYTES))
        at = tail.rfind(SYNC)
        head = unpack_head(tail, at) if at >= 0 else None
        if head is None or head.kind != END or base + at + head.frame_len != source.size:
            return None
        frame = frame_at(source, base + at, head.file_id, self.limits)
        if frame is None:
            return None
        try:
            end = frames.unpack_end(frame.body, self.limits)
            pages: list[NDArray[Any]] = []
            for page in end.pages:
                index = frame_at(source, page, head.file_id, self.limits)
                if index is None or index.kind != INDEX or sum(len(rows) for rows in pages) > self.limits.frames:
                    return None
                pages.append(self._page(unpack_index(index.body, self.limits)))
                pages.append(np.array([[INDEX, page, index.length, *[0] * 5]], "<u8"))
        except FrameError:
            return None
        pages.append(np.array([[END, frame.offset, frame.length, *[0] * 5]], "<u8"))
        entries = tiled(np.concatenate(pages), source.size)
        if entries is None or len(entries) != end.frames or head.seq != end.frames - 1:
            return None
        self.end, self.file_id = end, head.file_id
        return entries

    def _page(self, page: IndexPage) -> NDArray[Any]:
        """The entries of an index page, with streams by their number in this part, u64, shape (n, 8)."""
        numbers = np.array([0, *(self._number(name) for name in page.streams)], "<u8")
        return np.column_stack((page.entries, numbers[page.stream], page.pids))

    def _number(self, stream: str) -> int:
        """The number of a stream; 0 past the limit of _STREAMS."""
        if stream in self.streams:
            return self.streams.index(stream)
        if len(self.streams) > _STREAMS:
            return 0
        self.streams.append(stream)
        return len(self.streams) - 1

    def _by_scan(self) -> NDArray[Any]:
        """The entries of all good frames, found by checking every byte."""
        whole = np.array([0], "<u8"), np.array([self.input.size], "<u8")
        scanner = Scanner(self.input.ahead(*whole), self.limits)
        rows = []
        self._counts = counts = []
        self.end = None
        for frame in scanner.frames():
            peeked, pids = Rows(window=(0, 0)), 0
            if frame.kind in (EVENTS, SNAPSHOT):
                peeked = frames.peek_rows(frame.body, self.limits)
                counts.append(peeked)
                pid = peeked.header.get("pid")
                pids = pid_set([pid]) if type(pid) is int and pid else 0
            stream = self._number(peeked.stream)
            rows.append((frame.kind, frame.offset, frame.length, peeked.n, *peeked.window, stream, pids, frame.seq))
            if len(rows) > self.limits.frames:
                raise TraceFileError(f"{self.path} has more than {self.limits.frames:,} frames")
            if frame.kind == END:
                try:
                    self.end = frames.unpack_end(frame.body, self.limits)
                except FrameError:
                    scanner.damage.bad_frames += 1
            else:
                self.end = None  # only an END at the end counts: after another one, the trace was resumed
        if not rows:
            why = "is empty" if not self.input.size else "is no wstrace trace file"
            raise TraceFileError(f"{self.path} {why}")
        self.damage, self.file_id, self.scanned = scanner.damage, scanner.file_id, True
        self.checked_bytes, self.bad_heads = scanner.checked_bytes, scanner.bad_heads
        return np.array(rows, ENTRY)

    def _header(self) -> frames.Header:
        header = frames.Header(id=self.file_id or b"")
        for frame in self.read(frozenset((HEADER,))):
            try:
                header = frames.unpack_header(frame.body, self.limits)
            except FrameError:
                self.damage.bad_frames += 1
                continue
            if why := header.refused():
                raise TraceFileError(f"{self.path}: {why}", OTHER_VERSION)
            break
        return header

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(
        self, kinds: frozenset[int] | None = None, selection: Selection = EVERYTHING, *, after: int = -1
    ) -> Iterator[Frame]:
        """Yields the frames of some kinds that can hold rows of the selection, in the order of the file.

        When a frame is not where the index says, the whole file is scanned, and reading continues behind the last
        frame that was yielded.

        Args:
            kinds: the kinds of frames; None = all.
            selection: frames that the index shows to have another stream, no time or no process of it are skipped.
            after: a byte offset; only frames behind it are read.
        """
        position, done = 0, after
        chosen = self.chosen(kinds, selection, done)
        source = self.ahead(chosen)
        while position < len(chosen):
            entry = chosen[position]
            position += 1
            if self.is_of_another(entry, source, selection.stream):
                continue
            frame = self.frame(entry, source)
            if frame is None:
                self.input.check()
                if not self.scanned:
                    self.entries = self._by_scan()
                    chosen, position = self.chosen(kinds, selection, done), 0
                    source = self.ahead(chosen)
                else:
                    self.damage.bad_frames += 1  # the file changed while it was read
                continue
            done = frame.offset
            yield frame

    def ahead(self, entries: NDArray[Any]) -> Input:
        """An input of the same file that reads the frames of these entries ahead."""
        return self.input.ahead(entries["offset"], entries["length"])

    def frame(self, entry: Any, source: Input) -> Frame | None:
        """The frame of an entry, read from an Input of the same file; None when it does not match the entry."""
        frame = frame_at(source, int(entry["offset"]), self.file_id, self.limits)
        fits = frame is not None and frame.seq == entry["seq"] and frame.kind == entry["kind"]
        return frame if fits else None

    def is_of_another(self, entry: Any, source: Input, stream: str | None) -> bool:
        """Whether a frame's first bytes name another stream than `stream`, so that the rest need not be read.

        Before the CRC is checked, only names in schema.STREAMS are trusted: one flipped bit does not turn one of them
        into another.
        """
        if stream is None or entry["kind"] not in (EVENTS, SNAPSHOT) or entry["stream"]:
            return False  # chosen() has used the stream in the index
        data = source.read(int(entry["offset"]), min(int(entry["length"]), frames.PEEK_BYTES))
        head = unpack_head(data)
        if head is None or (head.file_id, head.seq, head.kind) != (self.file_id, entry["seq"], entry["kind"]):
            return False  # not the frame that the index means, which frame() will notice
        found = frames.peek_rows(data[HEAD_BYTES:], self.limits).stream
        return found != stream and found in STREAMS

    def chosen(
        self, kinds: frozenset[int] | None = None, selection: Selection = EVERYTHING, after: int = -1
    ) -> NDArray[Any]:
        """The entries of some kinds behind a byte offset that, by the index, can hold rows of the selection."""
        start, end = selection.start, selection.end
        entries = self.entries
        keep = entries["offset"].astype("<i8") > after
        if kinds is not None:
            keep &= np.isin(entries["kind"], list(kinds))
        timed = np.isin(entries["kind"], (EVENTS, SNAPSHOT, MARK)) & (entries["t1"] != 0)
        if start is not None:
            keep &= ~timed | (entries["t1"] >= time64(start))
        if end is not None:
            keep &= ~timed | (entries["t0"] < time64(end))
        if selection.stream is not None:
            keep &= (entries["stream"] == 0) | (entries["stream"] == self._number(selection.stream))
        if selection.pids is not None:
            keep &= (entries["pids"] == 0) | (entries["pids"] & np.uint64(pids_wanted(selection)) != 0)
        chosen: NDArray[Any] = entries[keep]
        return chosen

    @property
    def tables(self) -> Tables:
        """The names and mappings of this part, read on first use."""
        if self._tables is None:
            tables = Tables(self.limits)
            for frame in self.read(frozenset((STRINGS, MAPPINGS))):
                try:
                    if frame.kind == STRINGS:
                        tables.add_strings(*frames.unpack_strings(frame.body, self.limits))
                    else:
                        tables.add_mappings(frames.unpack_rows(frame.body, limits=self.limits).columns)
                except FrameError:
                    self.damage.bad_frames += 1
            self._tables = tables
        return self._tables

    def row_ids(self, table: str) -> NDArray[Any]:
        """The distinct ids of this part's rows of a table, u32, ascending, up to the limit.

        Raises:
            TraceFileError: a stack is deeper than any that is recorded, or has no end.
        """
        found, most = [np.empty((2, 0), "<u4")], self.limits.table_rows
        for frame in self.read(frozenset((EVENTS,)), Selection(table)):
            try:
                found.append(ids_in(frame.body, table, self.limits))
            except FrameError:
                continue  # counted as damage when the rows are read
            if sum(rows.shape[1] for rows in found) > 2 * most:
                found = [first_of_each(found)[:, :most]]
        rows = first_of_each(found)[:, :most]
        if too_deep(*rows):
            why = f"{self.path} has stacks of more than {MOST_FRAMES:,} frames, which wstrace never records"
            raise TraceFileError(why)
        ids: NDArray[Any] = rows[0]
        return ids

    def marks(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """Yields the marks of the file; with `kind`, without those that the index shows to be of another kind."""
        for frame in self.read(frozenset((MARK,)), Selection(kind)):
            try:
                yield frames.unpack_map(frame.body, self.limits)
            except FrameError:
                self.damage.bad_frames += 1

    # -- sums --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Checks every byte once, unless a scan has; an error leads to a scan of the file."""
        if not (self.scanned or self._checked):
            for _ in self.read():
                pass
            self._checked = True

    def lost_rows(self) -> dict[str, int] | None:
        """stream -> rows that were written according to END and cannot be read; None = not known, without END."""
        if self.end is None:
            return None
        found = self.frame_rows() if self.damage.any else self.end.rows
        return {name: n - found.get(name, 0) for name, n in self.end.rows.items() if name and n > found.get(name, 0)}

    @property
    def clean(self) -> bool:
        """Whether the file has its END frame, and no damage was found so far."""
        return self.end is not None and self.end.clean and not self.damage.any and not self.damage.tail_bytes

    @property
    def begin_ns(self) -> int:
        """The time of the first clock mark, else of the first row, in nanoseconds; 0 without either."""
        for mark in self.marks():
            at = mark.get("monotonic")
            if mark.get("m") == "clock" and type(at) is int and 0 <= at < _LATEST:
                return at
        timed = np.isin(self.entries["kind"], (EVENTS, SNAPSHOT)) & (self.entries["t1"] != 0)
        times = self.entries["t0"][timed]
        return int(times.min()) if len(times) else 0

    def span(self) -> tuple[int, int] | None:
        """(first, last) time of its rows in nanoseconds, or None.

        Essential streams are left out, because each part of a trace repeats them.
        """
        essential = [self.streams.index(name) for name in self.streams if name in STREAMS and STREAMS[name].essential]
        entries = self.entries[np.isin(self.entries["kind"], (EVENTS, SNAPSHOT)) & (self.entries["t1"] != 0)]
        entries = entries[~np.isin(entries["stream"], essential) & (entries["n"] != 0)]
        return (int(entries["t0"].min()), int(entries["t1"].max())) if len(entries) else None

    def counts(self) -> list[Rows]:
        """Stream, n, window and lost of every EVENTS and SNAPSHOT frame, without columns, read on first use."""
        if self._counts is None:
            found = [frames.peek_rows(frame.body, self.limits) for frame in self.read(frozenset((EVENTS, SNAPSHOT)))]
            self._counts = found if self._counts is None else self._counts  # a scan meanwhile has read them all
        return self._counts

    def rows(self) -> dict[str, int]:
        """stream -> number of rows, from END, or from the frames if that is missing or the file is damaged."""
        if self.end is not None and not self.damage.any:
            return {name: n for name, n in self.end.rows.items() if name and n}
        return self.frame_rows()

    def frame_rows(self) -> dict[str, int]:
        """stream -> number of rows in the frames that can be read."""
        found: dict[str, int] = {}
        for rows in self.counts():
            found[rows.stream] = found.get(rows.stream, 0) + rows.n
        found["mapping"] = self.tables.n_mappings
        found["mark"] = sum(mark.get("m") == "user" for mark in self.marks())
        return {name: n for name, n in found.items() if name and n}

    def lost(self) -> dict[str, int]:
        """stream -> number of records that the kernel dropped, by its EVENTS and SNAPSHOT frames."""
        found: dict[str, int] = {}
        for rows in self.counts():
            found[rows.stream] = found.get(rows.stream, 0) + rows.lost
        return {name: n for name, n in found.items() if n}

    def close(self) -> None:
        """Closes the file."""
        self.input.close()


def first_header(path: str, limits: Limits = LIMITS) -> frames.Header | None:
    """The header of a file, or None unless its first frame is a good header. Raises TraceFileError if unreadable."""
    source = open_input(path)
    try:
        frame = frame_at(source, 0, None, limits)
        return frames.unpack_header(frame.body, limits) if frame is not None and frame.kind == HEADER else None
    except FrameError:
        return None
    finally:
        source.close()
