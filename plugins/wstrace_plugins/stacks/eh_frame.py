"""Unwinding information of an ELF file: the sorted table in `.eh_frame_hdr`, and entries read when they are needed.

Nothing is prepared: the linker has sorted the table, and only the entries that cover a program counter that occurs are
read. A file without that table, as `gcc -static` makes, has no rules. The file may be anyone's and may change: it is
read (never mapped) in bounded pieces, and what cannot be read is "no rule".

Only what compilers write for x86-64 is understood: of 62,582 entries in 1,859 files (Debian 12, Python wheels), all
have 4-byte pointers relative to their place, and ten an instruction beside those below; their stacks are cut there.

Source: Linux Standard Base 5.0, 10.6 (`.eh_frame`, `.eh_frame_hdr`); DWARF 5, 7.6 (LEB128), 2.5 (expressions), 6.4.2
(Call Frame Instructions).
"""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.os import elf
from wstrace_plugins.os.elf import Elf, Program, Read
from wstrace_plugins.stacks import rules
from wstrace_plugins.stacks.rules import Rule

MOST_ENTRIES = 1 << 20  # of a table; librustc_driver has 0.15 million
MOST_BYTES = 1 << 12  # of one entry; the longest seen has 3,000
MOST_CACHED = 1 << 10
_AT_ONCE = 512  # bytes: nine of ten entries are shorter
_ENTRY_BYTES = 64  # _start without an entry, as in ld.so, is shorter

#: what reading hostile bytes may raise
UNREADABLE = (IndexError, KeyError, ValueError, struct.error, OverflowError)

_MASK = (1 << 64) - 1
_MOST_LEB_BYTES = 10
#: registers beyond these (vectors, flags) are in no rule
_MOST_REGISTERS = 32
_MOST_REMEMBERED = 64
#: DW_EH_PE_pcrel | DW_EH_PE_sdata4: the encoding of pointers to code
_PLACE_RELATIVE = 0x1B
#: Of `.eh_frame_hdr`: the version, and the encodings of the pointer to `.eh_frame`, of the number of entries (udata4)
#: and of the table (DW_EH_PE_datarel | DW_EH_PE_sdata4).
_HEADER = bytes([1, _PLACE_RELATIVE, 0x03, 0x3B])


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """The ULEB128 at that index, and the index behind it."""
    value = shift = 0
    for count in range(_MOST_LEB_BYTES):
        byte = data[at + count]
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value & _MASK, at + count + 1
    raise IndexError("a LEB128 of more than 64 bits")


def sleb(data: bytes, at: int) -> tuple[int, int]:
    """The SLEB128 at that index, and the index behind it."""
    value, end = uleb(data, at)
    bits = min(7 * (end - at), 64)
    return value - (1 << bits) if value >> (bits - 1) & 1 else value, end


class Value(NamedTuple):
    """What an expression gives: a register plus offset, or the u64 loaded from there."""

    register: int
    offset: int
    loaded: bool = False


_DEREFERENCE, _REGISTER = 0x06, range(0x70, 0x80)  # DW_OP_*
#: what linkers write for a procedure linkage table: a register + offset + ((rip & 15) >= N) * 8
_LINKAGE_TABLE = re.compile(rb"([\x70-\x7f].)\x80\x00\x3f\x1a([\x30-\x4f])\x2a\x33\x24\x22", re.DOTALL)


def evaluate(data: bytes, pc: int) -> Value | None:
    """The value of an expression at a known program counter; None where it has another form than those of Value.

    Of 63,317 entries in 267 files of Debian 12, the rule of none needs another form.
    """
    table = _LINKAGE_TABLE.fullmatch(data)
    expression = data if table is None else table[1]
    if not expression or expression[0] not in _REGISTER:
        return None
    offset, at = sleb(expression, 1)
    if table is not None:
        offset += 8 * (pc & 15 >= table[2][0] - 0x30)
    rest = expression[at:]
    if rest not in (b"", bytes([_DEREFERENCE])):
        return None
    return Value(expression[0] - _REGISTER.start, offset, bool(rest))


class Common(NamedTuple):
    """A common information entry: what its frame description entries share."""

    code_factor: int
    data_factor: int
    return_column: int
    signal: bool
    program: bytes


class Frames(NamedTuple):
    """A frame description entry: the code [start, end) that its program describes."""

    start: int
    end: int
    common: Common
    program: bytes


#: What a program has set so far, by register: the offset from the CFA of the place where it is, an expression for its
#: address, or None = undefined. The CFA by a number that is none: register and offset, or an expression.
State = dict[int, int | bytes | tuple[int, int] | None]
_CFA = -1
_ADVANCES = {2: "<B", 3: "<H", 4: "<I"}  # DW_CFA_advance_loc1, 2, 4


def rule_at(frames: Frames, pc: int) -> Rule:
    """The rule at a program counter within [start, end). Raises one of UNREADABLE where there is none."""
    common = frames.common
    initial = _run(common.program, frames.start, common, {}, {}, pc)
    return _flat(_run(frames.program, frames.start, common, dict(initial), initial, pc), common, pc)


def _run(data: bytes, location: int, common: Common, state: State, initial: State, pc: int) -> State:
    """The state once instructions pass pc. Raises ValueError where one is not known."""
    remembered: list[State] = []
    at = 0
    while at < len(data) and location <= pc:
        code, low = data[at] & 0xC0, data[at] & 0x3F
        at += 1
        if code == 0x40:  # DW_CFA_advance_loc
            location += low * common.code_factor
        elif code == 0x80:  # DW_CFA_offset
            number, at = uleb(data, at)
            _put(state, low, number * common.data_factor)
        elif code == 0xC0:  # DW_CFA_restore
            state.pop(low, None)
            if low in initial:
                state[low] = initial[low]
        elif low in _ADVANCES:
            (number,) = struct.unpack_from(_ADVANCES[low], data, at)
            at += struct.calcsize(_ADVANCES[low])
            location += number * common.code_factor
        elif low == 0x0A:  # DW_CFA_remember_state
            if len(remembered) == _MOST_REMEMBERED:
                raise ValueError("too many states")
            remembered.append(dict(state))
        elif low == 0x0B:  # DW_CFA_restore_state
            state = remembered.pop()
        elif low:
            at = _instruction(low, data, at, state)
    return state


def _put(state: State, register: int, where: int | bytes | None) -> None:
    if register < _MOST_REGISTERS:
        state[register] = where


def _instruction(code: int, data: bytes, at: int, state: State) -> int:
    """Applies one instruction with operands; gives the index behind it. Raises ValueError where it is not known."""
    if code == 0x0F:  # DW_CFA_def_cfa_expression
        state[_CFA], at = _block(data, at)
        return at
    number, at = uleb(data, at)
    known = state.get(_CFA)
    if code == 0x0C:  # DW_CFA_def_cfa
        offset, at = uleb(data, at)
        state[_CFA] = number, offset
    elif code == 0x0D and isinstance(known, tuple):  # DW_CFA_def_cfa_register
        state[_CFA] = number, known[1]
    elif code == 0x0E and isinstance(known, tuple):  # DW_CFA_def_cfa_offset
        state[_CFA] = known[0], number
    elif code == 0x07:  # DW_CFA_undefined
        _put(state, number, None)
    elif code == 0x10:  # DW_CFA_expression
        expression, at = _block(data, at)
        _put(state, number, expression)
    elif code != 0x2E:  # DW_CFA_GNU_args_size
        raise ValueError("an instruction that is not known")
    return at


def _block(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = uleb(data, at)
    if at + size > len(data):
        raise IndexError("an expression goes past the end of its entry")
    return data[at : at + size], at + size


def _flat(state: State, common: Common, pc: int) -> Rule:
    """The state of a program as a rule."""
    flags = rules.SIGNAL if common.signal else 0
    if state.get(common.return_column, 0) is None:
        return (*rules.END[: rules.FLAGS], flags, *rules.END[rules.FIRST_SAVED :])
    known = state.get(_CFA)
    if isinstance(known, tuple):
        cfa = (rules.CFA_SUM, *known)
    elif isinstance(known, bytes) and (value := evaluate(known, pc)) is not None:
        cfa = (rules.CFA_LOADED if value.loaded else rules.CFA_SUM, value.register, value.offset)
    else:
        return rules.NO_RULE
    kind, offset = _place(state, common.return_column, pc)
    if kind == rules.SAME:  # it is in no register on x86-64
        kind = rules.UNKNOWN
    saved = [number for register in rules.SAVED for number in _place(state, register, pc)]
    row = (*cfa, kind, offset, *_place(state, rules.RBP, pc), flags, *saved)
    return row if all(-(1 << 62) < number < 1 << 62 for number in row) else rules.NO_RULE


def _place(state: State, register: int, pc: int) -> tuple[int, int]:
    """The kind and offset of a register in a rule."""
    if register not in state:
        return rules.SAME, 0
    where = state[register]
    if isinstance(where, int):
        return rules.AT_CFA, where
    if isinstance(where, bytes):
        value = evaluate(where, pc)
        if value and not value.loaded and value.register in (rules.RSP, rules.RBP):
            return (rules.AT_RSP if value.register == rules.RSP else rules.AT_RBP), value.offset
    return (rules.LOST if where is None else rules.UNKNOWN), 0


def common_of(data: bytes) -> Common:
    """The common entry in these bytes, which begin behind its length. Raises one of UNREADABLE."""
    end = data.index(b"\0", 5)
    letters = data[5:end]
    code_factor, at = uleb(data, end + 1)
    data_factor, at = sleb(data, at)
    return_column, at = data[at], at + 1
    size, at = uleb(data, at)
    at += size
    # P and L have operands, which stand before that of R; S and B have none
    if any(data[:4]) or data[4] != 1 or not re.fullmatch(b"zP?L?R[SB]*", letters) or data[at - 1] != _PLACE_RELATIVE:
        raise ValueError("no common information entry, or of another form")
    return Common(code_factor, data_factor, return_column, b"S" in letters, data[at:])


class UnwindFile:
    """The unwinding information of one ELF file. Addresses are the file's own (p_vaddr).

    read: gives bytes of the file. Raises ValueError: it is no 64-bit ELF file for x86-64, or contradicts itself.
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
        head = self._read(header.offset, 12)
        (count,) = struct.unpack_from("<I", head, 8)
        if head[:4] != _HEADER or count > MOST_ENTRIES:
            return
        rows = self._read(header.offset + 12, 8 * count)
        table: NDArray[np.int32] = np.frombuffer(rows[: len(rows) // 8 * 8], "<i4").reshape(-1, 2)
        self._starts, self._entries = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])
        self._base = header.address

    def rule(self, address: int) -> Rule | None:
        """The rule at an address; None where nothing describes it, or what describes it cannot be read."""
        with suppress(*UNREADABLE):
            frames = self._covering(address)
            if frames is not None:
                return rule_at(frames, address)
            return rules.END if self.elf.entry <= address < self.elf.entry + _ENTRY_BYTES else None
        return None

    def first_rule(self, address: int) -> Rule | None:
        """The rule at the begin of what an address is in: a function, or the part of one that is rarely run."""
        with suppress(*UNREADABLE):
            frames = self._covering(address)
            return None if frames is None else rule_at(frames, frames.start)
        return None

    def _covering(self, address: int) -> Frames | None:
        distance = address - self._base
        if not len(self._starts) or not -(1 << 31) <= distance < 1 << 31:
            return None
        row = int(np.searchsorted(self._starts, np.int32(distance), side="right")) - 1
        if row < 0:
            return None
        entry = self._base + int(self._entries[row]) & _MASK
        if entry not in self._frames:
            if len(self._frames) >= MOST_CACHED:
                self._frames.clear()
            self._frames[entry] = self._description(entry)
        frames = self._frames[entry]
        return frames if frames.start <= address < frames.end else None

    def _description(self, entry: int) -> Frames:
        """The frame description entry at an address. Raises one of UNREADABLE."""
        data = self._bytes(entry)
        back, start, size = struct.unpack_from("<IiI", data)
        start += entry + 8 & _MASK
        common = entry + 4 - back
        if common not in self._commons:
            if len(self._commons) >= MOST_CACHED:
                self._commons.clear()
            self._commons[common] = common_of(self._bytes(common))
        length, at = uleb(data, 12)
        return Frames(start, start + size, self._commons[common], data[at + length :])

    def _bytes(self, entry: int) -> bytes:
        """The bytes of an entry behind its length. Raises one of UNREADABLE."""
        offset = self.elf.offset_of(entry)
        data = self._read(offset, _AT_ONCE)
        (size,) = struct.unpack_from("<I", data)
        if size + 4 > len(data) and size < MOST_BYTES:
            data = self._read(offset, size + 4)
        if size + 4 > len(data):
            raise ValueError("the entry is too long, or goes past the end of the file")
        return data[4 : size + 4]
