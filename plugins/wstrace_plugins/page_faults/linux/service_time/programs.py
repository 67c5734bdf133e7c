# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The programs that time faults: at a fault's entry a time stamp of its thread, at its end the time since then.

The kernel raises PERF_COUNT_SW_PAGE_FAULTS before it serves a fault, and PERF_COUNT_SW_PAGE_FAULTS_MIN or _MAJ when
that is done (do_user_addr_fault() in arch/x86/mm/fault.c, mm_account_fault() in mm/memory.c). The stamp is kept by
thread, so that it is found wherever the thread is resumed, and is taken once: an end without an entry finds none.

Another BPF program may displace ours at the end of a fault and at the entry of the next one, by the same instruction at
the same address. So a stamp has the number of faults that the thread had been served, too, which mm_account_fault()
counts just before it raises the event: at the end of the stamp's own fault it is one more.
"""

from __future__ import annotations

from typing import NamedTuple

from wstrace_plugins.page_faults.linux.python_stacks.assembler import (
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
    Assembler,
    Code,
)
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import (
    CLOCK,
    CURRENT_TASK,
    KEY,
    LOOKUP,
    PERF_OUTPUT,
    PID_TGID,
    PROCESSOR,
    ROW,
    UPDATE,
    VALUE,
)
from wstrace_plugins.page_faults.linux.python_stacks.protocol import RAW_BYTES

#: A row of 40 bytes, as a stack row is one (protocol.STACK_ROW), with the time in ns; 0 = the entry was not seen.
MAGIC = 0x57535456
SERVICE_ROW = MAGIC << 32 | RAW_BYTES
#: a thread's value: when it entered its last fault, 0 = that one's end has been seen; its instruction and its address;
#: how many faults the thread had been served
STAMP, STAMP_IP, STAMP_ADDRESS, STAMP_SERVED, STAMP_BYTES = 0, 8, 16, 24, 32
#: struct bpf_perf_event_data on x86-64: the registers' instruction pointer, and the address behind them and the period
_IP, _ADDRESS = 128, 176


class Counts(NamedTuple):
    """The offsets in the kernel's task_struct of what it counts of a thread's faults, u64 each."""

    minor: int
    major: int


def entry(threads: int, counts: Counts) -> Code:
    """The program of the event at a fault's entry. It wants no sample of it.

    Args:
        threads: the descriptor of the map of stamps, by thread.
        counts: see there.
    """
    a = Assembler()
    a.mov(R6, R1)
    a.call(PID_TGID)
    a.store(FP, KEY, R0)
    _lookup(a, threads)
    a.jump_if(R0, "!=", 0, "known")
    for word in range(0, STAMP_BYTES, 8):
        a.store(FP, VALUE + word, 0)
    a.map(R1, threads)
    a.mov(R2, FP, KEY)
    a.mov(R3, FP, VALUE)
    a.mov(R4, 0)
    a.call(UPDATE)
    _lookup(a, threads)
    a.jump_if(R0, "==", 0, "leave")
    a.label("known")
    a.mov(R7, R0)
    a.load(R1, R6, _IP)
    a.store(R7, STAMP_IP, R1)
    a.load(R1, R6, _ADDRESS)
    a.store(R7, STAMP_ADDRESS, R1)
    _served(a, counts)
    a.store(R7, STAMP_SERVED, R1)
    a.call(CLOCK)  # last, so that what was done until here takes no time of the fault's
    a.store(R7, STAMP, R0)
    a.label("leave")
    a.mov(R0, 0)
    a.exit()
    return a.assemble()


def since_entry(a: Assembler, threads: int, counts: Counts, own: int = 1) -> None:
    """R7 = the ns since the entry of this fault, 0 = that was not seen; expects the context in R6, changes R8.

    own: the faults that the thread has been served since the stamp: this one.
    """
    a.call(CLOCK)  # first, for the same reason
    a.mov(R7, R0)
    a.call(PID_TGID)
    a.store(FP, KEY, R0)
    _lookup(a, threads)
    a.jump_if(R0, "==", 0, "no entry")
    a.load(R1, R0, STAMP)
    a.jump_if(R1, "==", 0, "no entry")
    a.store(R0, STAMP, 0)
    for place, of_event in ((STAMP_IP, _IP), (STAMP_ADDRESS, _ADDRESS)):
        a.load(R2, R0, place)
        a.load(R3, R6, of_event)
        a.jump_if(R2, "!=", R3, "no entry")
    a.load(R8, R0, STAMP_SERVED)
    a.op("add", R8, own)
    a.jump_if(R7, "<=", R1, "no entry")
    a.op("sub", R7, R1)
    _served(a, counts)
    a.jump_if(R8, "!=", R1, "no entry")
    a.jump("timed")
    a.label("no entry")
    a.mov(R7, 0)
    a.label("timed")


def tell(a: Assembler, threads: int, counts: Counts, outputs: int, lost: int, kind: int) -> None:
    """Writes a row with the time of this fault, before the sample; expects the context in R6.

    Args:
        threads, counts: as in entry().
        outputs: the descriptor of the map of events to write to, by CPU and kind.
        lost: that of an array per CPU, which counts by kind the rows that found no room.
        kind: 0 minor, 1 major faults.
    """
    since_entry(a, threads, counts)
    a.store(FP, ROW + 4, MAGIC, WORD)
    a.store(FP, ROW + 8, R7)
    a.call(PROCESSOR)
    a.mov(R3, R0)
    a.op("lsh", R3, 1)
    a.op("add", R3, kind)
    a.mov(R1, R6)
    a.map(R2, outputs)
    a.mov(R4, FP, ROW + 4)
    a.mov(R5, RAW_BYTES)
    a.call(PERF_OUTPUT)
    a.jump_if(R0, "==", 0, "told")
    a.store(FP, KEY, kind)
    _lookup(a, lost)
    a.jump_if(R0, "==", 0, "told")
    a.load(R1, R0)
    a.op("add", R1, 1)
    a.store(R0, 0, R1)
    a.label("told")


def trial(threads: int, counts: Counts, times: int, room: int, own: int = 0) -> Code:
    """The program that takes the place of the one at a fault's end while its own cost is measured.

    Args:
        threads, counts: as in entry().
        times: the descriptor of an array with one value: u64 how many times there are, and room for so many u64.
        room: that number.
        own: as in since_entry(): none where both programs run at the end of the same fault.
    """
    a = Assembler()
    a.mov(R6, R1)
    since_entry(a, threads, counts, own)
    a.map_value(R1, times)
    a.load(R2, R1)
    a.jump_if(R2, ">=", room, "leave")
    a.mov(R3, R2)
    a.op("add", R3, 1)
    a.store(R1, 0, R3)
    a.op("lsh", R2, 3)
    a.op("add", R1, R2)
    a.store(R1, 8, R7)
    a.label("leave")
    a.mov(R0, 0)
    a.exit()
    return a.assemble()


def _served(a: Assembler, counts: Counts) -> None:
    """R1 = how many faults this thread has been served."""
    a.call(CURRENT_TASK)
    a.load(R1, R0, counts.minor)
    a.load(R2, R0, counts.major)
    a.op("add", R1, R2)


def _lookup(a: Assembler, fd: int) -> None:
    a.map(R1, fd)
    a.mov(R2, FP, KEY)
    a.call(LOOKUP)
