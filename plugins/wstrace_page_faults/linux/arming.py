"""Opens the events on the targets: before the execve() of a launched one, on each thread of a running one, again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from wstrace.clock import now_ns
from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context
from wstrace_os.linux import procfs
from wstrace_page_faults.linux.events import PerfEvents, Settings
from wstrace_page_faults.linux.levels import refused
from wstrace_page_faults.linux.python_stacks.none import NoStacks
from wstrace_page_faults.linux.side_band import SideBand


class Arming:
    """The processes of a trace, as its events are opened on them.

    Args:
        context: the session's context.
        settings: how the events are opened.
        events: the perf events.
        side: the side band, which learns of processes that are already running.
        python: the Python stacks.
    """

    def __init__(
        self, context: Context, settings: Settings, events: PerfEvents, side: SideBand, python: NoStacks
    ) -> None:
        self._context, self._settings = context, settings
        self._events, self._side, self._python = events, side, python
        #: Whether threads may have two events, one inherited and one opened by us, which both write the same rows.
        self.doubled = False

    def target(self, pid: int, since: int, *, launched: bool) -> None:
        """Opens the events of a target; the mappings of a running one hold from the time `since` on.

        Raises:
            Unavailable: it belongs to another user, or there are no more descriptors.
            TargetExited: it ended meanwhile.
        """
        if launched:
            self._launched(pid)
        else:
            self._attach(pid, since)

    def _launched(self, pid: int) -> None:
        self._python.expect(pid)
        settings = self._events.make_room(1, self._settings._replace(on_exec=True))
        try:
            if not self._events.arm(pid, settings):
                raise TargetExited(f"process {pid} ended before its first instruction")
        except OSError as error:
            raise refused(pid, error, children=self._settings.children) from None
        self._side.launched(pid)

    def _attach(self, pid: int, since: int) -> None:
        """Traces the process's threads, then reads its mappings; the same for its children until none is new."""
        known: set[int] = set()
        while fresh := [p for p in self._family(pid) if p not in known]:
            for process in fresh:
                known.add(process)
                self._python.look(process)
                try:
                    self._events.arm_process(process, self._settings, self._context.own_threads)
                    self._side.seen(process, since)
                except OSError as error:
                    raise refused(process, error, children=self._settings.children) from None
                except TargetExited:
                    if process == pid:
                        raise
        self.doubled = True

    def again(self, pid: int) -> None:
        """Opens events again on a process that gained privilege by exec, because the kernel has removed the old ones.

        That needs privilege. Faults that happened meanwhile are lost, and counted.
        """
        since = now_ns()
        with contextlib.suppress(OSError, Unavailable):  # we lack the right, or the process has ended
            self._events.threads.difference_update(procfs.threads(pid))
            self._events.arm_process(pid, self._settings, self._context.own_threads)
            self._side.seen(pid, since)
            self.doubled = True

    def _family(self, pid: int) -> list[int]:
        return [pid, *(procfs.descendants(pid) if self._settings.children else ())]

    def families(self) -> Iterator[int]:
        """The targets, and the processes that they and theirs have started, as far as these are traced."""
        for target in self._context.targets:
            yield from self._family(target.pid)
