"""The gate: a program on the fault events from their beginning on, so that the others can come later, to all at once.

An event passes its program to the events of tasks that are started, never to those of tasks that run already. The gate
says of which kind the fault is, and goes on to whatever stands in an array, which is empty at first. Loading it takes
0.1 ms.
"""

from __future__ import annotations

import struct

from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks import bpf
from wstrace_plugins.page_faults.linux.python_stacks.assembler import FP, R0, R1, R2, R3, R6, Assembler, Code
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import KEY, LOOKUP, TAIL_CALL
from wstrace_plugins.page_faults.linux.rings import MAJOR, MINOR

#: bytes of the memory that the gates of a CPU share: the kind of the fault at hand
_GATE_BYTES = 8


def gate(memory: int, entries: int, kind: int) -> Code:
    """The program of the events of a kind (0 minor, 1 major faults).

    Args:
        memory: the descriptor of an array per CPU, with one value of 8 bytes.
        entries: that of an array of programs, with one: the same for both kinds, as loading it takes milliseconds.
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
    a.mov(R3, 0)
    a.call(TAIL_CALL)
    a.label("leave")  # the sample is written in any case
    a.mov(R0, 1)
    a.exit()
    return a.assemble()


_U32 = struct.Struct("<I")
_FIRST = _U32.pack(0)
_KINDS = (MINOR, MAJOR)


class Gate:
    """The gates of both kinds of faults.

    memory: of the gates, see programs.gate.

    Raises:
        OSError: the kernel refuses them.
    """

    def __init__(self) -> None:
        self._opened: list[bpf.Map | bpf.Program] = []
        try:
            self.memory = bpf.Map(bpf.PER_CPU_ARRAY, 4, _GATE_BYTES, 1, b"kind")
            self._opened.append(self.memory)
            self._entries = bpf.Map(bpf.PROGRAM_ARRAY, 4, 4, 1, b"entries")
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

    def lead_to(self, program: bpf.Program) -> None:
        """From now on both gates go on to that program."""
        self._entries.set(_FIRST, _U32.pack(program.fd))

    def close(self) -> None:
        """Closes the descriptors; the events keep the gates."""
        for one in self._opened:
            one.close()
