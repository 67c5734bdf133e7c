"""An assembler of eBPF instructions.

Source: Documentation/bpf/standardization/instruction-set.rst, include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

#: sizes of a load or store
BYTE, WORD, DOUBLE = 0x10, 0x00, 0x18
_ALU64, _JUMP, _LDX, _ST, _STX = 0x07, 0x05, 0x61, 0x62, 0x63
_ALU = {"add": 0x00, "sub": 0x10, "mul": 0x20, "or": 0x40, "and": 0x50, "lsh": 0x60, "rsh": 0x70, "xor": 0xA0,
        "mov": 0xB0}  # fmt: skip
_CONDITIONS = {"==": 0x10, ">": 0x20, ">=": 0x30, "&": 0x40, "!=": 0x50, "<": 0xA0, "<=": 0xB0}
_REGISTER = 8  # the source operand is a register
_CALL, _EXIT, _JUMP_ALWAYS, _LOAD_64 = 0x85, 0x95, 0x05, 0x18
_MAP_FD, _FUNCTION = 1, 4
_ONE = struct.Struct("<BBhi")


class Code(NamedTuple):
    """Instructions, 8 bytes each; functions: where the program and the functions that it hands to helpers begin."""

    instructions: bytes
    functions: tuple[int, ...]


class Register(int):
    """A register, which is no number."""


R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, FP = (Register(i) for i in range(11))


class Assembler:
    """Instructions in order. Operands are a Register, or an int: a constant of 32 bits with sign."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int]] = []
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []
        self._functions: list[tuple[int, str]] = []
        self._names = 0

    def name(self, stem: str) -> str:
        """A label that nothing else has."""
        self._names += 1
        return f"{stem}#{self._names}"

    def _add(self, code: int, target: int = 0, source: int = 0, offset: int = 0, constant: int = 0) -> None:
        self._code.append((code, target | source << 4, offset, constant - (1 << 32) * (constant >= 1 << 31)))

    def op(self, operation: str, target: Register, operand: int) -> None:
        """target = target OPERATION operand, in 64 bits; `mov` sets it."""
        if isinstance(operand, Register):
            self._add(_ALU[operation] | _REGISTER | _ALU64, target, operand)
        elif -(1 << 31) <= operand < 1 << 31:
            self._add(_ALU[operation] | _ALU64, target, 0, 0, operand)
        else:
            raise ValueError(f"{operand:#x} is no constant of 32 bits: load64() takes it")

    def mov(self, target: Register, operand: int, plus: int = 0) -> None:
        """target = operand + plus."""
        self.op("mov", target, operand)
        if plus:
            self.op("add", target, plus)

    def load64(self, target: Register, value: int) -> None:
        """target = value, a constant of 64 bits."""
        self._load64(target, value)

    def _load64(self, target: Register, value: int, source: int = 0) -> None:
        self._add(_LOAD_64, target, source, 0, value & 0xFFFFFFFF)
        self._add(0, 0, 0, 0, value >> 32 & 0xFFFFFFFF)

    def map(self, target: Register, fd: int) -> None:
        """target = the map with that descriptor."""
        self._load64(target, fd, _MAP_FD)

    def load(self, target: Register, base: Register, offset: int = 0, size: int = DOUBLE) -> None:
        """target = memory at base + offset."""
        self._add(_LDX | size, target, base, offset)

    def store(self, base: Register, offset: int, value: int, size: int = DOUBLE) -> None:
        """Memory at base + offset = a register, or a constant with sign."""
        if isinstance(value, Register):
            self._add(_STX | size, base, value, offset)
        else:
            self._add(_ST | size, base, 0, offset, value)

    def label(self, name: str) -> None:
        """Jumps to that name lead here."""
        assert name not in self._labels, name
        self._labels[name] = len(self._code)

    def jump(self, label: str) -> None:
        """Goes on at a label."""
        self._jumps.append((len(self._code), label))
        self._add(_JUMP_ALWAYS)

    def jump_if(self, left: Register, condition: str, right: int, label: str) -> None:
        """Goes on at a label if left CONDITION right, without sign."""
        self._jumps.append((len(self._code), label))
        if isinstance(right, Register):
            self._add(_CONDITIONS[condition] | _REGISTER | _JUMP, left, right)
        else:
            self._add(_CONDITIONS[condition] | _JUMP, left, 0, 0, right)

    def call(self, helper: int) -> None:
        """Calls a helper: R0 = helper(R1 ... R5); R1 to R5 are lost."""
        self._add(_CALL, 0, 0, 0, helper)

    def function(self, target: Register, label: str) -> None:
        """target = the function that begins at a label, for a helper that calls it back."""
        self._functions.append((len(self._code), label))
        self._load64(target, 0, _FUNCTION)

    def exit(self) -> None:
        """Ends the program with R0."""
        self._add(_EXIT)

    def assemble(self) -> Code:
        """The program."""
        code = list(self._code)
        for at, label in self._jumps:
            operation, registers, _, constant = code[at]
            code[at] = (operation, registers, self._labels[label] - at - 1, constant)
        for at, label in self._functions:
            operation, registers, offset, _ = code[at]
            code[at] = (operation, registers, offset, self._labels[label] - at - 1)
        begins = {self._labels[label] for _, label in self._functions}
        return Code(b"".join(_ONE.pack(*one) for one in code), (0, *sorted(begins)))
