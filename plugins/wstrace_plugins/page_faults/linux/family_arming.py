"""Traces processes that have more threads than there are descriptors for: by events of all processes, and a filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux.arming import Arming
from wstrace_plugins.page_faults.linux.descriptors import Descriptors
from wstrace_plugins.page_faults.linux.events import Settings
from wstrace_plugins.page_faults.linux.levels import everywhere_refused
from wstrace_plugins.page_faults.linux.whom import family

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FamilyArming(Arming):
    """Targets whose faults are chosen from those of all processes, by their pid; the arguments are those of Arming.

    It costs what the faults of others cost, a few descriptors a CPU, and no thread is missed.
    """

    def arm(self, since: int) -> None:
        """Opens the events of all processes, then reads those of the targets and their children."""
        self._side.lazily(family, lambda record: None)
        try:
            self._events.arm_everywhere(self._settings)
        except OSError as error:
            raise Unavailable(f"events of all processes are refused: {error.strerror}") from None
        targets, known = [target.pid for target in self._context.targets], set[int]()
        while fresh := [pid for pid in self._family(*targets) if pid not in known]:
            for pid in fresh:
                known.add(pid)
                self._python.look(pid)
                try:
                    self._side.seen(pid, since)
                except TargetExited:
                    if pid in targets:
                        raise

    def again(self, pid: int) -> None:
        """Nothing: the kernel takes no events off a process here."""

    def observers(self, columns: dict[str, NDArray[Any]]) -> NDArray[np.bool_] | None:
        """Which faults are of the tracer's own threads, which have events as all others."""
        return np.isin(columns["tid"], list(self._context.own_threads()))

    def ours(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Those of the processes that are traced, or that have just ended."""
        mine = np.isin(columns["pid"], [*self._side.live, *self._side.ended])
        if mine.all():
            return columns
        self.left_out_of(columns, ~mine)
        return {name: column[mine] for name, column in columns.items()}


def arming_of(
    context: Context, settings: Settings, descriptors: Descriptors, cpus: Sequence[int]
) -> tuple[type[Arming], Settings]:
    """How the events of a trace are opened: of groups, on each thread, or, for too many threads, on all processes."""
    if context.groups:
        from wstrace_plugins.page_faults.linux.group_arming import GroupArming  # with all that reads cgroups

        return GroupArming, settings._replace(everywhere=True, cgroups=True)
    there = [target.pid for target in context.targets if not target.launched]
    children = procfs.descendants(*there) if there and settings.children else ()
    threads = sum(map(_threads, (*there, *children)))
    bare = settings._replace(tracepoints=())
    if descriptors.room(threads * len(cpus) * bare.events) or not settings.children or everywhere_refused(settings):
        return Arming, settings
    return FamilyArming, settings._replace(everywhere=True)


def _threads(pid: int) -> int:
    try:
        return len(procfs.threads(pid))
    except Unavailable:
        return 0
