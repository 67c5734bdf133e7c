# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Identifies a code object of 3.11, which has no number of its own, by what it consists of."""

from __future__ import annotations

from wstrace_plugins.os.linux.cpython.layouts import Layout
from wstrace_plugins.os.linux.cpython.objects import ASCII_BIT, KIND_MASK, KIND_SHIFT
from wstrace_plugins.page_faults.linux.python_stacks.assembler import R0, R1, R2, R3, R4, R5, R8, WORD
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import Walk, push
from wstrace_plugins.page_faults.linux.python_stacks.protocol import S

_BLOCK = 256
#: bytes of a line table that are read together with its length: most have no more
_FIRST = 240


def content(a: Walk, o: Layout, again: str) -> None:
    """Hashes what a code object of 3.11, which has no number of its own, consists of; ends the step.

    That is length and bytes of its line table (R3), its qualified name and its file's name; CPython keeps the hash of a
    string's characters, which stands for them where it has been computed. A part that is left goes on at `content`.
    """
    a.store(R8, S.AT, R3)
    a.read(S.HEADED, 16 + _FIRST, R3, 16)
    a.jump_if(R0, "!=", 0, "table alone")
    a.load(R1, R8, S.HEADED)
    a.load(R2, R8, S.AT)
    a.store(R8, S.SIZE, R1)
    _part(a, 0, 32)
    a.jump_if(R1, ">", _FIRST, "content")
    a.mov(R3, R8)
    a.op("add", R3, R1)
    for word in range(0, 32, 8):  # in place of what follows the table
        a.store(R3, S.BLOCK + word, 0)
    a.jump("in block")
    a.label("table alone")  # what follows it cannot be read
    a.load(R3, R8, S.AT)
    a.read(S.HEADED, 8, R3, 16)
    a.jump_if(R0, "!=", 0, "torn")
    a.load(R1, R8, S.HEADED)
    a.load(R2, R8, S.AT)
    _part(a, 0, 32)
    a.label("content")
    a.load(R2, R8, S.LEFT)
    a.jump_if(R2, "==", 0, "part")
    a.jump_if(R2, "<=", _BLOCK, "block")
    a.mov(R2, _BLOCK)
    a.label("block")
    a.store(R8, S.SIZE, R2)
    a.mov(R1, R2)
    a.op("and", R1, _BLOCK | _BLOCK - 32)
    a.op("add", R1, R8)
    for word in range(0, 32, 8):
        a.store(R1, S.BLOCK + word, 0)
    a.load(R3, R8, S.AT)
    a.read(S.BLOCK, None, R3)
    a.jump_if(R0, "!=", 0, "torn")
    a.label("in block")
    lanes = (R0, R3, R4, R5)  # four independent sums: a multiplication takes three cycles
    for lane in lanes:
        a.mov(lane, 0)
    a.load64(R2, a.maps.multiplier)
    for begin in range(0, _BLOCK, 32):
        a.load(R1, R8, S.SIZE)
        a.jump_if(R1, "<=", begin, "hashed")
        for word, lane in enumerate(lanes):
            a.op("mul", lane, R2)
            a.load(R1, R8, S.BLOCK + begin + 8 * word)
            a.op("add", lane, R1)
    a.label("hashed")
    for lane in lanes[1:]:
        a.op("mul", R0, R2)
        a.op("add", R0, lane)
    a.mov(R4, R2)
    a.load(R1, R8, S.ID)
    a.mix(R1, R0)
    a.store(R8, S.ID, R1)
    a.load(R2, R8, S.SIZE)
    for place, operation in ((S.AT, "add"), (S.LEFT, "sub")):
        a.load(R1, R8, place)
        a.op(operation, R1, R2)
        a.store(R8, place, R1)
    a.jump_if(R1, "!=", 0, again)
    a.label("part")
    a.load(R1, R8, S.PART)
    a.jump_if(R1, ">=", 2, "identified")
    a.jump_if(R1, ">=", 1, "string 1")
    for i in range(2):
        a.label(f"string {i}")
        a.load(R3, R8, S.STRINGS + 8 * i)
        if i == 1:  # most frames have the file of the frame before
            a.load(R1, R8, S.FILE)
            a.load(R2, R8, S.FILE_HASH)
            a.jump_if(R1, "==", R3, "same file")
        a.read(S.WORDS, 24, R3, 16)  # length, hash, state
        a.jump_if(R0, "!=", 0, "torn")
        a.load(R1, R8, S.WORDS + 8)
        a.jump_if(R1, "!=", -1, f"kept {i}")
        a.load(R1, R8, S.WORDS)
        a.load(R2, R8, S.STRINGS + 8 * i)
        a.load(R3, R8, S.WORDS + 16, WORD)
        a.jump_if(R3, "&", 1 << ASCII_BIT, f"ascii {i}")
        a.op("rsh", R3, KIND_SHIFT)
        a.op("and", R3, KIND_MASK)
        a.op("mul", R1, R3)
        a.op("add", R2, o.compact - o.ascii)
        a.label(f"ascii {i}")
        _part(a, i + 1, o.ascii)
        a.jump(again)
        a.label(f"kept {i}")
        if i == 1:
            a.store(R8, S.FILE_HASH, R1)
            a.load(R2, R8, S.STRINGS + 8)
            a.store(R8, S.FILE, R2)
            a.jump("mix file")
            a.label("same file")
            a.mov(R1, R2)
            a.label("mix file")
        a.load64(R4, a.maps.multiplier)
        a.load(R3, R8, S.ID)
        a.mix(R3, R1)
        a.store(R8, S.ID, R3)
    a.label("identified")
    a.store(R8, S.STAGE, 0)
    a.load64(R4, a.maps.multiplier)
    a.load(R1, R8, S.ID)
    a.mov(R0, 0)
    push(a, again)


def _part(a: Walk, part: int, begin: int) -> None:
    """The next steps hash R1 bytes at R2 + begin."""
    a.store(R8, S.PART, part)
    a.store(R8, S.STAGE, 1)
    a.store(R8, S.LEFT, R1)
    a.op("add", R2, begin)
    a.store(R8, S.AT, R2)
    a.load64(R4, a.maps.multiplier)
    a.load(R3, R8, S.ID)
    a.mix(R3, R1)
    a.store(R8, S.ID, R3)
