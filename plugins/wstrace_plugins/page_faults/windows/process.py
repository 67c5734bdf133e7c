"""WatchedProcess: a process with its watch and its known memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Dictionary
from wstrace.schema import DTYPES, PROCESS
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.memory import AddressSpace, Memory
from wstrace_plugins.page_faults.windows.watch import Watch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class WatchedProcess:
    """A process with its watch.

    The constructor only begins the watch, because earlier faults are missed; describe() queries the name and memory.

    Args:
        api: wstrace_plugins.os.windows.api or a stand-in.
        pid: the process.
        parent: the pid of its parent, 0 for a target; None = ask the system.
        launched: whether it is a launched target.

    Raises:
        TargetExited, Unavailable: see Watch.
    """

    def __init__(self, api: WindowsApi, pid: int, parent: int | None, *, launched: bool = False) -> None:
        self._api, self.pid, self.launched = api, pid, launched
        self.watch = Watch(api, pid)
        self.created = processes.times(api, self.watch.handle)[0]
        self.parent = processes.parent(api, self.watch.handle) if parent is None else parent
        self.name = 0
        self.major = 0  # the number of recorded major faults
        self.space: AddressSpace | None = None

    def describe(self, strings: Dictionary) -> AddressSpace:
        """The memory of the process; the first call queries its name and memory."""
        if self.space is None:
            self.name = strings.code(processes.name(self._api, self.watch.handle, self.pid))
            self.space = AddressSpace(Memory(self._api, self.watch.handle), self.pid, strings)
        return self.space

    def rows(self, now: int, *events: int, code: int = -1) -> dict[str, NDArray[Any]]:
        """A row of the stream `process` for each event, at the time `now` in ns."""
        whose = {"pid": self.pid, "ppid": self.parent, "tid": self.pid, "name": self.name}
        values = {"time_ns": now, "code": code, **whose}
        columns = {name: [value] * len(events) for name, value in values.items()} | {"event": list(events)}
        return {column.name: np.array(columns[column.name], DTYPES[column.type]) for column in PROCESS.columns}
