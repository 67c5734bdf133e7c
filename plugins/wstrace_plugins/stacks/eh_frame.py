"""Unwinding information of an ELF file: the sorted table in `.eh_frame_hdr`, and entries read when they are needed.

Nothing is prepared: the linker has sorted the table, and only the entries that cover a program counter that occurs are
read. A file without that table, as `gcc -static` makes, has no rules. The file may be anyone's and may change: it is
read (never mapped) in bounded pieces.

Source: Linux Standard Base 5.0, 10.6 (`.eh_frame`, `.eh_frame_hdr`).
"""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.os import elf
from wstrace_plugins.os.elf import Elf, Program, Read
from wstrace_plugins.stacks.dwarf import (
    MASK,
    OMITTED,
    UNREADABLE,
    Common,
    Frames,
    common_of,
    extent,
    pointer,
    rule_at,
    uleb,
)
from wstrace_plugins.stacks.rules import END, Rule

MOST_ENTRIES = 1 << 20  # of a table; librustc_driver has 0.15 million
MOST_BYTES = 1 << 16  # of one entry; the longest seen has 3,000
MOST_CACHED = 1 << 16
_AT_ONCE = 512  # bytes: nine of ten entries are shorter
_SORTED_TABLE = 0x3B  # DW_EH_PE_datarel | DW_EH_PE_sdata4
_ENTRY_BYTES = 64  # _start without an entry, as in ld.so, is shorter


class UnwindFile:
    """The unwinding information of one ELF file. Addresses are the file's own (p_vaddr).

    Args:
        read: gives bytes of the file.

    Raises:
        ValueError: it is no 64-bit ELF file for x86-64, or contradicts itself.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self.elf = Elf(read)
        if self.elf.machine != elf.X86_64:
            raise ValueError("no ELF file for x86-64")
        self._starts: NDArray[np.int32] = np.zeros(0, "<i4")
        self._entries: NDArray[np.int32] = np.zeros(0, "<i4")
        self._base = 0
        self._commons: dict[int, Common] = {}
        self._frames: dict[int, Frames] = {}
        for header in self.elf.programs:
            if header.kind == elf.EH_FRAME:
                with suppress(*UNREADABLE):
                    self._read_table(header)

    def _read_table(self, header: Program) -> None:
        """The table of `.eh_frame_hdr`; none where it has another form than the one that linkers make."""
        head = self._read(header.offset, 64)
        if len(head) < 4 or head[0] != 1 or head[1] == OMITTED or head[2] == OMITTED or head[3] != _SORTED_TABLE:
            return
        _, at = pointer(head, 4, head[1], header.address + 4, header.address)
        count, at = pointer(head, at, head[2], header.address + at, header.address)
        if count > MOST_ENTRIES:
            return
        rows = self._read(header.offset + at, 8 * count)
        table: NDArray[np.int32] = np.frombuffer(rows[: len(rows) // 8 * 8], "<i4").reshape(-1, 2)
        self._starts, self._entries = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])
        self._base = header.address

    def rule(self, address: int) -> Rule | None:
        """The rule at an address; None where nothing describes it, or what describes it cannot be read."""
        try:
            frames = self._covering(address)
            if frames is not None:
                return rule_at(frames, address)
        except UNREADABLE:
            return None
        return END if self.elf.entry <= address < self.elf.entry + _ENTRY_BYTES else None

    def first_rule(self, address: int) -> Rule | None:
        """The rule at the begin of what an address is in: a function, or the part of one that is rarely run."""
        try:
            frames = self._covering(address)
            return None if frames is None else rule_at(frames, frames.start)
        except UNREADABLE:
            return None

    def _covering(self, address: int) -> Frames | None:
        distance = address - self._base
        if not len(self._starts) or not -(1 << 31) <= distance < 1 << 31:
            return None
        row = int(np.searchsorted(self._starts, np.int32(distance), side="right")) - 1
        if row < 0:
            return None
        entry = self._base + int(self._entries[row]) & MASK
        if entry not in self._frames:
            if len(self._frames) >= MOST_CACHED:
                self._frames.clear()
            self._frames[entry] = self._description(entry)
        frames = self._frames[entry]
        return frames if frames.start <= address < frames.end else None

    def _description(self, entry: int) -> Frames:
        """The frame description entry at an address. Raises one of UNREADABLE."""
        data, at = self._bytes(entry)
        (back,) = struct.unpack_from("<I", data, at)
        common = self._common(entry + at - back)
        at += 4
        start, at = pointer(data, at, common.encoding, entry + at)
        size, at = pointer(data, at, common.encoding & 15, 0)
        if common.augmented:
            length, at = uleb(data, at)
            at += length
        return Frames(start, start + size, common, data[at:])

    def _common(self, entry: int) -> Common:
        if entry not in self._commons:
            if len(self._commons) >= MOST_CACHED:
                self._commons.clear()
            self._commons[entry] = common_of(*self._bytes(entry))
        return self._commons[entry]

    def _bytes(self, entry: int) -> tuple[bytes, int]:
        """The bytes of an entry, with its length, and the index behind the length."""
        offset = self.elf.offset_of(entry)
        data = self._read(offset, _AT_ONCE)
        size, at = extent(data, 0)
        size += at
        if size > MOST_BYTES:
            raise ValueError("the entry is too long")
        if size > len(data):
            data = self._read(offset, size)
        if size > len(data):
            raise ValueError("the entry goes past the end of the file")
        return data[:size], at
