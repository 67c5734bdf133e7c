"""Runs the program of a frame description entry up to one program counter: the rule that holds there.

Source: DWARF 5, 6.4.2 Call Frame Instructions; Linux Standard Base 5.0, 10.6 (`.eh_frame`).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from wstrace_plugins.stacks import rules
from wstrace_plugins.stacks.dwarf import evaluate, sleb, uleb
from wstrace_plugins.stacks.rules import Rule

#: registers beyond these (vectors, flags) are never asked for
_MOST_REGISTERS = 32
_MOST_REMEMBERED = 64


class Common(NamedTuple):
    """A common information entry: what its frame description entries share."""

    code_factor: int
    data_factor: int
    return_column: int
    encoding: int
    signal: bool
    augmented: bool
    program: bytes


class Frames(NamedTuple):
    """A frame description entry: the code [start, end) that its program describes."""

    start: int
    end: int
    common: Common
    program: bytes


class Where(NamedTuple):
    """Where a register of the caller is: an operation of the program with its operand."""

    kind: str
    offset: int = 0
    expression: bytes = b""


class _State:
    def __init__(self) -> None:
        self.cfa: Where | None = None  # kind "sum" (register, offset) or "expression"
        self.cfa_register = 0
        self.registers: dict[int, Where] = {}

    def put(self, register: int, where: Where) -> None:
        if register < _MOST_REGISTERS:
            self.registers[register] = where

    def copy(self) -> _State:
        made = _State()
        made.cfa, made.cfa_register, made.registers = self.cfa, self.cfa_register, dict(self.registers)
        return made


def rule_at(frames: Frames, pc: int) -> Rule:
    """The rule at a program counter within [start, end); NO_RULE where the program says what no rule can.

    Raises:
        IndexError, struct.error, KeyError: the program contradicts itself.
    """
    state = _State()
    common = frames.common
    if _run(common.program, frames.start, common, state, None, pc) is None:
        return rules.NO_RULE
    initial = state.copy()
    if _run(frames.program, frames.start, common, state, initial, pc) is None:
        return rules.NO_RULE
    return _flat(state, common, pc)


def _run(data: bytes, location: int, common: Common, state: _State, initial: _State | None, pc: int) -> int | None:
    """Runs instructions until they pass pc; gives the location, None where one is not known."""
    remembered: list[_State] = []
    at = 0
    while at < len(data):
        code, low = data[at] & 0xC0, data[at] & 0x3F
        at += 1
        if code == 0x40:  # DW_CFA_advance_loc
            location += low * common.code_factor
        elif code == 0x80:  # DW_CFA_offset
            number, at = uleb(data, at)
            state.put(low, Where("offset", number * common.data_factor))
        elif code == 0xC0:  # DW_CFA_restore
            _restore(state, initial, low)
        elif low in (1, 2, 3, 4):  # DW_CFA_set_loc, DW_CFA_advance_loc1, 2, 4
            layout = {1: "<Q", 2: "<B", 3: "<H", 4: "<I"}[low]
            (number,) = struct.unpack_from(layout, data, at)
            at += struct.calcsize(layout)
            location = number if low == 1 else location + number * common.code_factor
        elif low == 0x0A:  # DW_CFA_remember_state
            if len(remembered) == _MOST_REMEMBERED:
                return None
            remembered.append(state.copy())
        elif low == 0x0B:  # DW_CFA_restore_state
            old = remembered.pop()
            state.cfa, state.cfa_register, state.registers = old.cfa, old.cfa_register, old.registers
        elif low:
            after = _instruction(low, data, at, common, state, initial)
            if after is None:
                return None
            at = after
        if location > pc:
            break
    return location


def _restore(state: _State, initial: _State | None, register: int) -> None:
    if initial is not None and register in initial.registers:
        state.registers[register] = initial.registers[register]
    else:
        state.registers.pop(register, None)


def _instruction(code: int, data: bytes, at: int, common: Common, state: _State, initial: _State | None) -> int | None:
    """Applies one instruction with operands; gives the index behind it, None where it is not known."""
    if code in (0x0E, 0x13):  # DW_CFA_def_cfa_offset, _sf
        number, at = uleb(data, at) if code == 0x0E else sleb(data, at)
        factor = 1 if code == 0x0E else common.data_factor
        state.cfa = Where("sum", number * factor) if state.cfa and state.cfa.kind == "sum" else None
        return at
    if code == 0x0F:  # DW_CFA_def_cfa_expression
        expression, at = _block(data, at)
        state.cfa = Where("expression", 0, expression)
        return at
    if code == 0x2E:  # DW_CFA_GNU_args_size
        return uleb(data, at)[1]
    register, at = uleb(data, at)
    if code in (0x0C, 0x12):  # DW_CFA_def_cfa, _sf
        number, at = uleb(data, at) if code == 0x0C else sleb(data, at)
        state.cfa = Where("sum", number if code == 0x0C else number * common.data_factor)
        state.cfa_register = register
    elif code == 0x0D:  # DW_CFA_def_cfa_register
        state.cfa_register = register
    elif code in (0x05, 0x11):  # DW_CFA_offset_extended, _sf
        number, at = uleb(data, at) if code == 0x05 else sleb(data, at)
        state.put(register, Where("offset", number * common.data_factor))
    elif code == 0x06:  # DW_CFA_restore_extended
        _restore(state, initial, register)
    elif code == 0x07:  # DW_CFA_undefined
        state.put(register, Where("undefined"))
    elif code == 0x08:  # DW_CFA_same_value
        state.registers.pop(register, None)
    elif code in (0x09, 0x14, 0x15):  # DW_CFA_register, DW_CFA_val_offset, _sf: no compiler makes them on x86-64
        _, at = (sleb if code == 0x15 else uleb)(data, at)
        state.put(register, Where("other"))
    elif code in (0x10, 0x16):  # DW_CFA_expression, DW_CFA_val_expression
        expression, at = _block(data, at)
        state.put(register, Where("expression" if code == 0x10 else "other", 0, expression))
    else:
        return None
    return at


def _block(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = uleb(data, at)
    if at + size > len(data):
        raise IndexError("an expression goes past the end of its entry")
    return data[at : at + size], at + size


def _flat(state: _State, common: Common, pc: int) -> Rule:
    flags = rules.SIGNAL if common.signal else 0
    if (found := state.registers.get(common.return_column)) is not None and found.kind == "undefined":
        return (*rules.END[: rules.FLAGS], flags, *rules.END[rules.FIRST_SAVED :])
    if state.cfa is None:
        return rules.NO_RULE
    if state.cfa.kind == "sum":
        cfa = (rules.CFA_SUM, state.cfa_register, state.cfa.offset)
    else:
        value = evaluate(state.cfa.expression, pc, common.return_column)
        if value is None or value.register is None or value.added:
            return rules.NO_RULE
        cfa = (rules.CFA_LOADED if value.loaded else rules.CFA_SUM, value.register, value.offset)
    kind, offset = _place(state, common.return_column, common, pc)
    if kind == rules.SAME:  # it is in no register on x86-64
        kind = rules.UNKNOWN
    saved = [number for register in rules.SAVED for number in _place(state, register, common, pc)]
    row = (*cfa, kind, offset, *_place(state, rules.RBP, common, pc), flags, *saved)
    return row if all(-(1 << 62) < number < 1 << 62 for number in row) else rules.NO_RULE


def _place(state: _State, register: int, common: Common, pc: int) -> tuple[int, int]:
    where = state.registers.get(register)
    if where is None:
        return rules.SAME, 0
    if where.kind == "offset":
        return rules.AT_CFA, where.offset
    if where.kind == "undefined":
        return rules.LOST, 0
    if where.kind == "expression":
        value = evaluate(where.expression, pc, common.return_column)
        if value is not None and not value.loaded and value.register in (rules.RSP, rules.RBP):
            return (rules.AT_RSP if value.register == rules.RSP else rules.AT_RBP), value.offset
    return rules.UNKNOWN, 0
