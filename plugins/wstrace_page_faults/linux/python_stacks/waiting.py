"""Python stacks of `stacks=auto`: nothing is opened until a process is to execute, or has mapped, a CPython."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch, Dictionary
from wstrace.errors import Unavailable
from wstrace.schema import ADDRESS_SPACE, HOW_NOT_PYTHON, HOW_UNKNOWN, MAP_EXECUTE, PROCESS, PROCESS_EXEC
from wstrace_page_faults.linux.python_stacks.interpreters import Interpreters, command_of, is_named, starts_others
from wstrace_page_faults.linux.python_stacks.none import NoStacks
from wstrace_page_faults.linux.python_stacks.rows import StackRows
from wstrace_page_faults.linux.rings import Ring

#: after an exec, which may be of a program that starts a CPython, mappings are read so often, for so long
_LOOK_SECONDS, _LOOK_FOR_SECONDS = 0.01, 1.0

_select: Any = select  # When mypy checks for Windows, the POSIX half has no types.


class WaitingStacks(NoStacks):
    """Stands for the stacks of a trace, and has them opened when the first CPython is met.

    Args:
        strings: the dictionary of the names of mapped files.
        opening: opens the stacks, or says why that cannot be and returns a NoStacks.
    """

    def __init__(self, strings: Dictionary, opening: Callable[[], NoStacks]) -> None:
        self._strings, self._opening = strings, opening
        self._interpreters = Interpreters()
        self._stacks = NoStacks()
        self._opened = False
        self._rows: dict[Ring, StackRows] = {}
        self._named: dict[int, bool] = {}
        #: processes that ended before their program could be looked into
        self._unknown: set[int] = set()
        #: processes whose first exec is of a command that was looked into
        self._launched: set[int] = set()
        self._until = 0.0
        self._poll: Any = _select.epoll()
        #: the programs are to be hung on events that are open already
        self.late = False

    # -- until a CPython is met ------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._opened = True
        self._stacks = self._opening()
        for ring, rows in self._rows.items():
            self._stacks.join(ring, rows)
        for fd in self._stacks.fds:
            self._poll.register(fd)

    def expect(self, pid: int) -> None:
        """Opens the stacks before the execve() of a launched process, if its command is a CPython or starts others.

        A CPython that a shell starts has made most of its first faults when its mappings are read.
        """
        if not self._opened:
            path, environment = command_of(pid)
            if starts_others(path) or self._interpreters.of_command(path, environment) is not None:
                self._open()
        self._launched.add(pid)
        self._until = time.monotonic() + _LOOK_FOR_SECONDS
        self._stacks.expect(pid)

    def look(self, pid: int) -> bool:
        """Opens the stacks if the process, to which the trace is about to be attached, runs a CPython."""
        if not self._opened:
            with contextlib.suppress(Unavailable):
                found, coming = self._interpreters.of_process(pid)
                if found is not None or coming:
                    self._open()
        return self._stacks.look(pid)

    def saw(self, batch: Batch) -> None:
        """Opens the stacks, late, if a process executes or maps what may be a CPython."""
        if not self._opened and self._meets_python(batch):
            self._open()
            self.late = bool(self._stacks.fds)
        self._stacks.saw(batch)

    def _meets_python(self, batch: Batch) -> bool:
        if batch.schema is PROCESS:
            executed = batch["pid"][batch["event"] == PROCESS_EXEC].tolist()
            looked_into = self._launched.intersection(executed)
            self._launched -= looked_into
            others = {pid for pid in executed if pid not in looked_into or executed.count(pid) > 1}
            if others:
                self._until = time.monotonic() + _LOOK_FOR_SECONDS
            return any(map(self._runs_python, others))
        if batch.schema is not ADDRESS_SPACE:
            return False
        files = set(batch["file"][(batch["flags"] & MAP_EXECUTE) != 0].tolist())
        for file in files - self._named.keys():
            self._named[file] = is_named(self._strings[file])
        return any(self._named[file] for file in files)

    def _runs_python(self, pid: int) -> bool:
        """Whether the program of a process is or needs a CPython, whatever its name."""
        try:
            fd = os.open(f"/proc/{pid}/exe", os.O_RDONLY)
        except OSError:
            self._unknown.add(pid)
            return False
        self._unknown.discard(pid)
        try:
            python, needs = self._interpreters.of_file(fd)
        finally:
            os.close(fd)
        return python is not None or needs

    # -- the stacks, as soon as they are open ----------------------------------------------------------------------

    @property
    def fds(self) -> Sequence[int]:
        """Readable when there is a process to look at."""
        return (self._poll.fileno(),)

    def join(self, ring: Ring, rows: StackRows | None = None) -> StackRows:
        """Returns what pairs the rows of the ring with samples; there are none before the stacks are open."""
        self._rows[ring] = rows or StackRows()
        return self._rows[ring]

    def attach(self, event: int, kind: str) -> None:
        """Hangs the program on an event, if there is one."""
        self._stacks.attach(event, kind)

    def look_at_processes(self, wait: float) -> float:
        """Looks at new processes; returns the seconds until the next look, at most `wait`."""
        if not self._opened and time.monotonic() < self._until:
            wait = min(wait, _LOOK_SECONDS)
        return self._stacks.look_at_processes(wait)

    def new_sites(self) -> Iterable[Batch]:
        """The call sites of the stacks that came since the last call."""
        return self._stacks.new_sites()

    def with_stacks(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The columns of faults with `stack` and `stack_how`."""
        if self._opened and self._stacks.fds:
            return self._stacks.with_stacks(columns)
        rest = {name: column for name, column in columns.items() if name != "stack_hash"}
        if self._opened:  # refused
            return rest
        how = np.full(len(columns["pid"]), HOW_NOT_PYTHON, "|u1")
        if self._unknown:
            how[np.isin(columns["pid"], list(self._unknown))] = HOW_UNKNOWN
        return {**rest, "stack": np.zeros(len(how), "<u4"), "stack_how": how}

    def rows_lost(self, kind: str) -> int:
        """The stack rows of a kind of faults that found no room in their ring."""
        return self._stacks.rows_lost(kind)

    def runs(self, kind: str) -> int | None:
        """How often the program of a kind of faults ran; None while there is none."""
        return self._stacks.runs(kind)

    def reasons(self) -> Mapping[str, int]:
        """Why faults have no stack -> how many."""
        return self._stacks.reasons()

    def switch_off(self) -> None:
        """The programs were taken off the events."""
        self._stacks.switch_off()

    def statistics(self) -> Mapping[str, int]:
        """What the programs and their reader counted."""
        return self._stacks.statistics()

    def close(self) -> None:
        """Closes programs, maps and events."""
        self._poll.close()
        self._stacks.close()

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied descriptors."""
        self._poll.close()
        self._stacks.after_fork_in_child()
