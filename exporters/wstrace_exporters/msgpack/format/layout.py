"""The constants of WSTF, the trace file: the frame's head, the kinds, the limits, the errors. See FORMAT.md.

This is what writer and reader must agree on: the names of parts, too.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from typing import Any, NamedTuple

from wstrace.errors import TraceFileError

VERSION = (2, 0)

MAGIC = b"\x89WSTF\r\n\x1a"  # As in PNG, a byte above 127, CR LF, and 1A reveal a transfer that changed bytes.
HEAD = struct.Struct(">BBb16sBBQBIBI")
HEAD_BYTES = 39
assert HEAD.size == HEAD_BYTES
#: The first 11 bytes of the head, the same in every frame of every file; the file id follows.
SYNC = b"\x96\xd8\x57" + MAGIC
#: The bytes of the head that the CRC covers, before the body.
CRC_FROM, CRC_TO = 19, 34

HEADER, STRINGS, MAPPINGS, EVENTS, SNAPSHOT, MARK, INDEX, END = range(8)

#: A file id, and what of it all parts of a session have in common. Parts of one session share their ids.
FILE_ID_BYTES, SESSION_BYTES = 8, 5

FRAME_ROWS = 65_536
FRAME_SECONDS = 1.0
CLOCK_MARK_SECONDS = 60.0
INDEX_ENTRIES = 100_000
END_BYTES = 4096
LOST = "[lost]"


class Limits(NamedTuple):
    """The limits past which a reader calls a frame bad. In bytes unless noted; they can be raised for unusual files."""

    large_body: int = 16 << 20
    mappings_body: int = 8 << 20
    small_body: int = 1 << 20
    rows: int = 1 << 20
    columns: int = 64
    column: int = 8 << 20
    frame_decoded: int = 48 << 20
    zstd_window_log: int = 23
    mappings: int = 1 << 20
    files: int = 1 << 16  # Files of mappings, per part: a page takes 0.1 ms for each.
    table_rows: int = 1 << 21  # The ids of rows of another table, per part.
    processes: int = 3 << 17  # Rows of `process`, or threads that fault, per part: 3/4 of it and a frame.
    process_names: int = 1 << 16  # processes of which names are listed
    names_of_one: int = 64
    strings: int = 1 << 20
    string: int = 64 << 10
    strings_total: int = 32 << 20
    frames: int = 1 << 22
    scan_ratio: int = 4
    free_items: int = 10_000
    free_depth: int = 8

    def body(self, kind: int) -> int:
        """The longest body of that kind of frame, in bytes."""
        if kind in (EVENTS, SNAPSHOT, INDEX) or kind > END:
            return self.large_body
        return self.mappings_body if kind == MAPPINGS else self.small_body


LIMITS = Limits()


class FrameError(TraceFileError):
    """A frame that violates the format. The reader counts it and continues with the next one."""


class Head(NamedTuple):
    """The fixed 39 bytes before a frame's body."""

    file_id: bytes
    kind: int
    seq: int
    body_len: int
    crc: int

    @property
    def frame_len(self) -> int:
        """The size of head and body in bytes."""
        return HEAD_BYTES + self.body_len


def pack_frame(file_id: bytes, kind: int, seq: int, body: bytes) -> bytes:
    """The head and body of one frame, which is written by one write(2)."""
    head = HEAD.pack(0x96, 0xD8, 0x57, MAGIC + file_id, kind, 0xCF, seq, 0xCE, len(body), 0xCE, 0)
    crc = zlib.crc32(body, zlib.crc32(head[CRC_FROM:CRC_TO]))
    return b"".join((head[:35], crc.to_bytes(4, "big"), body))


def unpack_head(data: Any, at: int = 0) -> Head | None:
    """The head at that offset of a buffer; None if its fixed bytes are not there."""
    if len(data) - at < HEAD_BYTES:
        return None
    array, ext, ext_type, ident, kind, m_seq, seq, m_len, body_len, m_crc, crc = HEAD.unpack_from(data, at)
    fixed = (array, ext, ext_type, m_seq, m_len, m_crc) == (0x96, 0xD8, 0x57, 0xCF, 0xCE, 0xCE)
    if not fixed or kind > 127 or ident[:8] != MAGIC:
        return None
    return Head(ident[8:], kind, seq, body_len, crc)


def crc_holds(head_bytes: Any, body: Any, crc: int) -> bool:
    """Whether `crc` is the CRC-32 of the head's bytes 19..33 and the body."""
    return zlib.crc32(body, zlib.crc32(head_bytes[CRC_FROM:CRC_TO])) == crc


def part_path(path: str, number: int) -> str:
    """The path or URL of part `number`."""
    stem, suffix = os.path.splitext(path)  # as of a URL
    return path if number == 0 else f"{stem}.{number:04}{suffix}"


def name_and_number(path: str) -> tuple[str, int]:
    """(the path of part 0, the number of this part) by its name alone: ("x.wst", 3) for "x.0003.wst"."""
    folder, slash, name = path.rpartition("/")
    found = re.fullmatch(r"(.+)\.(\d{4,9})(\.[^.]*)", name)
    return (path, 0) if found is None else (folder + slash + found[1] + found[3], int(found[2]))


def parts_prefix(path: str) -> str:
    """What the names of all parts begin with, by the path of part 0."""
    return os.path.splitext(path)[0]


def parts_there(path: str) -> list[str]:
    """The paths of the parts of a trace that exist, in order, by that of part 0; only files that begin like a trace."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    pattern = re.compile(re.escape(stem) + r"\.(\d{4,9})" + re.escape(suffix))
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return []
    found = (match for name in names if (match := pattern.fullmatch(name)))
    numbered = sorted((int(match[1]), os.path.join(folder, match[0])) for match in found)
    return list(filter(_is_trace, [path, *(part for _, part in numbered)]))


def _is_trace(path: str) -> bool:
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(len(SYNC)) == SYNC
    except OSError:
        return False
