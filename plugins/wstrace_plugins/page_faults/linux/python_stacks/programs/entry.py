# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The program behind the gate: finds the CPython of the process."""

from __future__ import annotations

from wstrace_plugins.page_faults.linux.python_stacks.assembler import (
    DOUBLE,
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
from wstrace_plugins.page_faults.linux.python_stacks.maps import Kernel, Mapped, Maps, ProgramPath
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import (
    CLOCK,
    CURRENT_TASK,
    FIND_MAPPING,
    FORCE_WAKEUP,
    KEY,
    LOOKUP,
    NS_PID_TGID,
    PID_TGID,
    READ_KERNEL,
    RING_OUTPUT,
    ROW,
    TAIL_CALL,
    VALUE,
    Walk,
)
from wstrace_plugins.page_faults.linux.python_stacks.protocol import NEEDS, NOBODY, NOT_KNOWN, UNBORN, WAITING, S

#: where a program finds the instruction: struct bpf_perf_event_data begins with struct pt_regs
_INSTRUCTION = 128
#: of an inode's time of change; the kernel has its own use for the other bits (I_CTIME_QUERIED)
_NANOSECONDS = (1 << 30) - 1
_PAGE_SHIFT = 12


def entry(maps: Maps, kernel: Kernel, kind: int) -> Code:
    """The program of the events of both kinds; `kind`: the memory of the gates, which says of which one is.

    A process is known by its tgid and the number of its exec. The first fault of one that is not known asks the tracer,
    which looks into its program; a child is what its parent is until it executes something itself.
    """
    a = Walk(maps)
    a.mov(R6, R1)
    a.scratch("leave")
    a.lookup(kind, "leave")
    a.load(R1, R0)
    a.store(R8, S.KIND, R1)
    a.call(PID_TGID)
    a.store(R8, S.IDS, R0)
    a.call(CURRENT_TASK)
    a.mov(R7, R0)
    a.load(R9, R7, kernel.self_exec_id)
    a.load(R1, R7, kernel.thread_pointer)
    a.store(R8, S.THREAD_POINTER, R1)
    a.load(R1, R8, S.IDS + 4, WORD)
    a.store(FP, KEY, R1)
    # -- nothing was told at all, and the tracer was asked about this one: that is all there is to do
    a.map_value(R2, maps.enabled.fd)
    a.load(R2, R2, 0)
    a.jump_if(R2, "!=", 0, "enabled")
    a.load(R2, R8, S.ASKED)
    a.jump_if(R2, "!=", R1, "enabled")
    a.load(R2, R8, S.ASKED + 8)
    a.jump_if(R2, "==", R9, "leave")
    a.label("enabled")
    a.load(R2, R8, S.KNOWN)
    a.jump_if(R2, "!=", R1, "another")
    a.load(R2, R8, S.KNOWN + 8)
    a.jump_if(R2, "==", R9, "walk")
    a.label("another")
    a.store(R8, S.KNOWN, 0)
    a.store(R8, S.PROCESS, 0)
    a.store(R8, S.STAGE, 1)
    a.store(R8, S.WAITS, 0)
    a.lookup(maps.processes.fd, "told?")
    a.load(R1, R0, 0)
    a.store(R8, S.PROCESS, R1)
    a.load(R1, R0, 24)
    a.jump_if(R1, "!=", R9, "told?")
    a.load(R1, R0, 16)
    a.jump_if(R1, "<", NEEDS, "known")
    a.store(R8, S.STAGE, 0)  # the tracer was asked
    a.jump_if(R1, "!=", NEEDS, "told?")
    a.store(R8, S.WAITS, 1)
    a.label("told?")
    _own_pid(a, kernel)
    a.lookup(maps.told.fd, "parent?")
    a.load(R1, R0, 0)
    a.load(R2, R8, S.PROCESS)
    a.jump_if(R1, "!=", R2, "take")  # else it was told before the exec that has made it void
    a.label("parent?")
    a.load(R1, R8, S.STAGE)
    a.jump_if(R1, "==", 0, "waits?")
    _follow(a, R1, R7, kernel.real_parent)
    a.jump_if(R1, "==", 0, "ask")
    _follow(a, R1, R1, kernel.tgid, WORD)
    a.store(FP, KEY, R1)
    a.lookup(maps.processes.fd, "ask")
    a.load(R1, R0, 24)
    a.jump_if(R1, "!=", R9, "ask")
    a.label("take")
    for word in range(0, 24, 8):
        a.load(R1, R0, word)
        a.store(FP, VALUE + word, R1)
    a.label("remember")
    _remember(a)
    a.mov(R0, FP, VALUE)
    a.load(R1, R0, 16)
    a.jump_if(R1, ">=", NEEDS, "unknown")
    a.label("known")
    for word in range(0, 24, 8):
        a.load(R1, R0, word)
        a.store(R8, S.PROCESS + word, R1)
    a.load(R1, R8, S.IDS + 4, WORD)
    a.store(R8, S.KNOWN, R1)
    a.store(R8, S.KNOWN + 8, R9)
    a.label("walk")
    a.mov(R1, R6)
    a.map(R2, maps.walkers.fd)
    a.load(R3, R8, S.PROCESS + 16)
    a.call(TAIL_CALL)
    a.store(R8, S.WAITS, 0)
    a.jump("unknown")
    a.label("ask")
    _program(a, kernel.program)
    a.label("waits?")
    a.load(R1, R8, S.WAITS)
    a.jump_if(R1, "==", 0, "no library")
    _library(a)
    a.label("no library")
    a.load(R1, R8, S.STAGE)
    a.jump_if(R1, "==", 0, "unknown")
    _own_pid(a, kernel)
    a.map(R1, maps.asked.fd)
    a.mov(R2, FP, KEY)
    a.mov(R3, 8)
    a.mov(R4, FORCE_WAKEUP)
    a.call(RING_OUTPUT)
    a.jump_if(R0, "!=", 0, "not asked")  # there is no room: its next fault asks again
    a.load(R1, R8, S.PROCESS)
    a.store(FP, VALUE, R1)
    a.store(FP, VALUE + 8, 0)
    a.store(FP, VALUE + 16, NOBODY)
    a.load(R1, R8, S.WAITS)
    a.jump_if(R1, "==", 0, "nobody")
    a.store(FP, VALUE + 16, NEEDS)
    a.label("nobody")
    _remember(a)
    a.label("unknown")
    a.load(R1, R8, S.IDS + 4, WORD)
    a.store(R8, S.ASKED, R1)
    a.store(R8, S.ASKED + 8, R9)
    a.label("not asked")
    a.map_value(R1, maps.enabled.fd)
    a.load(R1, R1, 0)
    a.jump_if(R1, "==", 0, "leave")
    a.store(R8, S.HASH, NOT_KNOWN)
    a.load(R1, R8, S.WAITS)
    a.jump_if(R1, "==", 0, "row")
    a.store(R8, S.HASH, WAITING)
    a.label("row")
    a.tell()
    a.leave()
    _mapping(a, kernel.program, kernel.mapped)
    return a.assemble()


def _follow(a: Walk, to: Register, base: Register, offset: int, size: int = DOUBLE) -> None:
    """to = the member at that offset of the kernel's structure at `base`; R1 to R5 are lost.

    A pointer that is loaded from a task is looked up in all of the kernel's types by the verifier: that takes 3 ms of
    each start, so we let a helper read it.
    """
    a.mov(R3, base, offset)
    a.mov(R1, FP, ROW)
    a.mov(R2, 8 if size == DOUBLE else 4)
    a.call(READ_KERNEL)
    a.load(to, FP, ROW, size)


def _program(a: Walk, path: ProgramPath) -> None:
    """Goes on at `remember` if the program is a CPython that the tracer has told of: nobody needs to be asked."""
    _follow(a, R7, R7, path.mm)
    a.jump_if(R7, "==", 0, "other program")
    _follow(a, R2, R7, path.start_code)
    a.store(R8, S.AT, R2)
    _follow(a, R7, R7, path.exe_file)
    _identify(a, path, "other program")
    _look_up(a, a.maps.programs.fd, "other program")
    a.load(R1, R0, 8)
    a.jump_if(R1, "==", NEEDS, "needs a library")
    a.load(R1, R0, 0)
    a.load(R2, R8, S.AT)
    a.jump_if(R2, "==", 0, "not begun")  # execve() has not come so far: nothing of the program has run
    a.op("add", R1, R2)
    _found(a)
    a.label("not begun")
    a.store(R8, S.HASH, UNBORN)
    a.jump("row")
    a.label("needs a library")
    a.store(R8, S.WAITS, 1)
    a.label("other program")


def _identify(a: Walk, path: ProgramPath, missing: str) -> None:
    """Puts what the maps know the kernel's file R7 by into the scratch memory; R7 is lost; goes on at `missing` too."""
    a.jump_if(R7, "==", 0, missing)
    _follow(a, R7, R7, path.inode)
    a.jump_if(R7, "==", 0, missing)
    _follow(a, R2, R7, path.number)
    a.store(R8, S.FILE_KEY, R2)
    seconds, nanoseconds = path.changed
    _follow(a, R2, R7, nanoseconds, WORD)
    a.op("and", R2, _NANOSECONDS)
    a.store(R8, S.FILE_KEY + 12, R2, WORD)
    _follow(a, R2, R7, seconds)
    a.store(R8, S.FILE_KEY + 16, R2)
    _follow(a, R7, R7, path.super_block)
    a.jump_if(R7, "==", 0, missing)
    _follow(a, R2, R7, path.device, WORD)
    a.store(R8, S.FILE_KEY + 8, R2, WORD)


def _look_up(a: Walk, fd: int, missing: str) -> None:
    """R0 = the address of what a map has of the file that was identified; goes on at `missing` without it."""
    a.map(R1, fd)
    a.mov(R2, R8, S.FILE_KEY)
    a.call(LOOKUP)
    a.jump_if(R0, "==", 0, missing)


def _found(a: Walk) -> None:
    """Goes on at `remember`: the runtime is at R1, R0 the address of what a map has of its file."""
    a.load(R2, R0, 8)
    a.store(FP, VALUE + 8, R1)
    a.store(FP, VALUE + 16, R2)
    a.call(CLOCK)  # differs from what any process before it had
    a.op("or", R0, 1)
    a.store(FP, VALUE, R0)
    a.jump("remember")


def _library(a: Walk) -> None:
    """Goes on at `remember` if the process executes code of a CPython's library that the tracer has told of.

    The first instruction of a library that a process executes is a fault, as nothing of its mapping was there before:
    all of Python's frames come later.
    """
    a.store(R8, S.MAPPED, 0)
    a.store(FP, VALUE, R8)
    a.call(CURRENT_TASK)
    a.mov(R1, R0)
    a.load(R2, R6, _INSTRUCTION)
    a.function(R3, "mapping")
    a.mov(R4, FP, VALUE)
    a.mov(R5, 0)
    a.call(FIND_MAPPING)
    a.load(R1, R8, S.MAPPED)
    a.jump_if(R1, "==", 0, "no library")
    _look_up(a, a.maps.libraries.fd, "no library")
    a.load(R1, R8, S.MAPPED + 8)
    a.load(R2, R8, S.MAPPED + 16)
    a.op("lsh", R2, _PAGE_SHIFT)
    a.op("sub", R1, R2)
    a.load(R2, R0, 0)
    a.op("add", R1, R2)
    _found(a)


def _mapping(a: Walk, path: ProgramPath, mapped: Mapped) -> None:
    """What is called with the mapping of an instruction in R2, and the address of the scratch memory's at R3.

    The verifier knows only here what the mapping's members point to: its file is identified before it returns.
    """
    a.label("mapping")
    a.load(R8, R3, 0)
    a.mov(R7, R2)
    for place, member in enumerate((mapped.start, mapped.page), 1):
        _follow(a, R1, R7, member)
        a.store(R8, S.MAPPED + 8 * place, R1)
    _follow(a, R7, R7, mapped.file)
    _identify(a, path, "no file")
    a.store(R8, S.MAPPED, 1)
    a.label("no file")
    a.mov(R0, 0)
    a.exit()


def _own_pid(a: Walk, kernel: Kernel) -> None:
    """The key of a lookup = the pid of the process, as the tracer knows it."""
    a.load(R1, R8, S.IDS + 4, WORD)
    a.store(FP, KEY, R1)
    if kernel.namespace is None:
        return
    for register, number in zip((R1, R2), kernel.namespace, strict=True):
        a.load64(register, number)
    a.mov(R3, FP, VALUE)
    a.mov(R4, 8)
    a.call(NS_PID_TGID)
    a.load(R1, FP, VALUE + 4, WORD)  # struct bpf_pidns_info: pid, tgid; zeros where it is in another namespace
    a.store(FP, KEY, R1)


def _remember(a: Walk) -> None:
    """Puts what the first 24 bytes of the value say, and the exec R9, under the process's tgid."""
    a.store(FP, VALUE + 24, R9)
    a.load(R1, R8, S.IDS + 4, WORD)
    a.store(FP, KEY, R1)
    a.update(a.maps.processes.fd)
