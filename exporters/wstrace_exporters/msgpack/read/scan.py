"""Finds the good frames of a file that may be cut or damaged, and counts what lies between them.

A frame is good when its fixed bytes, its file id, its length and its CRC are right. After a bad frame, the next head is
searched byte by byte; a gap in the sequence numbers (seq) tells how many frames are lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from wstrace_exporters.msgpack.format.frames import unpack_header
from wstrace_exporters.msgpack.format.layout import (
    HEAD_BYTES,
    HEADER,
    LIMITS,
    SYNC,
    FrameError,
    Head,
    Limits,
    crc_holds,
    unpack_head,
)
from wstrace_exporters.msgpack.read.input import Input

_SMALL_READ, _SEARCH_READ = 4096, 1 << 20
#: The first good frame of a trace must begin within this many bytes.
_SEARCH_FIRST = 64 << 20


class Frame(NamedTuple):
    """A good frame. The body is valid until the next one is read."""

    kind: int
    seq: int
    offset: int
    body: memoryview

    @property
    def length(self) -> int:
        """Bytes of head and body."""
        return HEAD_BYTES + len(self.body)


@dataclass(slots=True)
class Damage:
    """The damage that was found in a file.

    Attributes:
        lost_bytes: bytes that belong to no good frame.
        lost_frames: frames that are missing by their sequence numbers.
        bad_frames: frames with a right CRC, but with a body that the format does not permit.
        duplicates: frames that were dropped because their sequence number was seen before.
        reordered: frames that were out of order, and were read nevertheless.
        tail_bytes: those of lost_bytes that lie behind the last good frame, as in a cut file.
        lost_names: names, mappings and rows that were referred to but are in no table; they read `[lost]`.
    """

    lost_bytes: int = 0
    lost_frames: int = 0
    bad_frames: int = 0
    duplicates: int = 0
    reordered: int = 0
    tail_bytes: int = 0
    lost_names: int = 0

    @property
    def any(self) -> bool:
        """Whether there is damage other than a cut end."""
        return bool(
            self.lost_bytes > self.tail_bytes
            or self.lost_frames
            or self.bad_frames
            or self.duplicates
            or self.reordered
        )

    def as_dict(self) -> dict[str, int]:
        """Every count by name."""
        return {name: getattr(self, name) for name in self.__slots__}


def frame_at(source: Input, at: int, file_id: bytes | None, limits: Limits = LIMITS) -> Frame | None:
    """The good frame at a byte offset, or None."""
    head = head_at(source, at, file_id, limits)
    return _checked(source, at, head) if head is not None else None


def head_at(source: Input, at: int, file_id: bytes | None, limits: Limits = LIMITS) -> Head | None:
    """The head at a byte offset if it has this file id, keeps the limits, and its frame ends in the file; else None."""
    if at > source.size - HEAD_BYTES:  # an offset from the file may be any u64, but seek() takes 63 bits only
        return None
    head = unpack_head(source.read(at, HEAD_BYTES))
    if head is None or (file_id is not None and head.file_id != file_id):
        return None
    if head.body_len > limits.body(head.kind) or at + head.frame_len > source.size:
        return None
    return head


def _checked(source: Input, at: int, head: Head) -> Frame | None:
    data = source.read(at, head.frame_len)
    body = data[HEAD_BYTES:]
    if len(body) != head.body_len or not crc_holds(data, body, head.crc):
        return None
    return Frame(head.kind, head.seq, at, body)


class Sequence:
    """The sequence numbers seen so far, which tell gaps, duplicates and late frames apart."""

    def __init__(self, damage: Damage, first: int = 0) -> None:
        self.next = first
        self._damage = damage
        self._gaps: list[tuple[int, int]] = []

    def take(self, seq: int) -> bool:
        """Notes a frame's sequence number in the damage; returns False for a duplicate."""
        if seq >= self.next:
            if seq > self.next:
                self._gaps.append((self.next, seq))
                self._damage.lost_frames += seq - self.next
            self.next = seq + 1
            return True
        at = bisect_right(self._gaps, (seq, 1 << 64)) - 1
        if at < 0 or seq >= self._gaps[at][1]:
            self._damage.duplicates += 1
            return False
        low, high = self._gaps[at]
        self._gaps[at : at + 1] = [gap for gap in ((low, seq), (seq + 1, high)) if gap[0] < gap[1]]
        self._damage.lost_frames -= 1
        self._damage.reordered += 1
        return True


class Scanner:
    """Scans a file from an offset on.

    Args:
        source: the file.
        limits: the limits past which a frame is bad.
        start: the byte offset to begin at.
        seq: the sequence number expected there.
        file_id: the file's id; None = the id in the first good frame.
    """

    def __init__(
        self, source: Input, limits: Limits = LIMITS, *, start: int = 0, seq: int = 0, file_id: bytes | None = None
    ) -> None:
        self.source = source
        self.limits = limits
        self.file_id = file_id
        self.damage = Damage()
        self.sequence = Sequence(self.damage, seq)
        self.end = start  # the end of the last good frame
        self._at = start
        self._budget = 0
        self.checked_bytes = self.bad_heads = 0
        self._window, self._window_at = b"", 0

    def frames(self) -> Iterator[Frame]:
        """Yields the good frames up to the present end of the file."""
        source = self.source
        self._window = b""
        self._budget = self.limits.scan_ratio * max(source.size, _SMALL_READ)
        at = self._at
        while at < source.size:
            head = head_at(source, at, self.file_id, self.limits)
            frame = self._check(at, head)
            if frame is None:
                found = self._search(at + self._step(head))
                self.damage.lost_bytes += found - at
                at = found
                continue
            self.damage.tail_bytes = 0
            at = self._at = self.end = at + frame.length
            if self.sequence.take(frame.seq):
                yield frame
        self.damage.tail_bytes = source.size - self.end
        self._at = at

    def _step(self, head: Head | None) -> int:
        """The number of bytes to skip before the search goes on.

        In a file made of bad heads, every byte would be checked many times: 25 GB for a file of 2 MB. Therefore each
        check is deducted from a budget; once that is spent, bad frames are skipped by their length.
        """
        length = max(head.frame_len if head is not None else 0, _SMALL_READ)
        self._budget -= length
        self.bad_heads += head is not None
        return 1 if self._budget > 0 else length

    def _check(self, at: int, head: Head | None) -> Frame | None:
        if head is None:
            return None
        self.checked_bytes += head.frame_len
        frame = _checked(self.source, at, head)
        self._budget -= head.frame_len if frame is not None else 0
        if frame is not None and self.file_id is None:
            self.file_id = self._settled(head, frame)
            if self.file_id != head.file_id:
                return None
        return frame

    def _settled(self, head: Head, frame: Frame) -> bytes | None:
        """The file's id by its first good frame, or None when it cannot be confirmed: the CRC does not cover the id.

        A header repeats the id in its body. After any other frame, the next head must have the same id.
        """
        if frame.kind == HEADER:
            try:
                return unpack_header(frame.body, self.limits).id or head.file_id
            except FrameError:
                return head.file_id
        after = frame.offset + frame.length
        following = unpack_head(self.source.read(after, HEAD_BYTES))
        return head.file_id if following is None or following.file_id == head.file_id else None

    def _search(self, at: int) -> int:
        """The byte offset at which the next head may begin, or the size of the file."""
        needle, size = SYNC + (self.file_id or b""), self.source.size
        while at < size and (self.file_id is not None or at <= _SEARCH_FIRST):
            if not self._window_at <= at < self._window_at + len(self._window) - len(needle):
                self._window, self._window_at = bytes(self.source.read(at, _SEARCH_READ)), at
            found = self._window.find(needle, at - self._window_at)
            if found >= 0:
                return self._window_at + found
            if self._window_at + len(self._window) >= size:
                break
            at = self._window_at + len(self._window) - len(needle) + 1
        return size
