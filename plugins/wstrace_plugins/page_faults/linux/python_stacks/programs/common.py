# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""What the programs have in common: helpers of the kernel, places on the stack, the row before a sample; and the gate.

The gate is a program on the fault events from their beginning on, so that the others can come later, to all at once.
An event passes its program to the events of tasks that are started, never to those of tasks that run already. The gate
says of which kind the fault is, and goes on to whatever stands in an array, which is empty at first. Loading it takes
0.1 ms.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks import bpf
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
    Assembler,
    Code,
    Register,
)
from wstrace_plugins.page_faults.linux.python_stacks.protocol import MAGIC, S
from wstrace_plugins.page_faults.linux.rings import MAJOR, MINOR, STACKS

if TYPE_CHECKING:
    from wstrace_plugins.page_faults.linux.python_stacks.protocol import Maps

#: helpers, by their numbers in include/uapi/linux/bpf.h
LOOKUP, UPDATE, CLOCK, PROCESSOR, TAIL_CALL, PID_TGID, PERF_OUTPUT, READ_USER = 1, 2, 5, 8, 12, 14, 25, 112
READ_KERNEL, NS_PID_TGID, RING_OUTPUT, CURRENT_TASK, FIND_MAPPING, LOOP = 113, 120, 130, 158, 180, 181
#: of RING_OUTPUT: whoever waits is woken, or is not
NO_WAKEUP, FORCE_WAKEUP = 1, 2
#: places on the stack: the key of a lookup; a value to be put into a map, up to 40 bytes; a row
KEY, VALUE, ROW = -8, -48, -56


class Walk(Assembler):
    """The assembler with what both programs have in common. R6 = the context, R8 = the scratch memory of this CPU."""

    def __init__(self, maps: Maps) -> None:
        super().__init__()
        self.maps = maps
        self._callbacks: list[tuple[str, str, Callable[[str], None]]] = []

    def repeat(self, most: int, body: Callable[[str], None]) -> None:
        """Repeats what body(again) assembles: it goes on at `again` for the next time, and its end ends the loop.

        It finds the scratch memory in R8, and in R1 how often it ran before.
        """
        again, callback = self.name("again"), self.name("callback")
        self._callbacks.append((callback, again, body))
        self.mov(R1, most)
        self.loop(callback)

    def loop(self, callback: str) -> None:
        """Calls a function R1 times, until it returns 1: R1 = how often it was called, *R2 = the scratch memory."""
        self.store(FP, VALUE, R8)
        self.function(R2, callback)
        self.mov(R3, FP, VALUE)
        self.mov(R4, 0)
        self.call(LOOP)

    def lookup(self, fd: int, missing: str) -> None:
        """R0 = the address of the value of the key at KEY; goes on at `missing` without one."""
        self.map(R1, fd)
        self.mov(R2, FP, KEY)
        self.call(LOOKUP)
        self.jump_if(R0, "==", 0, missing)

    def update(self, fd: int) -> None:
        """Sets the value of the key at KEY to the bytes at VALUE."""
        self.map(R1, fd)
        self.mov(R2, FP, KEY)
        self.mov(R3, FP, VALUE)
        self.mov(R4, 0)
        self.call(UPDATE)

    def scratch(self, missing: str) -> None:
        """R8 = the scratch memory."""
        self.store(FP, KEY, 0)
        self.lookup(self.maps.scratch.fd, missing)
        self.mov(R8, R0)

    def get(self, target: Register, place: int, size: int = DOUBLE) -> None:
        """target = what stands in the scratch memory."""
        self.load(target, R8, place, size)

    def key(self, place: int, size: int = DOUBLE) -> None:
        """The key of a lookup = what stands in the scratch memory; R1 has it, too."""
        self.get(R1, place, size)
        self.store(FP, KEY, R1)

    def put(self, place: int, value: int, size: int = DOUBLE) -> None:
        """Sets what stands in the scratch memory to a register, or to a constant."""
        self.store(R8, place, value, size)

    def when(self, place: int, condition: str, right: int, label: str) -> None:
        """Goes on at a label if what stands in the scratch memory CONDITION right; R1 is lost."""
        self.get(R1, place)
        self.jump_if(R1, condition, right, label)

    def read(self, to: int, size: int | None, source: Register, plus: int, unreadable: str) -> None:
        """Reads user memory at source + plus into the scratch memory, or goes on at a label; size None = R2."""
        self.mov(R3, source, plus)
        self.mov(R1, R8, to)
        if size is not None:
            self.mov(R2, size)
        self.call(READ_USER)
        self.jump_if(R0, "!=", 0, unreadable)

    def peek(self, target: Register, source: Register, plus: int, unreadable: str) -> None:
        """target = the u64 in user memory at source + plus; or goes on at a label."""
        self.read(S.WORDS, 8, source, plus, unreadable)
        self.get(target, S.WORDS)

    def mix(self, target: Register, other: Register) -> None:
        """target = a hash of both; R4 = the session's multiplier is expected, R5 is lost."""
        self.op("xor", target, other)
        self.op("mul", target, R4)
        self.mov(R5, target)
        self.op("rsh", R5, 29)
        self.op("xor", target, R5)

    def count(self, place: int, base: Register = R8) -> None:
        """Adds one to a count in the scratch memory, which is this CPU's alone."""
        self.load(R1, base, place)
        self.op("add", R1, 1)
        self.store(base, place, R1)

    def write_row(self) -> None:
        """Writes a row with S.HASH before the sample, unless the last row of this ring says the same of this thread."""
        self.get(R7, S.KIND)
        self.op("and", R7, 1)
        self.mov(R9, R7)
        self.op("mul", R9, 16)
        self.op("add", R9, R8)
        self.get(R1, S.IDS, WORD)
        self.get(R3, S.HASH)
        self.load(R2, R9, S.LAST + 8)
        self.jump_if(R1, "!=", R2, "new row")
        self.load(R2, R9, S.LAST)
        self.jump_if(R3, "==", R2, "leave")
        self.label("new row")
        self.store(R9, S.LAST + 8, 0)
        self.store(FP, ROW + 4, MAGIC, WORD)
        self.store(FP, ROW + 8, R3)
        for more in range(16, self.maps.raw_bytes, 8):  # as long as a sample
            self.store(FP, ROW + more, 0)
        self.call(PROCESSOR)
        self.mov(R3, R0)
        self.op("lsh", R3, 1)
        self.op("add", R3, R7)
        self.mov(R1, R6)
        self.map(R2, self.maps.outputs.fd)
        self.mov(R4, FP, ROW + 4)
        self.mov(R5, self.maps.raw_bytes)
        self.call(PERF_OUTPUT)
        self.jump_if(R0, "!=", 0, "row lost")
        self.get(R1, S.IDS, WORD)
        self.store(R9, S.LAST + 8, R1)
        self.get(R1, S.HASH)
        self.store(R9, S.LAST, R1)
        self.jump("leave")
        self.label("row lost")
        self.op("lsh", R7, 3)
        self.op("add", R7, R8)
        self.count(S.ROWS_LOST, R7)

    def leave(self) -> None:
        """The end: the sample is written in any case, as the programs' answer is always 1."""
        self.label("leave")
        self.mov(R0, 1)
        self.exit()
        for callback, again, body in self._callbacks:
            self.label(callback)
            self.load(R8, R2, 0)
            body(again)
            self.mov(R0, 1)
            self.exit()
            self.label(again)
            self.mov(R0, 0)
            self.exit()


#: bytes of the memory that the gates of a CPU share: the kind of the fault at hand
_GATE_BYTES = 8


def gate(memory: int, entries: int, kind: int) -> Code:
    """The program of the events of a kind (0 minor, 1 major faults, 2 sampled ones).

    memory: the descriptor of an array per CPU, with one value of 8 bytes. entries: that of an array of programs: one
    for minor and major faults, as loading it takes milliseconds, and one for samples.
    """
    a = Assembler()
    a.mov(R6, R1)
    a.store(FP, KEY, 0)
    a.map(R1, memory)
    a.mov(R2, FP, KEY)
    a.call(LOOKUP)
    a.jump_if(R0, "==", 0, "leave")
    a.store(R0, 0, kind)
    a.mov(R1, R6)
    a.map(R2, entries)
    a.mov(R3, kind >> 1)
    a.call(TAIL_CALL)
    a.label("leave")  # the sample is written in any case
    a.mov(R0, 1)
    a.exit()
    return a.assemble()


_U32 = struct.Struct("<I")
_KINDS = (MINOR, MAJOR, STACKS)


class Gate:
    """The gates of all kinds of faults.

    memory: of the gates, see programs.gate.
    Raises OSError: the kernel refuses them.
    """

    def __init__(self) -> None:
        self._opened: list[bpf.Map | bpf.Program] = []
        try:
            self.memory = bpf.Map(bpf.PER_CPU_ARRAY, 4, _GATE_BYTES, 1, b"kind")
            self._opened.append(self.memory)
            self._entries = bpf.Map(bpf.PROGRAM_ARRAY, 4, 4, 2, b"entries")
            self._opened.append(self._entries)
            self._programs: dict[str, bpf.Program] = {}
            for i, kind in enumerate(_KINDS):
                self._programs[kind] = bpf.Program(gate(self.memory.fd, self._entries.fd, i), b"gate")
                self._opened.append(self._programs[kind])
        except OSError:
            self.close()
            raise

    def attach(self, event: int, kind: str) -> None:
        """Hangs the gate on an event of that kind, before it counts. Tasks that are started inherit it."""
        perf.ioctl(event, perf.PERF_EVENT_IOC_SET_BPF, self._programs[kind].fd)

    def lead_to(self, program: bpf.Program, *, samples: bool = False) -> None:
        """From now on the gates of minor and major faults, or that of samples, go on to that program."""
        self._entries.set(_U32.pack(samples), _U32.pack(program.fd))

    def close(self) -> None:
        """Closes the descriptors; the events keep the gates."""
        for one in self._opened:
            one.close()
