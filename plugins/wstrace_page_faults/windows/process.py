"""A watched process: its watch, and what is known of its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Dictionary
from wstrace.schema import DTYPES, PROCESS
from wstrace_os.windows import process as processes
from wstrace_os.windows.interface import WindowsApi
from wstrace_os.windows.memory import AddressSpace, Memory
from wstrace_page_faults.windows.watch import Watch


class WatchedProcess:
    """Made quickly, for each moment until then is missed: its name and its memory are asked for by describe().

    Args:
        api: wstrace_os.windows.api or a stand-in.
        pid: the process.
        parent: the number of the process that made it, 0 for a target; None = ask the system.

    Raises:
        TargetExited, Unavailable: see Watch.
    """

    def __init__(self, api: WindowsApi, pid: int, parent: int | None, *, launched: bool = False) -> None:
        self._api, self.pid, self.launched = api, pid, launched
        self.watch = Watch(api, pid)
        self.created = processes.times(api, self.watch.handle)[0]
        self.parent = processes.parent(api, self.watch.handle) if parent is None else parent
        self.name = 0
        self.major = 0  # records of faults that read from disk
        self.space: AddressSpace | None = None

    def describe(self, strings: Dictionary) -> AddressSpace:
        """Its name and its memory, asked for once."""
        if self.space is None:
            self.name = strings.code(processes.name(self._api, self.watch.handle, self.pid))
            self.space = AddressSpace(Memory(self._api, self.watch.handle), self.pid, strings)
        return self.space

    def row(self, now: int, event: int, *, code: int = -1) -> dict[str, NDArray[Any]]:
        """A PROCESS row of it."""
        whose = {"pid": self.pid, "ppid": self.parent, "tid": self.pid, "name": self.name}
        values = {"time_ns": now, "event": event, "code": code, **whose}
        return {column.name: np.array([values[column.name]], DTYPES[column.type]) for column in PROCESS.columns}
