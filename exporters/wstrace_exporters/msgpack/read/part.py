"""Part: one file of a trace, opened by its footer if that is intact, otherwise by a scan from the start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import TraceFileError
from wstrace.schema import STREAMS
from wstrace.table import Selection
from wstrace_exporters.msgpack.format import frames
from wstrace_exporters.msgpack.format.frames import pid_set, unpack_index
from wstrace_exporters.msgpack.format.layout import (
    END,
    END_BYTES,
    EVENTS,
    HEADER,
    INDEX,
    LIMITS,
    MAPPINGS,
    MARK,
    SESSION_BYTES,
    SNAPSHOT,
    SYNC,
    FrameError,
    Limits,
    unpack_head,
)
from wstrace_exporters.msgpack.read.input import open_input
from wstrace_exporters.msgpack.read.scan import Damage, Frame, frame_at, good_frames
from wstrace_exporters.msgpack.storage.urls import Place

ENTRY = np.dtype(
    [("kind", "|u1"), ("offset", "<u8"), ("length", "<u4"), ("n", "<u4"), ("t0", "<u8"), ("t1", "<u8"),
     ("stream", "<u2"), ("pids", "<u8"), ("seq", "<u8")]
)  # fmt: skip
assert ENTRY.itemsize == 51  # the size in memory; the file has another layout
_U32 = (1 << 32) - 1
#: The kinds of frames that hold rows of a stream.
WITH_ROWS = (EVENTS, SNAPSHOT, MAPPINGS)
#: What to do about a file that is refused.
OTHER_VERSION = "read it with the version of wstrace that wrote it"
#: The most streams that entries distinguish; of further ones, the frames must be read.
_STREAMS = 4096
_LAST = (1 << 64) - 1
#: Selects every row of every stream.
EVERYTHING = Selection()


def time64(ns: int) -> np.uint64:
    """A time in nanoseconds as u64, like the times of records; a time out of range becomes the nearest u64."""
    return np.uint64(min(max(ns, 0), _LAST))


class Part:
    """One file of a trace: its header and the positions of its frames.

    Args:
        place: the path of a regular file, a URL, or an object of a listing.
        limits: the limits past which a frame or a table is malformed.

    Attributes:
        path: its path or URL, without credentials.
        entries: one ENTRY for each good frame, in the order of the file.
        streams: the names of streams by their number in `entries`; number 0 = not known.
        damage: what was found wrong so far.
        unreadable: the names of columns that could not be decoded so far.
        end: the content of the END frame; None when the file has none.
        scanned: whether the entries come from a scan.

    Raises:
        TraceFileError: the file is no trace, has a greater major version, or needs a feature that this reader lacks.
    """

    def __init__(self, place: Place, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.input = open_input(place)
        self.path = self.input.path
        self.damage = Damage()
        self.unreadable: set[str] = set()
        self.end: frames.End | None = None
        self.file_id = b""
        self.scanned = self._checked = False
        self.streams = [""]
        self._lost: Counter[str] | None = None
        try:
            entries = self._by_footer()
            self.entries: NDArray[Any] = self._by_scan() if entries is None else entries
            self.header = self._header()
        except BaseException:
            self.close()
            raise

    @property
    def session(self) -> bytes:
        """What identifies the session that wrote it: the beginning of its file id."""
        return self.file_id[:SESSION_BYTES]

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
            pages = [np.array([[END, frame.offset, head.frame_len, *[0] * 5]], "<u8")]
            for offset in end.pages:
                index = frame_at(source, offset, head.file_id, self.limits)
                if index is None or index.kind != INDEX or sum(map(len, pages)) > self.limits.frames:
                    return None
                page = unpack_index(index.body, self.limits)
                numbers = np.array([0, *map(self._number, page.streams)], "<u8")
                pages += [np.column_stack((page.entries, numbers[page.stream], page.pids)),
                          np.array([[INDEX, offset, index.head.frame_len, *[0] * 5]], "<u8")]  # fmt: skip
        except FrameError:
            return None
        entries = tiled(np.concatenate(pages), source.size)
        if entries is None or len(entries) != end.frames or head.seq != end.frames - 1:
            return None
        if (entries["stream"][np.isin(entries["kind"], WITH_ROWS)] == 0).any():  # of whose rows the index says less
            return None
        self.end, self.file_id = end, head.file_id
        return entries

    def _number(self, stream: str) -> int:
        """The number of a stream; 0 past the limit of _STREAMS."""
        if stream in self.streams:
            return self.streams.index(stream)
        if len(self.streams) > _STREAMS:
            return 0
        self.streams.append(stream)
        return len(self.streams) - 1

    def _by_scan(self) -> NDArray[Any]:
        """The entries of all good frames, found by checking every byte; of each sequence number the first one."""
        damage, rows, lost = Damage(), list[tuple[int, ...]](), Counter[str]()
        self.end = None
        for frame in good_frames(self.input, damage, self.limits):
            head, offset, body = frame
            peeked, pids = frames.Rows(window=(0, 0)), 0
            if head.kind in WITH_ROWS:
                peeked = frames.peek_rows(body, self.limits)
                lost[peeked.stream] += peeked.lost
                pid = peeked.header.get("pid")
                pids = pid_set([pid]) if type(pid) is int and pid else 0
            rows.append((head.kind, offset, head.frame_len, peeked.n, *peeked.window, self._number(peeked.stream), pids,
                         head.seq))  # fmt: skip
            if len(rows) > self.limits.frames:
                raise TraceFileError(f"{self.path} has more than {self.limits.frames:,} frames")
            self.end = None  # only an END at the end counts: after another one, the trace was resumed
            self.file_id = head.file_id
            if head.kind == END:
                try:
                    self.end = frames.unpack_end(body, self.limits)
                except FrameError:
                    damage.bad_frames += 1
        if not rows:
            why = "is empty" if not self.input.size else "is no wstrace trace file"
            raise TraceFileError(f"{self.path} {why}")
        entries = np.array(rows, ENTRY)
        first = np.sort(np.unique(entries["seq"], return_index=True)[1])
        damage.duplicates = len(entries) - len(first)
        entries = entries[first]
        seq = entries["seq"]
        damage.lost_frames = int(seq.max()) + 1 - len(seq)
        damage.reordered = int((seq < np.maximum.accumulate(seq)).sum())
        self.damage, self.scanned, self._lost = damage, True, lost
        return entries

    def _header(self) -> frames.Header:
        header = frames.Header(id=self.file_id)
        for frame in self.read((HEADER,)):
            try:
                header = frames.unpack_header(frame.body, self.limits)
            except FrameError:
                self.damage.bad_frames += 1
                continue
            if why := header.refused():
                raise TraceFileError(f"{self.path}: {why}", OTHER_VERSION)
            break
        return header

    def read(
        self, kinds: Iterable[int] | None = None, selection: Selection = EVERYTHING, first: int = 0, last: int = _LAST
    ) -> Iterator[Frame]:
        """Yields the frames of some kinds that can hold rows of the selection, in the order of the file.

        When a frame is not where the index says, the whole file is scanned, and reading continues behind the last frame
        that was yielded.
        kinds: the kinds of frames; None = all. selection: frames that the index shows to have another stream, no time
        or no process of it are skipped. first, last: the byte offsets of the first and the last frame to read.
        """
        for entry in self.chosen(kinds, selection, first, last):
            frame = frame_at(self.input, int(entry["offset"]), self.file_id, self.limits)
            if frame is not None and frame.head.seq == entry["seq"] and frame.kind == entry["kind"]:
                first = frame.offset + 1
                yield frame
                continue
            self.input.check()
            if not self.scanned:
                self.entries = self._by_scan()
                yield from self.read(kinds, selection, first, last)
                return
            self.damage.bad_frames += 1  # the file changed while it was read

    def chosen(
        self, kinds: Iterable[int] | None = None, selection: Selection = EVERYTHING, first: int = 0, last: int = _LAST
    ) -> NDArray[Any]:
        """The entries of the frames that read() reads."""
        entries = self.entries
        keep = (entries["offset"] >= first) & (entries["offset"] <= last)
        if kinds is not None:
            keep &= np.isin(entries["kind"], list(kinds))
        timed = np.isin(entries["kind"], (EVENTS, SNAPSHOT, MARK)) & (entries["t1"] != 0)
        if selection.start is not None:
            keep &= ~timed | (entries["t1"] >= time64(selection.start))
        if selection.end is not None:
            keep &= ~timed | (entries["t0"] < time64(selection.end))
        if selection.stream is not None:
            keep &= (entries["stream"] == 0) | (entries["stream"] == self._number(selection.stream))
        if selection.pids is not None:
            keep &= (entries["pids"] == 0) | (entries["pids"] & np.uint64(pid_set(selection.pids)) != 0)
        return entries[keep]

    def marks(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """Yields the marks of the file; with `kind`, without those that the index shows to be of another kind."""
        for frame in self.read((MARK,), Selection(kind)):
            try:
                yield frames.unpack_map(frame.body, self.limits)
            except FrameError:
                self.damage.bad_frames += 1

    def check(self) -> None:
        """Checks every byte once, unless a scan has; an error leads to a scan of the file."""
        if not (self.scanned or self._checked):
            for _ in self.read():
                pass
            self._checked = True

    def lost_rows(self) -> Counter[str] | None:
        """stream -> rows that were written according to END and cannot be read; None = not known, without END."""
        return None if self.end is None else +(Counter(self.end.rows) - self.rows())

    @property
    def clean(self) -> bool:
        """Whether the file has its END frame, and no damage was found so far."""
        return self.end is not None and self.end.clean and not self.damage.any and not self.damage.tail_bytes

    def span(self, *, essential: bool = True) -> tuple[int, int] | None:
        """(first, last) time of its rows in nanoseconds, or None; without essential rows, which each part repeats."""
        rows = self.entries
        rows = rows[np.isin(rows["kind"], (EVENTS, SNAPSHOT)) & (rows["t1"] != 0) & (rows["n"] != 0)]
        if not essential:
            repeated = [n for n, name in enumerate(self.streams) if name in STREAMS and STREAMS[name].essential]
            rows = rows[~np.isin(rows["stream"], repeated)]
        return (int(rows["t0"].min()), int(rows["t1"].max())) if len(rows) else None

    def rows(self) -> Counter[str]:
        """stream -> number of rows, from END, or from the frames if that is missing or the file is damaged."""
        if self.end is not None and not self.damage.any:
            return +Counter({name: n for name, n in self.end.rows.items() if name})
        rows = self.entries[np.isin(self.entries["kind"], WITH_ROWS)]
        sums = np.bincount(rows["stream"], rows["n"], len(self.streams)).astype(int).tolist()
        found = Counter(dict(zip(self.streams, sums, strict=True)))
        found["mark"] = sum(mark.get("m") == "user" for mark in self.marks())
        del found[""]
        return +found

    def lost(self) -> Counter[str]:
        """stream -> number of records that the kernel dropped, by its EVENTS and SNAPSHOT frames."""
        if self._lost is None:
            lost = Counter[str]()
            for frame in self.read((EVENTS, SNAPSHOT)):
                rows = frames.peek_rows(frame.body, self.limits)
                lost[rows.stream] += rows.lost
            self._lost = lost if self._lost is None else self._lost  # a scan meanwhile has read them all
        return +self._lost

    def close(self) -> None:
        """Closes the file."""
        self.input.close()


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


def first_header(path: str) -> frames.Header | None:
    """The header of a file, or None unless its first frame is a good header. Raises TraceFileError if unreadable."""
    source = open_input(path)
    try:
        frame = frame_at(source, 0, None, LIMITS)
        return frames.unpack_header(frame.body, LIMITS) if frame is not None and frame.kind == HEADER else None
    except FrameError:
        return None
    finally:
        source.close()
