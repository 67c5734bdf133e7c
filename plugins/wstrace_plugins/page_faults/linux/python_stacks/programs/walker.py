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
    R9,
    WORD,
    Code,
    Register,
)
from wstrace_plugins.page_faults.linux.python_stacks.maps import Maps
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import (
    KEY,
    NO_WAKEUP,
    READ_USER,
    RING_OUTPUT,
    VALUE,
    Walk,
)
from wstrace_plugins.page_faults.linux.python_stacks.programs.thread import thread
from wstrace_plugins.page_faults.linux.python_stacks.protocol import (
    BAD,
    BLOCK_ROOM,
    CODE_HEAD,
    DEPTH,
    EMPTY,
    FILE_ROOM,
    FRAME,
    HEAD,
    LINES_ROOM,
    NAME_ROOM,
    NO_THREAD,
    OK,
    RECORD_CODE,
    RECORD_STACK,
    SLOT,
    SLOT_BITS,
    STATUS_BITS,
    TRUNCATED,
    UNBORN,
    UNCHECKED,
    S,
)

#: bytes of a line table and of a name that are read together with their lengths: most have no more
_TABLE, _NAME = 2000, 208
#: bytes that are hashed in a turn, and turns that a walk has for the content of all its code objects
_TURN, _TURNS = 256, 4096
#: 2 ** 64 divided by the golden ratio: the high bits of a product with it are a hash
_GOLDEN = 0x9E3779B97F4A7C15


def _content(a: Walk, o: Layout) -> None:
    """Mixes what a code object of 3.11, which has no number of its own, consists of into S.ID.

    That is its line table, its qualified name and its file's name. CPython keeps the hash of the bytes of each, which
    stands for them where it was computed.
    """
    for place, first, begin in ((S.AT, _TABLE, 32), (S.STRINGS, _NAME, o.ascii), (S.STRINGS + 8, _NAME, o.ascii)):
        there, whole, known, kept, narrow = (a.name(stem) for stem in ("there", "whole", "known", "kept", "ascii"))
        a.load(R3, R8, place)
        if place == S.STRINGS + 8:  # most code objects have the file of the one before
            a.load(R1, R8, S.FILE)
            a.load(R0, R8, S.FILE_HASH)
            a.jump_if(R1, "==", R3, kept)
            a.store(R8, S.FILE, R3)
        head = S.BLOCK + 16 - begin  # length, hash, and the state of a string
        a.mov(R7, first)
        a.read(head, begin - 16 + first, R3, 16)
        a.jump_if(R0, "==", 0, there)
        a.mov(R7, 0)  # what follows cannot be read
        a.load(R3, R8, place)
        a.read(head, 24, R3, 16)
        a.jump_if(R0, "!=", 0, "torn")
        a.label(there)
        a.load(R0, R8, head + 8)
        a.jump_if(R0, "!=", -1, known)
        a.load(R1, R8, head)
        a.load(R2, R8, place)
        if place != S.AT:
            a.load(R3, R8, head + 16, WORD)
            a.jump_if(R3, "&", 1 << ASCII_BIT, narrow)
            a.op("rsh", R3, KIND_SHIFT)
            a.op("and", R3, KIND_MASK)
            a.op("mul", R1, R3)
            a.op("add", R2, o.compact - o.ascii)
            a.mov(R7, 0)
            a.label(narrow)
        a.op("add", R2, begin)
        a.store(R8, S.AT, R2)
        a.store(R8, S.LEFT, R1)
        a.store(R8, S.SUMS, R1)
        for lane in (8, 16, 24):
            a.store(R8, S.SUMS + lane, 0)
        a.store(R8, S.HERE, 1)
        a.jump_if(R1, "<=", R7, whole)
        a.store(R8, S.HERE, 0)
        a.label(whole)
        a.jump_if(R1, ">", _TURN * _TURNS, "cut")
        a.op("add", R1, _TURN - 1)
        a.op("rsh", R1, _TURN.bit_length() - 1)
        a.load(R2, R8, S.TURNS)
        a.jump_if(R1, ">", R2, "cut")
        a.op("sub", R2, R1)
        a.store(R8, S.TURNS, R2)
        a.loop("turn")
        a.load(R0, R8, S.TORN)
        a.jump_if(R0, "!=", 0, "torn")
        a.load64(R2, a.maps.multiplier)
        for lane in (0, 8, 16, 24):
            a.load(R3, R8, S.SUMS + lane)
            a.op("mul", R0, R2)
            a.op("add", R0, R3)
        a.label(known)
        if place == S.STRINGS + 8:
            a.store(R8, S.FILE_HASH, R0)
            a.label(kept)
        a.load64(R4, a.maps.multiplier)
        a.load(R1, R8, S.ID)
        a.mix(R1, R0)
        a.store(R8, S.ID, R1)


def _turn(a: Walk) -> None:
    """A turn of a loop that hashes S.LEFT bytes from S.AT on; the block at hand is read first, if it was not."""
    a.label("turn")
    a.load(R8, R2, 0)
    a.mov(R9, R1)
    a.op("mul", R9, _TURN)
    a.op("and", R9, BLOCK_ROOM - _TURN)
    a.jump_if(R9, "!=", 0, "in block")
    a.load(R1, R8, S.HERE)
    a.store(R8, S.HERE, 0)
    a.jump_if(R1, "!=", 0, "in block")
    a.load(R3, R8, S.AT)
    a.mov(R1, R3, BLOCK_ROOM)
    a.store(R8, S.AT, R1)
    a.load(R2, R8, S.LEFT)
    a.jump_if(R2, "<=", BLOCK_ROOM, "last block")
    a.mov(R2, BLOCK_ROOM)
    a.label("last block")
    a.read(S.BLOCK, None, R3)
    a.store(R8, S.TORN, R0)
    a.jump_if(R0, "!=", 0, "turned")
    a.label("in block")
    a.op("add", R9, R8)
    a.load(R7, R8, S.LEFT)
    a.mov(R1, R7)
    a.op("sub", R1, _TURN)
    a.store(R8, S.LEFT, R1)
    a.jump_if(R7, ">=", _TURN, "full")
    a.mov(R1, R9)
    a.op("add", R1, R7)
    for word in range(0, 32, 8):  # in place of what follows
        a.store(R1, S.BLOCK + word, 0)
    a.label("full")
    sums = (R0, R3, R4, R5)  # four independent sums: a multiplication takes three cycles
    for i, lane in enumerate(sums):
        a.load(lane, R8, S.SUMS + 8 * i)
    a.load64(R2, a.maps.multiplier)
    for begin in range(0, _TURN, 32):
        a.jump_if(R7, "<=", begin, "summed")
        for word, lane in enumerate(sums):
            a.op("mul", lane, R2)
            a.load(R1, R9, S.BLOCK + begin + 8 * word)
            a.op("add", lane, R1)
    a.label("summed")
    for i, lane in enumerate(sums):
        a.store(R8, S.SUMS + 8 * i, lane)
    a.mov(R0, 0)
    a.label("turned")
    a.op("and", R0, 1)
    a.exit()


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
    a.jump_if(R2, "==", 0, again)
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


#: steps of a walk: each reads a frame, and up to so many others that need no read
_STEPS, _FAST = 2 * DEPTH, 8
_PAGE = 4096


def walker(maps: Maps, o: Layout, static: tuple[int, int] = (0, 0)) -> Code:
    """The program for the processes that run a CPython of that layout.

    Args:
        maps: of the trace.
        o: where the CPython keeps what is read.
        static: where its file begins, from _PyRuntime on, and its bytes: objects in there are never freed.
    """
    a = Walk(maps)
    a.mov(R6, R1)
    a.scratch("leave")
    a.store(R8, S.STATUS, OK)
    a.store(R8, S.FRAMES, 0)
    a.load64(R4, maps.multiplier)
    a.load(R1, R8, S.PROCESS)
    a.load(R2, R8, S.IDS + 4, WORD)
    a.mix(R1, R2)
    a.store(R8, S.SALT, R1)
    a.store(R8, S.HASH, R1)
    thread(a, o)
    a.store(R8, S.NEXT, R7)
    for place in (S.STEPS, S.FILE, S.TORN, S.WINDOW_AT, S.LIMIT):  # as no frame is at 0, none is in this window
        a.store(R8, place, 0)
    a.store(R8, S.TURNS, _TURNS)
    a.count(S.WALK)
    a.repeat(_STEPS + 1, lambda again: _step(a, o, static, again))
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
    if o.code_version is None:
        _turn(a)
    return a.assemble()


def _step(a: Walk, o: Layout, static: tuple[int, int], again: str) -> None:
    """One step of a walk: reads a frame, and those before it that are in the same page and of code objects met before.

    The thread stands in its fault, and each of its frames holds a reference to its code object: within one walk, the
    same address is the same object, and is checked once. Goes on at again for the next step; behind its end the walk
    has ended.
    """
    a.load(R1, R8, S.STEPS)
    a.op("add", R1, 1)
    a.store(R8, S.STEPS, R1)
    a.jump_if(R1, ">", _STEPS, "cut")
    a.load(R7, R8, S.NEXT)
    a.jump_if(R7, "==", 0, "end")
    members = (o.frame_code, o.frame_previous, o.frame_instr, o.frame_owner)
    begin = min(members) & ~7
    _frame(a, begin, (max(members) & ~7) + 8 - begin)
    a.load(R1, R7, S.WINDOW + o.frame_previous - begin)
    a.store(R8, S.NEXT, R1)
    _code_of(a, o, R7, begin, again)
    a.store(R8, S.CODE, R3)
    a.store(R8, S.OFFSET, R0)
    _slot(a, R9, R3)
    a.load(R1, R9, S.SLOTS)
    a.jump_if(R1, "!=", R3, "look")
    a.load(R1, R9, S.SLOTS + 8)
    a.load(R2, R8, S.WALK)
    a.jump_if(R1, "==", R2, "known")
    a.load(R1, R9, S.SLOTS + 24)
    a.load(R0, R8, S.SALT)
    a.jump_if(R1, "!=", R0, "look")
    a.store(R9, S.SLOTS + 8, R2)
    a.jump("known")
    a.label("look")
    low = o.code_firstlineno & ~7
    a.read(S.WORDS, o.code_linetable + 8 - low, R3, low)
    a.jump_if(R0, "!=", 0, "torn")
    a.load64(R4, a.maps.multiplier)
    a.load(R1, R8, S.SALT)
    a.load(R2, R8, S.CODE)
    a.mix(R1, R2)
    a.load(R2, R8, S.WORDS + o.code_firstlineno - low, WORD)
    a.mov(R7, 0)
    if o.code_version is None:
        a.mix(R1, R2)
        a.store(R8, S.ID, R1)
        members_at = ((S.STRINGS, o.code_qualname), (S.STRINGS + 8, o.code_filename), (S.AT, o.code_linetable))
        for place, member in members_at:
            a.load(R2, R8, S.WORDS + member - low)
            a.store(R8, place, R2)
        _content(a, o)
        a.mov(R7, 0)
    else:
        a.load(R3, R8, S.WORDS + o.code_version - low, WORD)
        a.op("lsh", R3, 32)
        a.op("or", R2, R3)
        a.mix(R1, R2)
        a.jump_if(R3, "!=", 0, "numbered")
        # The shim around `__init__` has no number from 3.13 on, nor what is made after 2 ** 32 others.
        a.load64(R7, UNCHECKED)
        for member in (o.code_linetable, o.code_qualname, o.code_filename):
            a.load(R2, R8, S.WORDS + member - low)
            a.mix(R1, R2)
        a.label("numbered")
        a.store(R8, S.ID, R1)
    a.load(R3, R8, S.CODE)
    a.mov(R0, 0)
    a.load(R2, R8, S.PROCESS + 8)
    a.op("add", R2, static[0])
    a.mov(R1, R3)
    a.op("sub", R1, R2)
    a.jump_if(R1, ">=", static[1], "made")
    a.load(R0, R8, S.SALT)
    a.mov(R7, 0)
    a.label("made")
    a.load(R1, R8, S.WALK)
    a.load(R2, R8, S.ID)
    for i, register in enumerate((R3, R1, R2, R0, R7)):
        a.store(R9, S.SLOTS + 8 * i, register)
    a.label("known")
    a.load(R1, R9, S.SLOTS + 16)
    a.load(R0, R8, S.OFFSET)
    a.load(R2, R9, S.SLOTS + 32)
    a.op("or", R0, R2)
    a.load(R3, R8, S.CODE)
    a.load(R9, R8, S.FRAMES)
    a.jump_if(R9, ">=", DEPTH, "cut")
    a.load64(R4, a.maps.multiplier)
    a.load(R6, R8, S.HASH)
    _push(a, R3)
    a.load(R7, R8, S.NEXT)
    for _ in range(_FAST):
        _fast(a, o, begin)
    a.label("no fast one")
    a.store(R8, S.HASH, R6)
    a.store(R8, S.FRAMES, R9)
    a.store(R8, S.NEXT, R7)
    a.jump(again)
    a.label("cut")
    a.store(R8, S.STATUS, TRUNCATED)
    a.jump("end")
    a.label("torn")
    a.store(R8, S.STATUS, BAD)
    a.label("end")


def _code_of(a: Walk, o: Layout, frame: Register, begin: int, other: str) -> None:
    """R3 = the code object of the frame that was read, R0 = where in it the thread is; an interpreter's: at `other`."""
    if o.owner_skip <= 255:
        a.load(R1, frame, S.WINDOW + o.frame_owner - begin, BYTE)
        a.jump_if(R1, ">=", o.owner_skip, other)
    a.load(R3, frame, S.WINDOW + o.frame_code - begin)
    if o.tag_bits:
        a.op("and", R3, ~o.tag_bits)
    a.load(R0, frame, S.WINDOW + o.frame_instr - begin)
    a.op("sub", R0, R3)
    a.op("lsh", R0, 32)
    a.op("rsh", R0, 32)


def _slot(a: Walk, target: Register, code: Register) -> None:
    """target + S.SLOTS = the slot of a code object's address; R1 is lost."""
    a.load64(R1, _GOLDEN)
    a.mov(target, code)
    a.op("mul", target, R1)
    a.op("rsh", target, 64 - SLOT_BITS)
    a.op("mul", target, SLOT)
    a.op("add", target, R8)


def _push(a: Walk, address: int) -> None:
    """Adds the frame R9 of the code object R1, at an address, with offset and flags R0, to the hash R6; R4: see mix."""
    a.mov(R2, R9)
    a.op("mul", R2, FRAME)
    a.op("add", R2, R8)
    for i, value in enumerate((R1, R0, address)):
        a.store(R2, S.RECORD + HEAD + 8 * i, value)
    a.op("add", R9, 1)
    a.mix(R6, R1)
    a.mix(R6, R0)


def _fast(a: Walk, o: Layout, begin: int) -> None:
    """Adds the frame R7 and makes its caller the next one, if that takes no read; else goes on at `no fast one`."""
    other = "no fast one"
    a.load(R1, R8, S.WINDOW_AT)
    a.mov(R5, R7)
    a.op("sub", R5, R1)
    a.load(R1, R8, S.LIMIT)
    a.jump_if(R5, ">", R1, other)
    a.jump_if(R5, ">", _PAGE - 1, other)
    a.jump_if(R9, ">=", DEPTH, other)
    a.op("add", R5, R8)
    _code_of(a, o, R5, begin, other)
    _slot(a, R2, R3)
    a.load(R1, R2, S.SLOTS)
    a.jump_if(R1, "!=", R3, other)
    a.load(R1, R2, S.SLOTS + 8)
    a.load(R3, R8, S.WALK)
    a.jump_if(R1, "!=", R3, other)
    a.load(R7, R5, S.WINDOW + o.frame_previous - begin)
    a.load(R1, R2, S.SLOTS + 16)
    a.load(R3, R2, S.SLOTS + 32)
    a.op("or", R0, R3)
    _push(a, 0)


def _frame(a: Walk, begin: int, size: int) -> None:
    """R7 + S.WINDOW = what was read of the frame R7, from its offset `begin` on.

    A thread's frames stand one behind the other, but for those of generators: the callers' in its page are read with
    it. Behind it there may be nothing to read.
    """
    a.load(R1, R8, S.WINDOW_AT)
    a.mov(R2, R7)
    a.op("sub", R2, R1)
    a.load(R1, R8, S.LIMIT)
    a.jump_if(R2, ">", R1, "no window")
    a.jump_if(R2, "<=", _PAGE - 1, "in window")
    a.label("no window")
    a.mov(R3, R7, begin)
    a.mov(R2, R3)
    a.op("and", R2, _PAGE - 1)
    a.store(R8, S.LIMIT, R2)
    a.op("sub", R3, R2)
    a.mov(R1, R3, -begin)
    a.store(R8, S.WINDOW_AT, R1)
    a.mov(R7, R8)
    a.op("add", R7, R2)
    a.op("add", R2, size)
    a.read(S.WINDOW, None, R3)
    a.jump_if(R0, "!=", 0, "torn")
    a.jump("frame")
    a.label("in window")
    a.mov(R7, R8)
    a.op("add", R7, R2)
    a.label("frame")
