# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Tells of a new stack and of its new code objects, in the ring buffer."""

from __future__ import annotations

from wstrace_plugins.os.linux.cpython.layouts import Layout
from wstrace_plugins.os.linux.cpython.objects import ASCII_BIT, KIND_MASK, KIND_SHIFT
from wstrace_plugins.page_faults.linux.python_stacks.assembler import FP, R0, R1, R2, R3, R4, R7, R8, WORD
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import (
    KEY,
    NO_WAKEUP,
    READ_USER,
    RING_OUTPUT,
    VALUE,
    Walk,
)
from wstrace_plugins.page_faults.linux.python_stacks.protocol import (
    CODE_HEAD,
    DEPTH,
    FILE_ROOM,
    FRAME,
    HEAD,
    LINES_ROOM,
    NAME_ROOM,
    RECORD_CODE,
    RECORD_STACK,
    S,
)


def tell_stack(a: Walk, o: Layout) -> None:
    """The stack in the scratch memory is new: its code objects and it go into the ring buffer, or are counted as lost.

    Only a stack that was told as a whole is `seen`: another fault tries again.
    """
    a.store(R8, S.STEPS, 0)
    a.store(R8, S.ENDED, 0)
    a.repeat(DEPTH + 1, lambda again: _code(a, o, again))
    a.load(R1, R8, S.ENDED)
    a.jump_if(R1, "==", 0, "row")
    a.store(R8, S.RECORD, RECORD_STACK, WORD)
    a.load(R1, R8, S.IDS + 4, WORD)
    a.store(R8, S.RECORD + 4, R1, WORD)
    a.load(R1, R8, S.HASH)
    a.store(R8, S.RECORD + 8, R1)
    a.load(R3, R8, S.FRAMES)
    a.store(R8, S.RECORD + 16, R3)
    a.jump_if(R3, ">", DEPTH, "row")
    a.op("mul", R3, FRAME)
    a.op("add", R3, HEAD)
    a.map(R1, a.maps.records.fd)
    a.mov(R2, R8, S.RECORD)
    a.mov(R4, NO_WAKEUP)
    a.call(RING_OUTPUT)
    a.jump_if(R0, "!=", 0, "lost")
    a.load(R1, R8, S.HASH)
    a.store(FP, KEY, R1)
    a.store(FP, VALUE, 1)
    a.update(a.maps.seen.fd)
    a.jump("row")
    a.label("lost")
    a.count(S.RECORDS_LOST)


def _code(a: Walk, o: Layout, again: str) -> None:
    """Tells of the code object of the next frame, S.STEPS, if it is new; sets S.ENDED behind the last frame."""
    a.store(FP, KEY, 0)
    a.lookup(a.maps.code.fd, "stop")
    a.mov(R7, R0)
    a.load(R3, R8, S.STEPS)
    a.load(R1, R8, S.FRAMES)
    a.jump_if(R3, ">=", R1, "all")
    a.jump_if(R3, ">=", DEPTH, "all")
    a.mov(R1, R3)
    a.op("add", R1, 1)
    a.store(R8, S.STEPS, R1)
    a.op("mul", R3, FRAME)
    a.op("add", R3, R8)
    a.load(R1, R3, S.RECORD + HEAD)
    a.load(R2, R3, S.RECORD + HEAD + 16)
    a.store(R8, S.CODE, R2)
    a.store(R7, 8, R1)
    a.store(FP, KEY, R1)
    a.lookup(a.maps.codes.fd, "new code")
    a.jump(again)
    a.label("new code")
    a.store(R7, 0, RECORD_CODE | o.code_adaptive << 8, WORD)
    a.load(R1, R8, S.IDS + 4, WORD)
    a.store(R7, 4, R1, WORD)
    a.load(R3, R8, S.CODE)
    low = o.code_firstlineno & ~7
    a.read(S.WORDS, o.code_linetable + 8 - low, R3, low)
    a.jump_if(R0, "!=", 0, "unreadable")
    a.load(R1, R8, S.WORDS + o.code_firstlineno - low, WORD)
    a.store(R7, 16, R1, WORD)
    for i, member in enumerate((o.code_qualname, o.code_filename, o.code_linetable)):
        a.load(R1, R8, S.WORDS + member - low)
        a.store(R8, (S.STRINGS, S.STRINGS + 8, S.AT)[i], R1)
    for i, (room, place) in enumerate(((NAME_ROOM, CODE_HEAD), (FILE_ROOM, CODE_HEAD + NAME_ROOM))):
        a.load(R3, R8, S.STRINGS + 8 * i)
        a.read(S.WORDS, 24, R3, 16)
        a.jump_if(R0, "!=", 0, "unreadable")
        a.load(R2, R8, S.WORDS)
        a.load(R1, R8, S.WORDS + 16, WORD)
        a.store(R7, 24 + 8 * i, R1, WORD)
        a.store(R7, 28 + 8 * i, R2, WORD)
        a.load(R3, R8, S.STRINGS + 8 * i)
        short, narrow, nothing = (a.name(stem) for stem in ("short", "ascii", "nothing"))
        a.jump_if(R1, "&", 1 << ASCII_BIT, narrow)
        a.op("add", R3, o.compact - o.ascii)
        a.op("rsh", R1, KIND_SHIFT)
        a.op("and", R1, KIND_MASK)
        a.op("mul", R2, R1)
        a.label(narrow)
        a.op("add", R3, o.ascii)
        a.jump_if(R2, "<=", room, short)
        a.mov(R2, room)
        a.label(short)
        a.jump_if(R2, "==", 0, nothing)
        a.mov(R1, R7, place)
        a.call(READ_USER)
        a.jump_if(R0, "!=", 0, "unreadable")
        a.label(nothing)
    a.load(R3, R8, S.AT)
    a.read(S.WORDS, 8, R3, 16)
    a.jump_if(R0, "!=", 0, "unreadable")
    a.load(R2, R8, S.WORDS)
    a.store(R7, 20, R2, WORD)
    a.jump_if(R2, "<=", LINES_ROOM, "whole table")
    a.mov(R2, LINES_ROOM)
    a.label("whole table")
    a.store(R8, S.SIZE, R2)
    a.load(R3, R8, S.AT)
    a.op("add", R3, 32)
    a.mov(R1, R7, CODE_HEAD + NAME_ROOM + FILE_ROOM)
    a.call(READ_USER)
    a.jump_if(R0, "!=", 0, "unreadable")
    a.load(R3, R8, S.SIZE)
    a.jump_if(R3, ">", LINES_ROOM, "unreadable")
    a.op("add", R3, CODE_HEAD + NAME_ROOM + FILE_ROOM)
    a.map(R1, a.maps.records.fd)
    a.mov(R2, R7)
    a.mov(R4, NO_WAKEUP)
    a.call(RING_OUTPUT)
    a.jump_if(R0, "!=", 0, "no room")
    a.store(FP, VALUE, 1)
    a.update(a.maps.codes.fd)
    a.jump(again)
    a.label("unreadable")
    a.count(S.UNREADABLE)
    a.jump(again)
    a.label("no room")
    a.count(S.RECORDS_LOST)
    a.jump("stop")
    a.label("all")
    a.store(R8, S.ENDED, 1)
    a.label("stop")
