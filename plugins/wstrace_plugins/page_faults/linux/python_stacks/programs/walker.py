# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The program for a CPython version: walks the frames of the thread and tells of them."""

from __future__ import annotations

from wstrace_plugins.os.linux.cpython.layouts import Layout
from wstrace_plugins.os.linux.cpython.objects import ASCII_BIT, KIND_MASK, KIND_SHIFT
from wstrace_plugins.page_faults.linux.python_stacks.bpf import (
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
)
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
    FRAME_WINDOW,
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
    UNTOUCHED,
    Maps,
    S,
)

_TABLE_AT = CODE_HEAD + NAME_ROOM + FILE_ROOM  #: where a record of a code object has its line table
#: bytes of a name that are read together with its length: most have no more
_NAME = 208
_LABELS = ("alone", "there", "short", "here", "full", "summed", "known", "kept", "ascii")
#: 2 ** 64 divided by the golden ratio: the high bits of a product with it are a hash
_GOLDEN = 0x9E3779B97F4A7C15


def _content(a: Walk, o: Layout) -> None:
    """Mixes what a code object of 3.11, which has no number of its own, consists of into S.ID.

    That is where its line table, its qualified name and its file's name stand, and what they are: CPython keeps the
    hash of the bytes of each, which stands for them where it was computed; else their length and first 512 bytes do.
    """
    for place, first, begin in ((S.AT, BLOCK_ROOM, 32), (S.STRINGS, _NAME, o.ascii), (S.STRINGS + 8, _NAME, o.ascii)):
        alone, there, short, here, full, summed, known, kept, narrow = map(a.name, _LABELS)
        a.get(R3, place)
        if place == S.STRINGS + 8:  # most code objects have the file of the one before
            a.get(R1, S.FILE)
            a.get(R0, S.FILE_HASH)
            a.jump_if(R1, "==", R3, kept)
            a.put(S.FILE, R3)
        head = S.BLOCK + 16 - begin  # length, hash, and the state of a string
        a.mov(R7, first)
        a.read(head, begin - 16 + first, R3, 16, alone)
        a.jump(there)
        a.label(alone)  # what follows cannot be read
        a.mov(R7, 0)
        a.get(R3, place)
        a.read(head, 24, R3, 16, "torn")
        a.label(there)
        a.get(R0, head + 8)
        a.jump_if(R0, "!=", -1, known)
        a.get(R1, head)
        a.get(R3, place)
        a.op("add", R3, begin)
        if place != S.AT:
            a.get(R2, head + 16, WORD)
            a.jump_if(R2, "&", 1 << ASCII_BIT, narrow)
            a.op("rsh", R2, KIND_SHIFT)
            a.op("and", R2, KIND_MASK)
            a.op("mul", R1, R2)
            a.op("add", R3, o.compact - o.ascii)
            a.mov(R7, 0)
            a.label(narrow)
        a.put(S.LEFT, R1)
        a.mov(R2, R1)
        a.jump_if(R2, "<=", BLOCK_ROOM, short)
        a.mov(R2, BLOCK_ROOM)
        a.label(short)
        a.put(S.SIZE, R2)
        a.jump_if(R2, "<=", R7, here)
        a.read(S.BLOCK, None, R3, 0, "torn")
        a.label(here)
        a.get(R7, S.SIZE)
        a.jump_if(R7, ">=", BLOCK_ROOM, full)
        a.mov(R1, R8)
        a.op("add", R1, R7)
        for word in range(0, 32, 8):  # in place of what follows
            a.store(R1, S.BLOCK + word, 0)
        a.label(full)
        sums = (R0, R3, R4, R5)  # four independent sums: a multiplication takes three cycles
        a.get(R0, S.LEFT)
        for part in sums[1:]:
            a.mov(part, 0)
        a.load64(R2, a.maps.multiplier)
        for at in range(0, BLOCK_ROOM, 32):
            a.jump_if(R7, "<=", at, summed)
            for word, part in enumerate(sums):
                a.op("mul", part, R2)
                a.get(R1, S.BLOCK + at + 8 * word)
                a.op("add", part, R1)
        a.label(summed)
        for part in sums[1:]:
            a.op("mul", R0, R2)
            a.op("add", R0, part)
        a.label(known)
        if place == S.STRINGS + 8:
            a.put(S.FILE_HASH, R0)
            a.label(kept)
        a.load64(R4, a.maps.multiplier)
        a.get(R1, S.ID)
        a.mix(R1, R0)
        a.get(R2, place)
        a.mix(R1, R2)
        a.put(S.ID, R1)


def tell_stack(a: Walk, o: Layout) -> None:
    """A new stack in the scratch memory: its code objects and it go into the ring buffer, or its faults have none.

    Only a stack that was reported as a whole is `seen`: another fault tries again.
    """
    a.put(S.ENDED, 0)
    a.repeat(DEPTH + 1, lambda again: _code(a, o, again))
    a.when(S.ENDED, "==", 0, "row")
    a.put(S.RECORD, RECORD_STACK, WORD)
    a.get(R1, S.IDS + 4, WORD)
    a.put(S.RECORD + 4, R1, WORD)
    a.get(R1, S.HASH)
    a.put(S.RECORD + 8, R1)
    a.get(R3, S.FRAMES)
    a.put(S.RECORD + 16, R3)
    a.jump_if(R3, ">", DEPTH, "row")
    a.op("mul", R3, FRAME)
    a.op("add", R3, HEAD)
    a.map(R1, a.maps.records.fd)
    a.mov(R2, R8, S.RECORD)
    a.mov(R4, NO_WAKEUP)
    a.call(RING_OUTPUT)
    a.jump_if(R0, "!=", 0, "row")
    a.key(S.HASH)
    a.store(FP, VALUE, 1)
    a.update(a.maps.seen.fd)


def _code(a: Walk, o: Layout, again: str) -> None:
    """Tells of the code object of the next frame, R1, if it is new; sets S.ENDED behind the last frame."""
    a.mov(R6, R1)
    a.store(FP, KEY, 0)
    a.lookup(a.maps.code.fd, "stop")
    a.mov(R7, R0)
    a.mov(R3, R6)
    a.get(R1, S.FRAMES)
    a.jump_if(R3, ">=", R1, "all")
    a.jump_if(R3, ">=", DEPTH, "all")
    a.op("mul", R3, FRAME)
    a.op("add", R3, R8)
    a.load(R1, R3, S.RECORD + HEAD)
    a.load(R2, R3, S.RECORD + HEAD + 16)
    a.jump_if(R2, "==", 0, again)
    a.put(S.CODE, R2)
    a.store(R7, 8, R1)
    a.store(FP, KEY, R1)
    a.lookup(a.maps.codes.fd, "new code")
    a.jump(again)
    a.label("new code")
    a.store(R7, 0, RECORD_CODE | o.code_adaptive << 8, WORD)
    a.get(R1, S.IDS + 4, WORD)
    a.store(R7, 4, R1, WORD)
    a.get(R3, S.CODE)
    low = o.code_firstlineno & ~7
    a.read(S.WORDS, o.code_linetable + 8 - low, R3, low, again)
    a.get(R1, S.WORDS + o.code_firstlineno - low, WORD)
    a.store(R7, 16, R1, WORD)
    objects = ((S.STRINGS, o.code_qualname), (S.STRINGS + 8, o.code_filename), (S.AT, o.code_linetable))
    for place, member in objects:
        a.get(R1, S.WORDS + member - low)
        a.put(place, R1)
    rooms = ((NAME_ROOM, CODE_HEAD, 24), (FILE_ROOM, CODE_HEAD + NAME_ROOM, 32), (LINES_ROOM, _TABLE_AT, 16))
    for (place, _), (room, to, described) in zip(objects, rooms, strict=True):
        short, narrow = a.name("short"), a.name("ascii")
        a.get(R3, place)
        a.read(S.WORDS, 24, R3, 16, again)
        a.get(R3, place)
        a.get(R2, S.WORDS)
        a.store(R7, described + 4, R2, WORD)
        if place == S.AT:
            a.op("add", R3, 32)
        else:
            a.get(R1, S.WORDS + 16, WORD)
            a.store(R7, described, R1, WORD)
            a.op("add", R3, o.ascii)
            a.jump_if(R1, "&", 1 << ASCII_BIT, narrow)
            a.op("add", R3, o.compact - o.ascii)
            a.op("rsh", R1, KIND_SHIFT)
            a.op("and", R1, KIND_MASK)
            a.op("mul", R2, R1)
            a.label(narrow)
        a.jump_if(R2, "<=", room, short)
        a.mov(R2, room)
        a.label(short)
        a.put(S.SIZE, R2)
        a.mov(R1, R7, to)
        a.call(READ_USER)
        a.jump_if(R0, "!=", 0, again)
    a.get(R3, S.SIZE)
    a.jump_if(R3, ">", LINES_ROOM, again)
    a.op("add", R3, _TABLE_AT)
    a.map(R1, a.maps.records.fd)
    a.mov(R2, R7)
    a.mov(R4, NO_WAKEUP)
    a.call(RING_OUTPUT)
    a.jump_if(R0, "!=", 0, "stop")
    a.store(FP, VALUE, 1)
    a.update(a.maps.codes.fd)
    a.jump(again)
    a.label("all")
    a.put(S.ENDED, 1)
    a.label("stop")


#: frames of a walk, with those of the interpreter
_STEPS = 2 * DEPTH
_PAGE = 4096
#: bytes: a frame's caller that stands further before it is in other memory
_NEAR = 16 << 10


def walker(maps: Maps, o: Layout, static: tuple[int, int] = (0, 0)) -> Code:
    """The program for the processes that run a CPython of that layout.

    maps: of the trace. o: where the CPython keeps what is read. static: where its file begins, from _PyRuntime on, and
    its bytes: objects in there are never freed.
    """
    a = Walk(maps)
    a.mov(R6, R1)
    a.scratch("leave")
    a.put(S.STATUS, OK)
    a.put(S.FRAMES, 0)
    a.load64(R4, maps.multiplier)
    a.get(R1, S.PROCESS)
    a.get(R2, S.IDS + 4, WORD)
    a.mix(R1, R2)
    a.get(R2, S.BEGAN)
    a.mix(R1, R2)
    a.put(S.SALT, R1)
    a.count(S.WALK)
    a.put(S.EPOCH, R1)
    thread(a, o)
    a.get(R1, S.SALT)
    a.put(S.HASH, R1)
    a.put(S.NEXT, R7)
    a.put(S.NEAR, R7)
    # as no frame is at 0, none is in these windows
    for place in (S.FILE, S.WINDOW_AT, S.WINDOW_AT + 8, S.LIMIT, S.LIMIT + 8):
        a.put(place, 0)
    a.repeat(_STEPS + 1, lambda again: _step(a, o, static, again))
    a.jump("walked")
    for label, status in (("bad", BAD), ("no thread", NO_THREAD), ("empty", EMPTY), ("unborn", UNBORN),
                          ("untouched", UNTOUCHED)):  # fmt: skip
        a.label(label)
        a.put(S.STATUS, status)
        a.jump("walked")
    a.label("walked")
    # -- the hash: the status stands in its low bits; without frames it is nothing but the status
    a.get(R2, S.STATUS)
    a.when(S.FRAMES, "!=", 0, "frames")
    a.jump_if(R2, "!=", OK, "no frames")
    a.mov(R2, EMPTY)
    a.label("no frames")
    a.put(S.HASH, R2)
    a.jump("row")
    a.label("frames")
    a.get(R1, S.HASH)
    a.op("and", R1, -1 << STATUS_BITS)
    a.op("or", R1, R2)
    a.put(S.HASH, R1)
    a.get(R2, S.SEEN)
    a.jump_if(R1, "==", R2, "row")
    a.store(FP, KEY, R1)
    a.lookup(maps.seen.fd, "new")
    a.get(R1, S.HASH)
    a.put(S.SEEN, R1)
    a.jump("row")
    a.label("new")
    tell_stack(a, o)
    a.label("row")
    a.write_row()
    a.leave()
    return a.assemble()


def _step(a: Walk, o: Layout, static: tuple[int, int], again: str) -> None:
    """A step of a walk, R1: adds the next frame. Goes on at again for the next step; behind its end the walk has ended.

    The thread stands in its fault, and each of its frames holds a reference to its code object: within one walk, the
    same address is the same object, and is checked once. From 3.14 on an interpreter counts the code objects that it
    frees: as long as it frees none, that holds over walks.
    """
    a.jump_if(R1, ">=", _STEPS, "cut")
    a.get(R9, S.NEXT)
    a.jump_if(R9, "==", 0, "end")
    members = (o.frame_code, o.frame_previous, o.frame_instr, o.frame_owner)
    begin = min(members) & ~7
    _frame(a, begin, (max(members) & ~7) + 8 - begin)
    a.load(R1, R2, S.WINDOW + o.frame_previous - begin)
    a.put(S.NEXT, R1)
    if o.owner_skip <= 255:  # the interpreter's own
        a.load(R1, R2, S.WINDOW + o.frame_owner - begin, BYTE)
        a.jump_if(R1, ">=", o.owner_skip, again)
    a.put(S.NEAR, R9)
    a.load(R7, R2, S.WINDOW + o.frame_code - begin)
    if o.tag_bits:
        a.op("and", R7, ~o.tag_bits)
    a.load(R6, R2, S.WINDOW + o.frame_instr - begin)
    a.op("sub", R6, R7)
    a.op("lsh", R6, 32)
    a.op("rsh", R6, 32)
    # -- R9 + S.SLOTS = the slot of the code object R7
    a.load64(R1, _GOLDEN)
    a.mov(R9, R7)
    a.op("mul", R9, R1)
    a.op("rsh", R9, 64 - SLOT_BITS)
    a.op("mul", R9, SLOT)
    a.op("add", R9, R8)
    a.load(R1, R9, S.SLOTS)
    a.jump_if(R1, "!=", R7, "look")
    a.load(R1, R9, S.SLOTS + 8)
    a.get(R2, S.WALK)
    a.jump_if(R1, "==", R2, "met")
    a.load(R1, R9, S.SLOTS + 24)
    a.get(R0, S.EPOCH)
    a.jump_if(R1, "==", R0, "holds")
    a.get(R0, S.SALT)
    a.jump_if(R1, "!=", R0, "look")
    a.label("holds")
    a.store(R9, S.SLOTS + 8, R2)
    a.jump("known")
    a.label("look")
    a.put(S.CODE, R7)
    a.mov(R3, R7)
    low = o.code_firstlineno & ~7
    a.read(S.WORDS, o.code_linetable + 8 - low, R3, low, "torn")
    a.load64(R4, a.maps.multiplier)
    a.get(R1, S.SALT)
    a.get(R2, S.CODE)
    a.mix(R1, R2)
    a.get(R2, S.WORDS + o.code_firstlineno - low, WORD)
    a.mov(R7, 0)
    if o.code_version is None:
        a.mix(R1, R2)
        a.put(S.ID, R1)
        members_at = ((S.STRINGS, o.code_qualname), (S.STRINGS + 8, o.code_filename), (S.AT, o.code_linetable))
        for place, member in members_at:
            a.get(R2, S.WORDS + member - low)
            a.put(place, R2)
        _content(a, o)
        a.mov(R7, 0)
    else:
        a.get(R3, S.WORDS + o.code_version - low, WORD)
        a.op("lsh", R3, 32)
        a.op("or", R2, R3)
        a.mix(R1, R2)
        a.jump_if(R3, "!=", 0, "numbered")
        # The shim around `__init__` has no number from 3.13 on, nor what is made after 2 ** 32 others.
        a.load64(R7, UNCHECKED)
        for member in (o.code_linetable, o.code_qualname, o.code_filename):
            a.get(R2, S.WORDS + member - low)
            a.mix(R1, R2)
        a.label("numbered")
        a.put(S.ID, R1)
    a.get(R3, S.CODE)
    a.get(R0, S.EPOCH)
    a.get(R2, S.PROCESS + 8)
    a.op("add", R2, static[0])
    a.mov(R1, R3)
    a.op("sub", R1, R2)
    a.jump_if(R1, ">=", static[1], "made")
    a.get(R0, S.SALT)
    a.mov(R7, 0)
    a.label("made")
    a.get(R1, S.WALK)
    a.get(R2, S.ID)
    for i, register in enumerate((R3, R1, R2, R0, R7)):
        a.store(R9, S.SLOTS + 8 * i, register)
    a.mov(R7, R3)
    a.jump("known")
    a.label("met")
    a.mov(R7, 0)
    a.label("known")
    a.load(R1, R9, S.SLOTS + 16)
    a.load(R2, R9, S.SLOTS + 32)
    a.op("or", R6, R2)
    a.get(R2, S.FRAMES)
    a.jump_if(R2, ">=", DEPTH, "cut")
    a.mov(R3, R2)
    a.op("add", R3, 1)
    a.put(S.FRAMES, R3)
    a.op("mul", R2, FRAME)
    a.op("add", R2, R8)
    for i, value in enumerate((R1, R6, R7)):
        a.store(R2, S.RECORD + HEAD + 8 * i, value)
    a.load64(R4, a.maps.multiplier)
    a.get(R2, S.HASH)
    a.mix(R2, R1)
    a.mix(R2, R6)
    a.put(S.HASH, R2)
    a.jump(again)
    a.label("cut")
    a.put(S.STATUS, TRUNCATED)
    a.jump("end")
    a.label("torn")
    a.put(S.STATUS, BAD)
    a.label("end")


def _frame(a: Walk, begin: int, size: int) -> None:
    """R2 + S.WINDOW = what was read of the frame R9, from its offset `begin` on.

    A thread's frames stand one behind the other, but for those of generators: the callers' in its page are read with
    it. From 3.12 on, the interpreter has a frame of its own on the C stack for each call from C, where callers stand
    behind: they have a window of their own. Behind a page there may be nothing to read.
    """
    for window in (0, 1):
        missing = a.name("missing")
        a.get(R1, S.WINDOW_AT + 8 * window)
        a.mov(R2, R9)
        a.op("sub", R2, R1)
        a.get(R1, S.LIMIT + 8 * window)
        a.jump_if(R2, ">", R1, missing)
        a.jump_if(R2, ">", _PAGE - 1, missing)
        a.op("add", R2, R8)
        a.op("add", R2, FRAME_WINDOW * window)
        a.jump("frame")
        a.label(missing)
    a.mov(R3, R9, begin)
    a.mov(R2, R3)
    a.op("and", R2, _PAGE - 1)
    a.get(R1, S.NEAR)
    a.op("sub", R1, R9)
    a.jump_if(R1, ">", _NEAR, "far")
    a.put(S.LIMIT, R2)
    a.op("sub", R3, R2)
    a.mov(R1, R3, -begin)
    a.put(S.WINDOW_AT, R1)
    a.mov(R7, R8)
    a.op("add", R7, R2)
    a.op("add", R2, size)
    a.mov(R1, R8, S.WINDOW)
    a.jump("read")
    a.label("far")
    a.put(S.WINDOW_AT + 8, R9)
    a.mov(R1, R2)
    a.mov(R2, _PAGE)
    a.op("sub", R2, R1)
    a.jump_if(R2, ">=", size, "whole")
    a.mov(R2, size)
    a.label("whole")
    a.mov(R1, R2, -size)
    a.put(S.LIMIT + 8, R1)
    a.mov(R7, R8, FRAME_WINDOW)
    a.mov(R1, R7, S.WINDOW)
    a.label("read")
    a.call(READ_USER)
    a.jump_if(R0, "!=", 0, "torn")
    a.mov(R2, R7)
    a.label("frame")
