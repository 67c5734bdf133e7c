"""Code objects of a CPython process: which one an address lies in, read from the process's memory after the fault.

Nothing there is trusted. A code object is believed where its own type, its names' and its line table's are at their
places, somebody holds it, and its line table describes as many instructions as it has. As memory of a freed one may be
another's by now, a fault is given a code object only where the same content was read before it and after it. One
that could not be read after it, as its process has more code than can be read in time, is known, but not proven.

Source: Include/object.h, Include/cpython/{code,unicodeobject,bytesobject}.h.
"""

from __future__ import annotations

import bisect
import hashlib
import os
import struct
import time
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Dictionary
from wstrace.clock import now_ns
from wstrace_plugins.os.linux.cpython.instructions import Instructions
from wstrace_plugins.os.linux.cpython.layouts import Layout
from wstrace_plugins.os.linux.cpython.line_table import LineTable
from wstrace_plugins.os.linux.cpython.strings import ASCII_BIT, KIND_MASK, KIND_SHIFT, characters

_os: Any = os  # When mypy checks for Windows, the POSIX half has no types.
_HEAD = struct.Struct("<QQq")  # ob_refcnt, ob_type, ob_size
_STRING = struct.Struct("<QQqqI")  # ob_refcnt, ob_type, length, hash, state
_TYPE_AT, _BYTES_AT, _UNIT = 8, 32, 2
MOST_UNITS, MOST_NAME, MOST_TABLE = 1 << 18, 1024, 1 << 18
MOST_OBJECTS, MOST_LINES = 1 << 14, 8 << 20
#: bytes of a line table for each unit: an entry has a head and four numbers of 7 bytes at most
_ENTRY_BYTES = 29
#: most names and tables are shorter
_SHORT = 256
#: memory is searched for code objects in pieces; so many for one batch of samples
_PIECE_BITS, MOST_PIECES = 16, 512
#: the piece of an address and the one before it are searched: bytecode that begins further back is not found
_REACH = np.uint64(1 << _PIECE_BITS)
_LOWER_HALF = np.uint64(1 << 47)
#: references of an object that is freed some day; of one that is not, from 3.12 on, in the lower 32 bits
_MOST_REFERENCES, _IMMORTAL, _LOWER = 1 << 24, 1 << 30, (1 << 32) - 1


#: CPU time for the reading of one batch: as long as this takes, faults wait
MOST_NS = 100_000_000
#: units whose lines are found before the time is looked at again
MOST_AT_ONCE = 1 << 14

_T = TypeVar("_T", np.int32, np.uint8)


class Types(NamedTuple):
    """Addresses of PyCode_Type, PyUnicode_Type and PyBytes_Type."""

    code: int
    string: int
    bytes: int


class _Content(NamedTuple):
    """What a code object says of itself: what is kept of it is the digest."""

    units: int
    first: int
    version: int
    function: str
    file: str
    table: bytes

    @property
    def digest(self) -> bytes:
        """Of all of it: its own tables would take gigabytes of a program that makes them large."""
        said = repr(self[:-1]).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(said + b"\0" + self.table, digest_size=16).digest()


class CodeObjects:
    """The code objects of one process that samples have named so far.

    Args:
        pid: the process.
        layout: of its CPython.
        types: where its types are.
        instructions: of its version.
        strings: the session's names.

    Raises:
        OSError: its memory may not be read, or it has ended.
    """

    def __init__(self, pid: int, layout: Layout, types: Types, instructions: Instructions, strings: Dictionary) -> None:
        # A descriptor, not the pid: it means this address space, and none after the process's end or next exec.
        self._fd: int = _os.open(f"/proc/{pid}/mem", os.O_RDONLY | _os.O_CLOEXEC)
        self._layout, self._types, self._strings = layout, types, strings
        self._instructions = instructions
        self._forget()
        self.begin()

    def _forget(self) -> None:
        #: begin of the bytecode -> the digest of what was read there
        self._contents: dict[int, bytes] = {}
        #: by code object, in order of address: the codes of its names; where its bytecode begins, and ends; since when
        #: it is proven to be there; where in `lines` and `plain` (instructions) those of its units begin
        self.names: NDArray[np.uint32] = np.zeros((0, 2), "<u4")
        self.begins: NDArray[np.uint64] = np.zeros(0, "<u8")
        self.ends: NDArray[np.uint64] = np.zeros(0, "<u8")
        self.since: NDArray[np.uint64] = np.zeros(0, "<u8")
        self.lines_at: NDArray[np.int64] = np.zeros(0, np.int64)
        self.lines: NDArray[np.int32] = np.zeros(0, np.int32)
        self.plain: NDArray[np.uint8] = np.zeros(0, "u1")
        #: the greatest co_version that was read, and when that was
        self._versions: list[int] = []
        self._read_at: list[int] = []

    def close(self) -> None:
        """Closes the process's memory."""
        os.close(self._fd)

    def begin(self) -> None:
        """Begins a batch of samples, which were taken before now: what they name is read again."""
        self._checked: set[int] = set()
        self._until = 0
        self._heads: dict[int, NDArray[np.uint64]] = {}
        if len(self.begins) > MOST_OBJECTS or len(self.lines) > MOST_LINES:
            self._forget()

    # -- looking up --------------------------------------------------------------------------------------------------

    def locate(self, words: NDArray[np.uint64]) -> NDArray[np.intp]:
        """The rows of the code objects in whose bytecode words point behind an instruction; -1 = in none known."""
        if not len(self.begins):
            return np.full(words.shape, -1, np.intp)
        at = np.searchsorted(self.begins, words, side="right") - 1
        inside = (at >= 0) & (words > self.begins.take(at, mode="clip")) & (words <= self.ends.take(at, mode="clip"))
        return np.where(inside & ((words & np.uint64(1)) == 0), at, -1)

    def lines_of(self, words: NDArray[np.uint64], rows: NDArray[np.intp]) -> NDArray[np.int32]:
        """The lines of the instructions before words, which locate() found in these rows; 0 = none."""
        return self._of_units(self.lines, words, rows)

    def instructions_of(self, words: NDArray[np.uint64], rows: NDArray[np.intp]) -> NDArray[np.uint8]:
        """The plain instructions before words, which locate() found in these rows; 0 = not known."""
        return self._of_units(self.plain, words, rows)

    def _of_units(self, told: NDArray[_T], words: NDArray[np.uint64], rows: NDArray[np.intp]) -> NDArray[_T]:
        inside = rows >= 0
        unit = (words[inside] - self.begins[rows[inside]] >> np.uint64(1)).astype(np.int64) - 1
        found = np.zeros(rows.shape, told.dtype)
        found[inside] = told[self.lines_at[rows[inside]] + unit]
        return found

    def begins_of(self, rows: NDArray[np.intp]) -> NDArray[np.uint64]:
        """Where the bytecode of these rows begins; 0 for -1."""
        return np.append(self.begins, np.uint64(0))[rows]

    def since_of(self, rows: NDArray[np.intp]) -> NDArray[np.uint64]:
        """Since when these rows are proven to be what they are; 0 for -1."""
        return np.append(self.since, np.uint64(0))[rows]

    def read_of(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of these rows were read in this batch, and so are what they were; False for -1."""
        read = np.array([begin in self._checked for begin in self.begins.tolist()], bool)
        return np.append(read, False)[rows]

    def find(self, words: NDArray[np.uint64], most_ns: int = MOST_NS) -> bool:
        """Reads the code objects in which words lie: those that are known again, once for each batch.

        Returns:
            Whether that took no more than most_ns of CPU. What was not read in that time is left for other batches.
        """
        self._until = time.thread_time_ns() + most_ns
        words = distinct(words[((words & np.uint64(1)) == 0) & (words >> np.uint64(_PIECE_BITS) > 0)])
        words = words[words < _LOWER_HALF]
        at = self.locate(words)
        for begin in self.begins[distinct(at[at >= 0])].tolist():
            if begin not in self._checked and not self._late():
                self._read_again(begin)
        words = words[self.locate(words) < 0]
        heads, first = np.unique(self._before(words), return_index=True)
        found: dict[int, _Content] = {}
        units = 0
        for head, word in zip(heads.tolist(), words[first].tolist(), strict=True):
            begin = head + self._layout.code_adaptive
            if not head or begin in self._contents or begin in self._checked:
                continue
            if self._late():
                break
            self._checked.add(begin)
            content = self._content(begin, word)
            if content is not None:
                found[begin] = content
                units += content.units
            if units > MOST_AT_ONCE:
                self._add(found)
                found, units = {}, 0
        if found:
            self._add(found)
        return not self._late()

    def _late(self) -> bool:
        return time.thread_time_ns() > self._until

    def _read_again(self, begin: int) -> None:
        self._checked.add(begin)
        content = self._content(begin)
        if content is None or content.digest != self._contents[begin]:
            self._drop(np.flatnonzero(self.begins == begin))
            if content is not None:
                self._add({begin: content})

    def _before(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """For each word the nearest place before it that looks like the head of a code object; 0 = none."""
        pieces = distinct(words >> np.uint64(_PIECE_BITS))
        for piece in distinct(np.concatenate((pieces, pieces - np.uint64(1)))).tolist():
            if piece not in self._heads and len(self._heads) < MOST_PIECES and not self._late():
                self._heads[piece] = self._search(piece)
        heads = np.concatenate([self._heads[piece] for piece in sorted(self._heads)] or [np.zeros(0, "<u8")])
        if not len(heads):
            return np.zeros(len(words), "<u8")
        at = np.searchsorted(heads + np.uint64(self._layout.code_adaptive), words) - 1
        head = heads.take(at, mode="clip")
        return np.where((at >= 0) & (words - head < _REACH), head, np.uint64(0))

    def _search(self, piece: int) -> NDArray[np.uint64]:
        """Where the type of code objects stands in a piece of memory, as the address of the object's begin."""
        raw = self._read(piece << _PIECE_BITS, 1 << _PIECE_BITS)
        words = np.frombuffer(raw[: len(raw) // 8 * 8], "<u8")
        return (np.flatnonzero(words == self._types.code) * 8 + (piece << _PIECE_BITS) - _TYPE_AT).astype("<u8")

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read(self, address: int, size: int) -> bytes:
        try:
            raw: bytes = _os.pread(self._fd, size, address)
        except (OSError, OverflowError, ValueError):
            return b""
        return raw

    def _content(self, begin: int, word: int = 0) -> _Content | None:
        """What stands before the begin of a bytecode, if that is a code object, whose bytecode reaches to that word."""
        layout = self._layout
        raw = self._read(begin - layout.code_adaptive, layout.code_adaptive)
        if len(raw) < layout.code_adaptive:
            return None
        references, kind, units = _HEAD.unpack_from(raw)
        if kind != self._types.code or not 0 < units <= MOST_UNITS or not self._held(references):
            return None
        if word > begin + _UNIT * units:
            return None
        first = int.from_bytes(raw[layout.code_firstlineno :][:4], "little")
        version = layout.code_version
        pointers = (layout.code_linetable, layout.code_qualname, layout.code_filename)
        table, function, file = (int.from_bytes(raw[at : at + 8], "little") for at in pointers)
        names = self._string(function), self._string(file)
        lines = self._bytes(table, min(_ENTRY_BYTES * units, MOST_TABLE))
        if names[0] is None or names[1] is None or not lines or first >= 1 << 31:
            return None
        number = int.from_bytes(raw[version : version + 4], "little") if version is not None else 0
        return _Content(units, first, number, names[0], names[1], lines)

    def _held(self, references: int) -> bool:
        """Whether an object is alive: the allocators write a pointer or 0 there when it is freed."""
        if self._layout.version < (3, 12):
            return 0 < references < _MOST_REFERENCES
        return 0 < references & _LOWER < _MOST_REFERENCES or references & _LOWER >= _IMMORTAL

    def _string(self, address: int) -> str | None:
        raw = self._read(address, self._layout.compact + _SHORT)
        if len(raw) < _STRING.size:
            return None
        _, kind, length, _, state = _STRING.unpack_from(raw)
        ascii_ = state >> ASCII_BIT & 1
        width = 1 if ascii_ else state >> KIND_SHIFT & KIND_MASK
        if kind != self._types.string or width not in (1, 2, 4) or not 0 <= length <= MOST_NAME:
            return None
        begin = self._layout.ascii if ascii_ else self._layout.compact
        if begin + length * width > len(raw):
            raw = self._read(address, begin + length * width)
        text = raw[begin : begin + length * width]
        return characters(text, state, length) if len(text) == length * width else None

    def _bytes(self, address: int, most: int) -> bytes:
        raw = self._read(address, _BYTES_AT + _SHORT)
        if len(raw) < _BYTES_AT:
            return b""
        _, kind, size = _HEAD.unpack_from(raw)
        if kind != self._types.bytes or not 0 < size <= most:
            return b""
        if _BYTES_AT + size > len(raw):
            raw = self._read(address, _BYTES_AT + size)
        return raw[_BYTES_AT : _BYTES_AT + size] if len(raw) >= _BYTES_AT + size else b""

    # -- keeping -----------------------------------------------------------------------------------------------------

    def _drop(self, rows: NDArray[np.intp]) -> None:
        for begin in self.begins[rows].tolist():
            del self._contents[begin]
        for name in ("begins", "ends", "since", "lines_at", "names"):
            setattr(self, name, np.delete(getattr(self, name), rows, axis=0))

    def _add(self, found: dict[int, _Content]) -> None:
        """Takes code objects that were read now; what was known of the same memory is void."""
        now, rows, lines, plain = now_ns(), [], [self.lines], [self.plain]
        at = len(self.lines)
        for begin, content in found.items():
            own = LineTable(content.table, content.first).by_unit()
            if len(own) != content.units:  # a table of something else
                continue
            end = begin + _UNIT * content.units
            self._drop(np.flatnonzero((self.begins < end) & (self.ends > begin)))
            names = self._strings.codes((content.function, content.file))
            rows.append((begin, end, self._there_since(content.version, now), at, *names))
            lines.append(np.array(own, np.int32))
            plain.append(self._plain(begin, content.units))
            at += content.units
            self._contents[begin] = content.digest
        if not rows:
            return
        self.lines, self.plain = np.concatenate(lines), np.concatenate(plain)
        columns = np.array(rows, "<u8")
        self.begins = np.concatenate((self.begins, columns[:, 0]))
        order = np.argsort(self.begins, kind="stable")
        self.begins = self.begins[order]
        self.ends = np.concatenate((self.ends, columns[:, 1]))[order]
        self.since = np.concatenate((self.since, columns[:, 2]))[order]
        self.lines_at = np.concatenate((self.lines_at, columns[:, 3].astype(np.int64)))[order]
        self.names = np.concatenate((self.names, columns[:, 4:].astype("<u4")))[order]
        newest = max(content.version for content in found.values())
        if newest > (self._versions[-1] if self._versions else 0):
            self._versions.append(newest)
            self._read_at.append(now)

    def _plain(self, begin: int, units: int) -> NDArray[np.uint8]:
        """The instructions of a code object: not of its content, as the interpreter changes their forms."""
        bytecode = self._read(begin, _UNIT * units)
        return self._instructions.by_unit(bytecode.ljust(_UNIT * units, b"\0"))

    def _there_since(self, version: int, now: int) -> int:
        """When a code object with that version is proven to have been made: versions are given in order of time."""
        if not version:
            return now
        at = bisect.bisect_left(self._versions, version)
        return self._read_at[at] if at < len(self._versions) else now
