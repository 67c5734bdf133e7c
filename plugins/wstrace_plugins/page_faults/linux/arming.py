"""Opens the events on the targets: before the execve() of a launched one, on each thread of a running one, again."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wstrace.batch import Columns
from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.events import PerfEvents, Settings, refused
from wstrace_plugins.page_faults.linux.python_stacks.capture import PythonStacks
from wstrace_plugins.page_faults.linux.side_band import SideBand

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Changes that are remembered: rows are at most seconds late, and a rate is not changed that often.
_CHANGES = 64


class Rate:
    """One out of how many faults is recorded, at each time: a row of the kernel's does not say it.

    PERF_SAMPLE_PERIOD would, but where a software event has it, each of its events is a record, whatever the period is
    (perf_swevent_event() in kernel/events/core.c, Linux 6.18).
    every: one out of so many is recorded at first.
    """

    def __init__(self, every: int) -> None:
        self._since, self._every = [0], [every]
        self._varied = every != 1

    def now_is(self, every: int, time_ns: int) -> None:
        """Since that time one out of so many faults is recorded."""
        self._varied = True
        self._since, self._every = [*self._since, time_ns][-_CHANGES:], [*self._every, every][-_CHANGES:]

    def with_rates(self, columns: Columns) -> Columns:
        """The columns of faults, with `sampled` unless each is recorded and no other rate was ever set.

        So a row without it is never one of a trace whose other rows stand for several faults.
        """
        if not self._varied:
            return columns
        at = np.maximum(np.searchsorted(np.array(self._since, np.uint64), columns["time_ns"], side="right") - 1, 0)
        return columns | {"sampled": np.array(self._every, np.uint32)[at]}


class Arming:
    """The processes of a trace, as its events are opened on them.

    side: the side band, which learns of processes that are already running. python: the Python stacks.
    """

    def __init__(
        self, context: Context, settings: Settings, events: PerfEvents, side: SideBand, python: PythonStacks
    ) -> None:
        self._context, self._settings = context, settings
        self._events, self._side, self._python = events, side, python
        #: one out of how many faults is recorded
        self.rate = Rate(settings.period)
        #: Whether threads may have two events, one inherited and one opened by us, which both write the same rows.
        self.doubled = False

    def arm(self, since: int) -> None:
        """Opens the events of all targets; the mappings of a running one hold from the time `since` on.

        Raises Unavailable: one belongs to another user, or there are no more descriptors; TargetExited: one ended
        meanwhile.
        """
        for target in self._context.targets:
            if target.launched:
                self._launched(target.pid)
        if running := [target.pid for target in self._context.targets if not target.launched]:
            self._attach(running, since)
        for target in self._context.targets:
            if target.wait(0) is not None:  # after arming: its pid may be another process's by now
                raise TargetExited(f"process {target.pid} has ended")

    def look(self) -> None:
        """Called at each drain."""

    @property
    def gone(self) -> bool:
        """Whether nothing is left to trace, where that is known here."""
        return False

    def observers(self, columns: Columns) -> NDArray[np.bool_] | None:
        """Which faults are of the tracer's own threads; None = none, and they need not be looked for."""
        own = self._context.own_threads()
        return np.isin(columns["tid"], list(own)) if own and self.doubled else None

    def with_groups(self, columns: Columns) -> Columns:
        """The columns of faults with their cgroup, where groups are traced."""
        return columns

    def _launched(self, pid: int) -> None:
        self._python.expect(pid)
        settings = self._events.make_room(1, self._settings._replace(on_exec=True))
        try:
            if not self._events.arm(pid, settings):
                raise TargetExited(f"process {pid} ended before its first instruction")
        except OSError as error:
            raise refused(pid, error, children=self._settings.children) from None
        self._side.launched(pid)

    def _attach(self, pids: Sequence[int], since: int) -> None:
        """Traces the processes' threads, then reads their mappings; the same for their children until none is new."""
        known: set[int] = set()
        while fresh := [p for p in self._family(*pids) if p not in known]:
            for process in fresh:
                known.add(process)
                self._python.look(process)
                try:
                    self._events.arm_process(process, self._settings, self._context.own_threads)
                    self._side.seen(process, since)
                except OSError as error:
                    raise refused(process, error, children=self._settings.children) from None
                except TargetExited:
                    if process in pids:
                        raise
        self.doubled = True

    def record_one_in(self, every: int) -> bool:
        """Records one out of so many faults from now on. False: the kernel cannot change that of inherited events."""
        return False

    def _family(self, *pids: int) -> list[int]:
        return [*dict.fromkeys(pids), *(procfs.descendants(*pids) if self._settings.children else ())]

    def families(self) -> Iterator[int]:
        """The targets, and the processes that they and theirs have started, as far as these are traced."""
        yield from self._family(*(target.pid for target in self._context.targets))


#: The pids of a record: of a fork those of the new process and of its parent, else its process first.
_IDS = struct.Struct("<II")
_OF_A_PROCESS = (perf.PERF_RECORD_MMAP2, perf.PERF_RECORD_COMM, perf.PERF_RECORD_EXIT)


def met(side: SideBand, time_ns: int, kind: int, misc: int, record: bytes, *, look: Callable[[int], object]) -> bool:
    """Takes what befalls processes that were met, and new programs; a parent is met when it forks.

    So is a process that maps something: what it had mapped before holds from then on.
    """
    if kind == perf.PERF_RECORD_FORK:
        pid, parent = _IDS.unpack_from(record, 8)
        if pid == parent:
            return pid in side.live
        _meet(side, parent, time_ns - 1, look)
    elif kind == perf.PERF_RECORD_MMAP2:
        _meet(side, _IDS.unpack_from(record, 8)[0], time_ns - 1, look)
    elif kind in _OF_A_PROCESS and _IDS.unpack_from(record, 8)[0] not in side.live:
        return bool(kind == perf.PERF_RECORD_COMM and misc & perf.PERF_RECORD_MISC_COMM_EXEC)
    return True


def _meet(side: SideBand, pid: int, time_ns: int, look: Callable[[int], object]) -> None:
    """Makes a process known, with what it has mapped now."""
    if pid not in side.live:
        try:
            look(pid)
            side.seen(pid, time_ns)
        except Unavailable:
            if pid not in side.live:
                side.unread(pid, time_ns)
