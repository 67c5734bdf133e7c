"""The Python stacks of a trace: a gate on its events all the time, and behind it the programs, as soon as needed."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary
from wstrace.errors import Unavailable
from wstrace_plugins.page_faults.linux.python_stacks import NoStacks
from wstrace_plugins.page_faults.linux.python_stacks.interpreters import (
    History,
    Interpreters,
    command_of,
    starts_others,
)
from wstrace_plugins.page_faults.linux.python_stacks.programs.gate import Gate
from wstrace_plugins.page_faults.linux.python_stacks.protocol import StackRows
from wstrace_plugins.page_faults.linux.rings import Ring

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.interfaces import Context
    from wstrace_plugins.page_faults.stacks_option import Stacks

_select: Any = select  # When mypy checks for Windows, the POSIX half has no types.


class WaitingStacks(NoStacks):
    """Opens the stacks of a trace when a process is a CPython, or is able to start one. Until then it stands for them.

    Args:
        strings: the dictionary of the names of mapped files.
        gate: what the events have from their beginning on; None = the kernel refuses it, and so all programs.
        opening: opens the stacks behind the gate, or says why that cannot be and returns a NoStacks.
    """

    def __init__(
        self, strings: Dictionary, gate: Gate | None, opening: Callable[[Interpreters, History], NoStacks]
    ) -> None:
        self._gate, self._opening = gate, opening
        self._interpreters = Interpreters()
        self._history = History(strings, self._interpreters)
        self._stacks = NoStacks()
        self._opened = self._foreseen = False
        self._rows: dict[Ring, StackRows] = {}
        self._poll: Any = _select.epoll()

    # -- until a CPython may come ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Opens the stacks, once.

        Raises:
            Unavailable: the kernel refuses them, and they were asked for by name.
        """
        if self._opened:
            return
        self._opened = True
        self._stacks = self._opening(self._interpreters, self._history)
        for ring, rows in self._rows.items():
            self._stacks.join(ring, rows)
        for fd in self._stacks.fds:
            self._poll.register(fd)

    def expect(self, pid: int) -> None:
        """Opens the stacks before the execve() of a launched process, if its command is a CPython or may start one."""
        words, environment = command_of(pid)
        command = self._interpreters.of_command(words[0], environment)
        if command.python is not None:
            self.open()
        elif command.starts:
            self.foresee()
        self._history.begin(pid)
        self._stacks.expect(pid)

    def foresee(self) -> None:
        """Opens the stacks: what will be started may be a CPython, and its mappings say so too late."""
        if self._gate is not None and not self._foreseen:
            self._foreseen = True
            self.open()
            self._stacks.foresee()

    def look(self, pid: int) -> bool:
        """Opens the stacks if a process that the trace is about to be attached to runs a CPython, or may start one."""
        if self._opened:  # they look themselves, which takes a millisecond
            return self._stacks.look(pid)
        try:
            found, coming = self._interpreters.of_process(pid)
        except Unavailable:
            return self._stacks.look(pid)
        if found is None and not coming:
            self._history.begin(pid)
        if found is not None or coming:
            self.open()
        elif _may_start_others(pid):
            self.foresee()
        return self._stacks.look(pid)

    def saw(self, batch: Batch) -> None:
        """Opens the stacks if a process maps a CPython, or if there is a further program, which may come to do so."""
        self._history.saw(batch)
        if self._history.met:
            self.open()
        elif self._history.others:
            self.foresee()
        self._stacks.saw(batch)

    # -- the stacks, as soon as they are open ----------------------------------------------------------------------

    @property
    def fds(self) -> Sequence[int]:
        """Readable when there is a process to look at."""
        return (self._poll.fileno(),)

    def join(self, ring: Ring, rows: StackRows | None = None) -> StackRows:
        """Returns what pairs the rows of the ring with samples; there are none before the stacks are open."""
        self._rows[ring] = rows or StackRows()
        self._stacks.join(ring, self._rows[ring])
        return self._rows[ring]

    def attach(self, event: int, kind: str) -> None:
        """Hangs the gate on an event of that kind, before it counts. Tasks that are started inherit it."""
        if self._gate is not None:
            self._gate.attach(event, kind)

    def look_at_processes(self, wait: float) -> float:
        """Looks at new processes; returns the seconds until the next look, at most `wait`."""
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
        pids, times = columns["pid"], columns["time_ns"]
        processes = distinct(pids).tolist()
        if len(processes) == 1:
            how = self._history.how(processes[0], times)
        else:
            how = np.zeros(len(pids), "|u1")
            for pid in processes:
                mine = pids == pid
                how[mine] = self._history.how(pid, times[mine])
        return {**rest, "stack": np.zeros(len(how), "<u4"), "stack_how": how}

    def rows_lost(self, kind: str) -> int:
        """The stack rows of a kind of faults that found no room in their ring."""
        return self._stacks.rows_lost(kind)

    def reasons(self) -> Mapping[str, int]:
        """Why faults have no stack -> how many."""
        return self._stacks.reasons()

    def statistics(self) -> Mapping[str, int]:
        """What the programs and their reader counted."""
        return self._stacks.statistics()

    # -- end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes programs, maps and events."""
        self._stacks.close()
        self._close_gate()

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied descriptors."""
        self._stacks.after_fork_in_child()
        self._close_gate()

    def _close_gate(self) -> None:
        self._poll.close()
        if self._gate is not None:
            self._gate.close()


def _may_start_others(pid: int) -> bool:
    """Whether the program of a running process can start others."""
    try:
        fd = os.open(f"/proc/{pid}/exe", os.O_RDONLY)
    except OSError:
        return True
    try:
        return starts_others(fd)
    finally:
        os.close(fd)


def python_stacks(asked: Stacks, context: Context, source: str, cpus: list[int]) -> NoStacks:
    """The capture of Python stacks; the programs of `auto` wait for a CPython.

    Raises:
        Unavailable: they were asked for by name and cannot be had.
    """
    gate: Gate | None = None
    refused: Unavailable | OSError = OSError()
    try:
        gate = Gate()
    except (Unavailable, OSError) as error:
        refused = error

    def opening(interpreters: Interpreters, history: History) -> NoStacks:
        from wstrace_plugins.page_faults.linux.python_stacks.capture import PythonStacks
        from wstrace_plugins.page_faults.linux.python_stacks.kernel import refusal

        try:
            if gate is None:
                raise refused
            return PythonStacks(context, source, cpus, gate, interpreters, history)
        except (Unavailable, OSError) as error:
            no = error if isinstance(error, Unavailable) else refusal(error)
            if asked.required:
                raise no from None
            context.info.lack(f"Python stacks: {no}{_instead()}")
            return NoStacks()

    stacks = WaitingStacks(context.strings, gate, opening)
    if asked.required:
        stacks.open()
    return stacks


def _instead() -> str:
    """What can be had where Python stacks cannot; "" = nothing, as samples have no stack here either."""
    from wstrace_plugins.page_faults.linux.levels import native_level

    sampled = native_level().name == "sampled"
    return "; samples of native stacks need no such right: -s page_faults:stacks=native" if sampled else ""
