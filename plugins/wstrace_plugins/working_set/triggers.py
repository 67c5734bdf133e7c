"""The source `triggers`: snapshots of processes when a condition on their memory comes true, for flight recorders."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.errors import Unavailable, UsageError
from wstrace.firing import KILLED
from wstrace.interfaces import Context
from wstrace.schema import DTYPES, MARK
from wstrace.text import base_name
from wstrace_plugins.working_set.backend import backend
from wstrace_plugins.working_set.process_tree import SnapshotSource, traced
from wstrace_plugins.working_set.watching import Condition, Watched, parse_conditions

#: Readings of the sizes are so many times their own CPU time apart.
_APART = 100
#: Cgroups that match are searched for so often.
_NEW_SECONDS = 5.0


class WatchedProcesses(Watched):
    """The targets of a session, with their children where these are traced."""

    def __init__(self, context: Context, conditions: Sequence[Condition], pause: float) -> None:
        names = list(dict.fromkeys(base_name(target.name) for target in context.targets))
        who = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
        super().__init__("", who, [one for one in conditions if not one.of_cgroup], pause)
        self._context, self._backend = context, backend()
        self._now: Sequence[int] = ()

    def pids(self) -> Sequence[int]:
        """The targets and their children."""
        self._now = traced(self._context, self._backend)
        return self._now

    def happened(self) -> set[Condition]:
        """`end`, once, when the targets have ended."""
        if not self.ending or any(target.wait(0) is None for target in self._context.targets):
            return set()
        return {one for one in self.conditions if one.kind == "end" and one not in self._fired and self.may(one)}

    def size(self) -> int:
        """The sum of the resident sizes of what there was within the last second."""
        return sum(self._backend.size(pid)[0] for pid in self._now)


class TriggersSource(SnapshotSource):
    """Runs of resident pages of processes or cgroups whenever a trigger fires, and a mark with its text.

    A trigger fires when its condition comes true, and again when that came true again: sizes after they were below
    nine tenths of the limit, a growth when as much has been gained since; and none but `oom_kill` and `end` within
    `pause`. The exporter `flight_recorder` keeps the minutes before a firing.

    Of cgroups snapshots are also taken when they come near their limit, from 90 % of it on with each 2 % more, as after
    a kill there is no memory left. Linux only.

    Args:
        on: the triggers. Of the targets and their children together: `rss=400MiB`, the resident size;
            `growth=100MiB/30s`; `end`. Of the cgroups: `psi=300ms/2s`, some of it waited so long for
            memory; `oom_kill`.
        cgroups: paths or globs of the cgroups, of which all triggers are then; none = those that are traced, or that
            the targets are in.
        interval: seconds between two readings of the sizes, more where they take long.
        pause: seconds for which a trigger that has fired does not fire again.
    """

    name = "triggers"
    follows = True
    streams = (*SnapshotSource.streams, MARK)

    def __init__(
        self,
        *,
        on: tuple[str, ...] = ("end",),
        cgroups: tuple[str, ...] = (),
        interval: float = 0.1,
        pause: float = 60.0,
    ) -> None:
        super().__init__()
        self._conditions = parse_conditions(on)
        if interval <= 0 or pause < 0:
            raise UsageError("triggers: interval is above 0, pause is 0 or more")
        self._patterns, self._interval, self._pause = cgroups, interval, pause
        self._due = self._new_due = 0.0
        self._watched: dict[str, Watched] = {}

    def start(self, context: Context) -> None:
        """Checks that the targets, and the memory of the cgroups, can be read."""
        super().start(context)
        self._of_paths = bool(self._patterns or context.groups)
        if not context.targets and not self._of_paths:
            raise UsageError("triggers: there is nothing to watch", "name cgroups=/PATH or a glob, or attach a process")
        of_cgroups = [one for one in self._conditions if self._of_paths or one.of_cgroup]
        if context.targets and len(of_cgroups) < len(self._conditions):
            self._watched[""] = WatchedProcesses(context, self._conditions, self._pause)
        self._of_cgroups = of_cgroups
        if of_cgroups:
            self._watch(self._backend.watched_cgroups(self._patterns, context, of_cgroups, self._pause))
        self._new_due = time.monotonic() + _NEW_SECONDS

    def _watch(self, found: Sequence[Watched]) -> None:
        for one in found:
            if one.name in self._watched and not self._watched[one.name].gone:
                one.close()
                continue
            self._watched[one.name] = one

    def drain(self, timeout: float) -> Iterable[Batch]:
        """The snapshots of what fires."""
        until = time.monotonic() + timeout
        if (wait := min(self._due, until) - time.monotonic()) > 0:
            time.sleep(wait)
        if time.monotonic() < self._due:
            return
        began = time.thread_time()
        yield from self._read()
        # In CPU time: on a busy machine a reading waits for a CPU, which is not to push the next one away.
        self._due = time.monotonic() + max(self._interval, _APART * (time.thread_time() - began))
        if self._of_paths and time.monotonic() >= self._new_due:
            with contextlib.suppress(Unavailable):
                self._watch(self._backend.watched_cgroups(self._patterns, self._context, self._of_cgroups, self._pause))
            self._new_due = time.monotonic() + _NEW_SECONDS

    def stop(self) -> Iterable[Batch]:
        """The snapshots of what fires at the end."""
        for one in self._watched.values():
            one.ending = True
        yield from self._read()
        for one in self._watched.values():
            one.close()

    def _read(self) -> Iterator[Batch]:
        """Reads all sizes; the snapshots and marks of what fires."""
        fired = [(one, condition) for one in self._watched.values() for condition in one.read()]
        firing = {one.name for one, _ in fired}
        near = [one for one in self._watched.values() if one.name not in firing and one.is_near()]
        for one in near:
            yield from self._taken(one, [])
        for one, condition in fired:
            yield from self._fire(one, condition)
        for name in [name for name, one in self._watched.items() if one.gone]:
            self._watched.pop(name).close()

    def _taken(self, one: Watched, read: list[int]) -> Iterator[Batch]:
        """Snapshots of its processes; adds to `read` which they are."""
        cost, seen = 0.0, 0
        for taken in self._snapshots(one.pids()):
            cost += taken.cost_seconds
            seen += taken.total_bytes
            read.append(taken.pid)
            yield from taken.batches(self._number, self.name)
        if read:
            one.note_snapshot(now_ns(), cost, seen)

    def _fire(self, one: Watched, condition: Condition) -> Iterator[Batch]:
        """Takes snapshots, but not of what a kill has left, and marks the moment behind these."""
        read: list[int] = []
        if condition.how != KILLED:
            yield from self._taken(one, read)
        # one alone is all that is recorded, also what came and went between two readings of its processes
        firing = one.firing(condition, one.members() if len(self._watched) > 1 else ())
        self._context.firings.append(firing)
        pid = read[0] if read else os.getpid()
        values = {"time_ns": firing.time_ns, "pid": pid, "tid": pid, "text": self._context.strings.code(firing.what)}
        columns = {c.name: np.array([values[c.name]], DTYPES[c.type]) for c in MARK.columns}
        yield Batch(MARK, columns, strings=self._context.strings, source=self.name)
