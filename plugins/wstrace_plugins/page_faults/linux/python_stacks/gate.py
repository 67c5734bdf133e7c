"""What hangs on the fault events from their beginning on, so that the programs can come later, to all events at once.

An event passes the program that it has to the events of the tasks that are started, never to those of tasks that run
already, and no event can be reached but those that we have opened ourselves. So the program that it has from the
beginning on is a gate: it goes on to whatever stands in an array, which is empty at first. Loading it takes 0.1 ms.
"""

from __future__ import annotations

import struct

import numpy as np

from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks import bpf
from wstrace_plugins.page_faults.linux.python_stacks.programs.gate import GATE_BYTES, RUNS, gate
from wstrace_plugins.page_faults.linux.rings import MAJOR, MINOR

_U32 = struct.Struct("<I")
_FIRST = _U32.pack(0)
_KINDS = (MINOR, MAJOR)


class Gate:
    """The gates of both kinds of faults, and what they have counted.

    memory: of the gates, see programs.gate.

    Raises:
        OSError: the kernel refuses them.
    """

    def __init__(self) -> None:
        self._opened: list[bpf.Map | bpf.Program] = []
        try:
            self.memory = bpf.Map(bpf.PER_CPU_ARRAY, 4, GATE_BYTES, 1, b"runs")
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

    def runs(self, kind: str) -> int:
        """How often the gate of a kind ran, on all CPUs."""
        raw = self.memory.get(_FIRST) or b""
        return int(np.frombuffer(raw, "<u8").reshape(-1, GATE_BYTES // 8)[:, RUNS // 8 + _KINDS.index(kind)].sum())

    def close(self) -> None:
        """Closes the descriptors; the events keep the gates."""
        for one in self._opened:
            one.close()
