# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The program behind the gate: finds the CPython of the process."""

from __future__ import annotations

from wstrace_plugins.page_faults.linux.python_stacks.bpf import (
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
from wstrace_plugins.page_faults.linux.python_stacks.protocol import NONE, NOT_KNOWN, PENDING, Kernel, Maps, S

#: where a program finds the instruction: struct bpf_perf_event_data begins with struct pt_regs
_INSTRUCTION = 128
#: of an inode's time of change; the kernel has its own use for the other bits (I_CTIME_QUERIED)
_NANOSECONDS = (1 << 30) - 1
_PAGE_SHIFT = 12
_MAPPING_START = 0  # of vm_area_struct.vm_start


def entry(maps: Maps, kernel: Kernel, kind: int) -> Code:
    """The program of the events of both kinds; `kind`: the memory of the gates, which says of which one is.

    A process is known by its tgid, which others had before, the number of its exec, and when it began. It runs what the
    tracer has reported, or what its parent runs until it executes something itself, or what the file is of which it
    executes an instruction. Else the tracer is to look at it, once. Where nothing is known, a row says so.
    """
    a = Walk(maps)
    a.mov(R6, R1)
    a.scratch("leave")
    a.lookup(kind, "leave")
    a.load(R1, R0)
    a.put(S.KIND, R1)
    a.call(PID_TGID)
    a.put(S.IDS, R0)
    a.call(CURRENT_TASK)
    a.mov(R7, R0)
    a.load(R9, R7, kernel.self_exec_id)
    a.load(R1, R7, kernel.thread_pointer)
    a.put(S.THREAD_POINTER, R1)
    a.load(R3, R7, kernel.began)
    a.get(R1, S.IDS, WORD)
    a.get(R2, S.IDS + 4, WORD)
    a.jump_if(R1, "==", R2, "leader")
    _follow(a, R3, R7, kernel.leader)
    _follow(a, R3, R3, kernel.began)
    a.label("leader")
    a.put(S.BEGAN, R3)
    a.key(S.IDS + 4, WORD)
    for place, is_same in enumerate((R1, R9, R3)):
        a.get(R2, S.KNOWN + 8 * place)
        a.jump_if(R2, "!=", is_same, "another")
    a.jump("walk")
    a.label("another")
    for place in (S.KNOWN, S.PROCESS, S.WALKER):
        a.put(place, 0)
    a.lookup(maps.processes.fd, "reported?")
    a.load(R1, R0, 0)
    a.put(S.PROCESS, R1)
    a.get(R2, S.BEGAN)
    for place, is_same in ((24, R9), (32, R2)):
        a.load(R1, R0, place)
        a.jump_if(R1, "!=", is_same, "reported?")
    a.load(R1, R0, 16)
    a.put(S.WALKER, R1)
    a.jump_if(R1, "<", NONE, "known")
    a.label("reported?")
    _own_pid(a, kernel)
    a.lookup(maps.reported.fd, "parent?")
    a.load(R1, R0, 0)
    a.get(R2, S.PROCESS)
    a.jump_if(R1, "==", R2, "parent?")  # it was reported before the exec that has made it void
    a.load(R1, R0, 24)
    a.jump_if(R1, "==", 0, "take")
    a.get(R2, S.BEGAN)
    for place, is_same in ((24, R9), (32, R2)):
        a.load(R1, R0, place)
        a.jump_if(R1, "!=", is_same, "parent?")
    a.jump("take")
    a.label("parent?")
    a.when(S.WALKER, "==", NONE, "unknown")
    a.jump_if(R1, "==", PENDING, "executes?")
    _follow(a, R1, R7, kernel.real_parent)
    a.jump_if(R1, "==", 0, "executes?")
    _follow(a, R7, R1, kernel.leader)
    _follow(a, R1, R7, kernel.tgid, WORD)
    a.store(FP, KEY, R1)
    _follow(a, R7, R7, kernel.began)
    a.lookup(maps.processes.fd, "executes?")
    for place, is_same in ((24, R9), (32, R7)):
        a.load(R1, R0, place)
        a.jump_if(R1, "!=", is_same, "executes?")
    a.load(R1, R0, 16)
    a.jump_if(R1, "==", PENDING, "executes?")
    a.label("take")
    for word in range(0, 24, 8):
        a.load(R1, R0, word)
        a.store(FP, VALUE + word, R1)
    a.label("remember")
    _remember(a)
    a.mov(R0, FP, VALUE)
    a.load(R1, R0, 16)
    a.jump_if(R1, ">=", NONE, "unknown")
    a.label("known")
    for word in range(0, 24, 8):
        a.load(R1, R0, word)
        a.put(S.PROCESS + word, R1)
    a.get(R1, S.IDS + 4, WORD)
    a.put(S.KNOWN, R1)
    a.put(S.KNOWN + 8, R9)
    a.get(R1, S.BEGAN)
    a.put(S.KNOWN + 16, R1)
    a.label("walk")
    a.mov(R1, R6)
    a.map(R2, maps.walkers.fd)
    a.get(R3, S.WALKER)
    a.call(TAIL_CALL)
    a.jump("unknown")
    a.label("executes?")
    _executes(a)
    a.label("ask")
    a.when(S.WALKER, "==", PENDING, "unknown")
    _own_pid(a, kernel)
    a.load(R1, FP, KEY)
    a.store(FP, VALUE, R1)
    a.store(FP, VALUE + 8, R9)
    a.get(R1, S.BEGAN)
    a.store(FP, VALUE + 16, R1)
    a.map(R1, maps.pending.fd)
    a.mov(R2, FP, VALUE)
    a.mov(R3, 24)
    a.mov(R4, FORCE_WAKEUP)
    a.call(RING_OUTPUT)
    a.jump_if(R0, "!=", 0, "unknown")  # there is no room: its next fault tries again
    a.get(R1, S.PROCESS)
    a.store(FP, VALUE, R1)
    a.store(FP, VALUE + 8, 0)
    a.store(FP, VALUE + 16, PENDING)
    _remember(a)
    a.label("unknown")
    a.put(S.HASH, NOT_KNOWN)
    a.write_row()
    a.leave()
    _mapping(a, kernel)
    return a.assemble()


def of_others(maps: Maps) -> Code:
    """The program of samples: a stack is taken only of a process that is known to run no CPython, which has its own."""
    a = Walk(maps)
    a.call(PID_TGID)
    a.op("rsh", R0, 32)
    a.store(FP, KEY, R0)
    a.lookup(maps.processes.fd, "none")
    a.load(R1, R0, 16)
    a.jump_if(R1, "==", NONE, "leave")
    a.label("none")
    a.mov(R0, 0)
    a.exit()
    a.leave()
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


def _executes(a: Walk) -> None:
    """Goes on at `remember` if the process executes code of a file that has a CPython, as the tracer has reported.

    The first instruction of a program or library that a process executes is a fault, as nothing of its mapping was
    there before: all of Python's frames come later.
    """
    a.put(S.MAPPED, 0)
    a.store(FP, VALUE, R8)
    a.call(CURRENT_TASK)
    a.mov(R1, R0)
    a.load(R2, R6, _INSTRUCTION)
    a.function(R3, "mapping")
    a.mov(R4, FP, VALUE)
    a.mov(R5, 0)
    a.call(FIND_MAPPING)
    a.when(S.MAPPED, "==", 0, "ask")
    a.map(R1, a.maps.files.fd)
    a.mov(R2, R8, S.FILE_KEY)
    a.call(LOOKUP)
    a.jump_if(R0, "==", 0, "ask")
    a.get(R1, S.MAPPED + 8)
    a.get(R2, S.MAPPED + 16)
    a.op("lsh", R2, _PAGE_SHIFT)
    a.op("sub", R1, R2)
    a.load(R2, R0, 0)
    a.op("add", R1, R2)
    a.store(FP, VALUE + 8, R1)
    a.load(R2, R0, 8)
    a.store(FP, VALUE + 16, R2)
    a.call(CLOCK)  # differs from what any process before it had
    a.op("or", R0, 1)
    a.store(FP, VALUE, R0)
    a.jump("remember")


def _mapping(a: Walk, kernel: Kernel) -> None:
    """What is called with the mapping of an instruction in R2, and the address of the scratch memory's at R3.

    The verifier knows only here what the mapping's members point to: its file is identified before it returns.
    """
    a.label("mapping")
    a.load(R8, R3, 0)
    a.mov(R7, R2)
    for place, member in enumerate((_MAPPING_START, kernel.mapping_page), 1):
        _follow(a, R1, R7, member)
        a.put(S.MAPPED + 8 * place, R1)
    for member in (kernel.mapping_file, kernel.file_inode):
        _follow(a, R7, R7, member)
        a.jump_if(R7, "==", 0, "no file")
    for place, member in enumerate((kernel.inode_size, kernel.inode_seconds)):
        _follow(a, R2, R7, member)
        a.put(S.FILE_KEY + 8 * place, R2)
    _follow(a, R2, R7, kernel.inode_nanoseconds, WORD)
    a.op("and", R2, _NANOSECONDS)
    a.put(S.FILE_KEY + 16, R2)
    a.put(S.MAPPED, 1)
    a.label("no file")
    a.mov(R0, 0)
    a.exit()


def _own_pid(a: Walk, kernel: Kernel) -> None:
    """The key of a lookup = the pid of the process, as the tracer knows it."""
    a.key(S.IDS + 4, WORD)
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
    """Puts what the first 24 bytes of the value say, the exec R9 and the begin under the process's tgid."""
    a.store(FP, VALUE + 24, R9)
    a.get(R1, S.BEGAN)
    a.store(FP, VALUE + 32, R1)
    a.key(S.IDS + 4, WORD)
    a.update(a.maps.processes.fd)
