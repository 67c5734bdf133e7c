# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The program for a CPython version: walks the frames of the thread and tells of them."""

from __future__ import annotations

from wstrace_plugins.os.linux.cpython.layouts import Layout
from wstrace_plugins.os.linux.cpython.objects import ASCII_BIT, KIND_MASK, KIND_SHIFT
from wstrace_plugins.page_faults.linux.python_stacks.assembler import (
    BYTE,
    FP,
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    WORD,
    Code,
)
from wstrace_plugins.page_faults.linux.python_stacks.maps import Maps
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import (
    KEY,
    NO_WAKEUP,
    READ_USER,
    RING_OUTPUT,
    VALUE,
    Walk,
    push,
)
from wstrace_plugins.page_faults.linux.python_stacks.programs.thread import thread
from wstrace_plugins.page_faults.linux.python_stacks.protocol import (
    BAD,
    CODE_HEAD,
    DEPTH,
    EMPTY,
    FILE_ROOM,
    FRAME,
    FRAME_WINDOW,
    HEAD,
    LINES_ROOM,
    NAME_ROOM,
    NO_THREAD,
    OK,
    RECORD_CODE,
    RECORD_STACK,
    STATUS_BITS,
    TRUNCATED,
    UNBORN,
    S,
)

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


#: steps of a walk: one for a frame, and one for each part of its content that is hashed
_STEPS = 4 * DEPTH
_PAGE = 4096


def walker(maps: Maps, o: Layout) -> Code:
    """The program for the processes that run a CPython of that layout.

    Args:
        maps: of the trace.
        o: where the CPython keeps what is read.
    """
    a = Walk(maps)
    a.mov(R6, R1)
    a.scratch("leave")
    a.store(R8, S.STATUS, OK)
    a.store(R8, S.FRAMES, 0)
    a.store(R8, S.STAGE, 0)
    a.load64(R4, maps.multiplier)
    a.load(R1, R8, S.PROCESS)
    a.load(R2, R8, S.IDS + 4, WORD)
    a.mix(R1, R2)
    a.store(R8, S.SALT, R1)
    a.store(R8, S.HASH, R1)
    thread(a, o)
    a.store(R8, S.NEXT, R7)
    for place in (S.STEPS, S.CODE, S.FILE):
        a.store(R8, place, 0)
    a.store(R8, S.WINDOW_AT, -1)
    a.repeat(_STEPS + 1, lambda again: _step(a, o, again))
    a.jump("walked")
    for label, status in (("bad", BAD), ("no thread", NO_THREAD), ("empty", EMPTY), ("unborn", UNBORN)):
        a.label(label)
        a.store(R8, S.STATUS, status)
        a.jump("walked")
    a.label("walked")
    # -- the hash: the status stands in its low bits; without frames it is nothing but the status
    a.load(R2, R8, S.STATUS)
    a.load(R1, R8, S.FRAMES)
    a.jump_if(R1, "!=", 0, "frames")
    a.jump_if(R2, "!=", OK, "no frames")
    a.mov(R2, EMPTY)
    a.label("no frames")
    a.store(R8, S.HASH, R2)
    a.jump("row")
    a.label("frames")
    a.load(R1, R8, S.HASH)
    a.op("and", R1, -1 << STATUS_BITS)
    a.op("or", R1, R2)
    a.store(R8, S.HASH, R1)
    a.load(R2, R8, S.SEEN)
    a.jump_if(R1, "==", R2, "row")
    a.store(FP, KEY, R1)
    a.lookup(maps.seen.fd, "new")
    a.load(R1, R8, S.HASH)
    a.store(R8, S.SEEN, R1)
    a.jump("row")
    a.label("new")
    tell_stack(a, o)
    a.label("row")
    a.tell()
    a.leave()
    return a.assemble()


def _step(a: Walk, o: Layout, again: str) -> None:
    """One step of a walk: reads a frame, or hashes the next part of the content of its code object (3.11).

    Goes on at again for the next step; behind its end the walk has ended.
    """
    a.load(R1, R8, S.STEPS)
    a.op("add", R1, 1)
    a.store(R8, S.STEPS, R1)
    a.jump_if(R1, ">", _STEPS, "cut")
    if o.code_version is None:
        a.load(R1, R8, S.STAGE)
        a.jump_if(R1, "!=", 0, "content")
    a.load(R7, R8, S.NEXT)
    a.jump_if(R7, "==", 0, "end")
    a.load(R1, R8, S.FRAMES)
    a.jump_if(R1, ">=", DEPTH, "cut")
    members = (o.frame_code, o.frame_previous, o.frame_instr, o.frame_owner)
    low = min(members) & ~7
    size = (max(members) & ~7) + 8 - low
    _frame(a, low, size)
    a.load(R1, R7, S.WINDOW + o.frame_previous - low)
    a.store(R8, S.NEXT, R1)
    if o.owner_skip <= 255:
        a.load(R1, R7, S.WINDOW + o.frame_owner - low, BYTE)
        a.jump_if(R1, ">=", o.owner_skip, again)
    a.load(R3, R7, S.WINDOW + o.frame_code - low)
    if o.tag_bits:
        a.op("and", R3, ~o.tag_bits)
    a.load(R1, R7, S.WINDOW + o.frame_instr - low)
    a.op("sub", R1, R3)
    a.store(R8, S.OFFSET, R1)
    a.load(R1, R8, S.CODE)
    a.jump_if(R1, "==", R3, "same code")  # that of the frame before, which was checked
    a.store(R8, S.CODE, R3)
    low = o.code_firstlineno & ~7
    a.read(S.WORDS, o.code_linetable + 8 - low, R3, low)
    a.jump_if(R0, "!=", 0, "torn")
    a.load64(R4, a.maps.multiplier)
    a.load(R1, R8, S.SALT)
    a.load(R2, R8, S.CODE)
    a.mix(R1, R2)
    a.load(R2, R8, S.WORDS + o.code_firstlineno - low, WORD)
    if o.code_version is None:
        a.mix(R1, R2)
        a.store(R8, S.ID, R1)
        for i, member in enumerate((o.code_qualname, o.code_filename)):
            a.load(R2, R8, S.WORDS + member - low)
            a.store(R8, S.STRINGS + 8 * i, R2)
        a.load(R3, R8, S.WORDS + o.code_linetable - low)
        content(a, o, again)
        a.label("same code")
        a.jump("identified")
        _ends(a)
        return
    a.load(R3, R8, S.WORDS + o.code_version - low, WORD)
    a.op("lsh", R3, 32)
    a.op("or", R2, R3)
    a.jump_if(R3, "==", 0, "torn")  # the numbers have come to an end: 2 ** 32 code objects were made before this one
    a.mix(R1, R2)
    a.store(R8, S.ID, R1)
    a.jump("push")
    a.label("same code")
    a.load64(R4, a.maps.multiplier)
    a.load(R1, R8, S.ID)
    a.label("push")
    push(a, again)
    _ends(a)


def _frame(a: Walk, low: int, size: int) -> None:
    """R7 + S.WINDOW = what was read of the frame R7, from its offset `low` on.

    A thread's frames stand one behind the other, but for those of generators: the callers' are read with it, as far as
    they are in its page. Beyond it there may be nothing to read.
    """
    before = FRAME_WINDOW - size
    a.load(R1, R8, S.WINDOW_AT)
    a.mov(R2, R7)
    a.op("sub", R2, R1)
    a.jump_if(R2, "<=", before, "in window")
    a.mov(R3, R7, low)
    a.mov(R2, R3)
    a.op("and", R2, _PAGE - 1)
    a.jump_if(R2, "<=", before, "in page")
    a.mov(R2, before)
    a.label("in page")
    a.op("sub", R3, R2)
    a.mov(R1, R3, -low)
    a.store(R8, S.WINDOW_AT, R1)
    a.mov(R7, R8)
    a.op("add", R7, R2)
    a.read(S.WINDOW, FRAME_WINDOW, R3)
    a.jump_if(R0, "!=", 0, "torn")
    a.jump("frame")
    a.label("in window")
    a.mov(R7, R8)
    a.op("add", R7, R2)
    a.label("frame")


def _ends(a: Walk) -> None:
    """The ends of a walk other than its last frame."""
    a.label("cut")
    a.store(R8, S.STATUS, TRUNCATED)
    a.jump("end")
    a.label("torn")
    a.store(R8, S.STATUS, BAD)
    a.label("end")
