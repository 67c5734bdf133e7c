"""Finds the good frames of a file that may be cut or damaged, and counts what lies between them.

A frame is good when its fixed bytes, its file id, its length and its CRC are right. After a bad frame, the next head is
searched byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

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

if TYPE_CHECKING:
    from wstrace_exporters.msgpack.read.input import LocalInput
    from wstrace_exporters.msgpack.read.remote_input import RemoteInput

    Input = LocalInput | RemoteInput

_SMALL_READ, _SEARCH_READ = 4096, 1 << 20
#: The first good frame of a trace must begin within this many bytes.
_SEARCH_FIRST = 64 << 20


class Frame(NamedTuple):
    """A good frame: its head, its offset in the file, its body."""

    head: Head
    offset: int
    body: memoryview

    @property
    def kind(self) -> int:
        """What it is: EVENTS, MARK ..."""
        return self.head.kind


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


def frame_at(source: Input, at: int, file_id: bytes | None, limits: Limits) -> Frame | None:
    """The good frame at a byte offset, or None."""
    head = head_at(source, at, file_id, limits)
    return _checked(source, at, head) if head is not None else None


def head_at(source: Input, at: int, file_id: bytes | None, limits: Limits) -> Head | None:
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
    good = len(body) == head.body_len and crc_holds(data, body, head.crc)
    return Frame(head, at, body) if good else None


def good_frames(source: Input, damage: Damage, limits: Limits = LIMITS) -> Iterator[Frame]:
    """Yields the good frames of a file, and counts the bytes between them in `damage`.

    In a file made of bad heads, every byte would be checked many times: 25 GB for a file of 2 MB. Therefore each check
    is deducted from a budget; once that is spent, bad frames are skipped by their length.
    """
    file_id, at = None, 0
    budget = limits.scan_ratio * max(source.size, _SMALL_READ)
    while at < source.size:
        head = head_at(source, at, file_id, limits)
        length = head.frame_len if head is not None else 0
        frame = _checked(source, at, head) if head is not None else None
        if frame is not None and file_id is None:
            file_id = _settled(source, frame, limits)
            frame = frame if file_id == frame.head.file_id else None
        if frame is not None:
            budget -= length
            damage.tail_bytes = 0
            yield frame
            at += length
            continue
        length = max(length, _SMALL_READ)
        budget -= length
        found = _search(source, at + (1 if budget > 0 else length), file_id)
        damage.lost_bytes += found - at
        damage.tail_bytes += found - at
        at = found


def _settled(source: Input, frame: Frame, limits: Limits) -> bytes | None:
    """The file's id by its first good frame, or None when it cannot be confirmed: the CRC does not cover the id.

    A header repeats the id in its body. After any other frame, the next head must have the same id.
    """
    own = frame.head.file_id
    if frame.kind == HEADER:
        try:
            return unpack_header(frame.body, limits).id or own
        except FrameError:
            return own
    following = unpack_head(source.read(frame.offset + frame.head.frame_len, HEAD_BYTES))
    return own if following is None or following.file_id == own else None


def _search(source: Input, at: int, file_id: bytes | None) -> int:
    """The byte offset at which the next head may begin, or the size of the file."""
    needle, n = SYNC + (file_id or b""), _SMALL_READ
    while at < source.size and (file_id is not None or at <= _SEARCH_FIRST):
        window = bytes(source.read(at, n))
        found = window.find(needle)
        if found >= 0:
            return at + found
        at += len(window) - len(needle) + 1 if len(window) == n else n
        n = min(2 * n, _SEARCH_READ)
    return source.size
