# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The program for a CPython version: walks the frames of the thread and tells of them."""

from __future__ import annotations

from wstrace_plugins.os.linux.cpython.layouts import Layout
from wstrace_plugins.page_faults.linux.python_stacks.assembler import (
    BYTE,
    FP,
    R0,
    R1,
    R2,
    R3,
    R4,
    R6,
    R7,
    R8,
    WORD,
    Code,
)
from wstrace_plugins.page_faults.linux.python_stacks.maps import Maps
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import KEY, Walk, push
from wstrace_plugins.page_faults.linux.python_stacks.programs.content import content
from wstrace_plugins.page_faults.linux.python_stacks.programs.telling import tell_stack
from wstrace_plugins.page_faults.linux.python_stacks.programs.thread import thread
from wstrace_plugins.page_faults.linux.python_stacks.protocol import (
    BAD,
    DEPTH,
    EMPTY,
    FRAME_WINDOW,
    NO_THREAD,
    OK,
    STATUS_BITS,
    TRUNCATED,
    UNBORN,
    UNCHECKED,
    S,
)

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
    a.mix(R1, R2)
    a.mov(R0, 0)
    a.jump_if(R3, "!=", 0, "numbered")
    # 2 ** 32 code objects were made before this one, which has no number: what it points to must do
    a.load64(R0, UNCHECKED)
    for member in (o.code_linetable, o.code_qualname, o.code_filename):
        a.load(R2, R8, S.WORDS + member - low)
        a.mix(R1, R2)
    a.label("numbered")
    a.store(R8, S.ID, R1)
    a.store(R8, S.FLAGS, R0)
    a.jump("push")
    a.label("same code")
    a.load64(R4, a.maps.multiplier)
    a.load(R1, R8, S.ID)
    a.load(R0, R8, S.FLAGS)
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
