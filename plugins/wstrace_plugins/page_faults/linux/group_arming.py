"""Opens the events of groups: on each CPU for the processes of a cgroup, or for all, whatever threads these have.

Nothing is opened on threads, so none is missed: what a process starts, and what joins the cgroup, is traced at once.
Processes are met when they fault or fork first; only then are their mappings kept.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import struct
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import numbered
from wstrace.batch import Columns
from wstrace.clock import now_ns
from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context
from wstrace_plugins.os.linux.cgroups.groups import ChosenCgroups, Everything, count_once
from wstrace_plugins.os.linux.cgroups.tree import Cgroup, Cgroups
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.arming import Arming, met
from wstrace_plugins.page_faults.linux.events import PerfEvents, Settings, no_groups
from wstrace_plugins.page_faults.linux.python_stacks.capture import PythonStacks
from wstrace_plugins.page_faults.linux.python_stacks.interpreters import is_named, program_of
from wstrace_plugins.page_faults.linux.side_band import SideBand

#: Between two looks at which processes the groups have: at least so long, and so many times what the last one took.
_APART_SECONDS, _SHARE = 1.0, 1000
#: How long the last cgroup may be away before the trace ends: a service that is restarted gets one of the same name.
_COMES_BACK_SECONDS = 3.0
#: Pythons of which it is known which one they are before the events are opened, at 0.3 to 0.9 ms each: of any others
#: the first faults have no lines.
_MOST_LOOKS = 512
BEFORE_ARMED, MISSED = "before_armed", "missed_cgroups"


class GroupArming(Arming):
    """The groups of a trace, as its events are opened on them; the arguments are those of Arming."""

    def __init__(
        self, context: Context, settings: Settings, events: PerfEvents, side: SideBand, python: PythonStacks
    ) -> None:
        super().__init__(context, settings, events, side, python)
        self._chosen = [group for group in context.groups if isinstance(group, ChosenCgroups)]
        self._all = [group for group in context.groups if isinstance(group, Everything)]
        self._names = CgroupIds(context, Cgroups.mounted())
        self._new: list[tuple[int, str]] = []
        self._due, self._gone_since = 0.0, 0.0
        self._before = 0
        side.lazily(functools.partial(met, look=python.look), self._named)

    def arm(self, since: int) -> None:
        """Opens the events of all groups.

        Raises Unavailable: the kernel refuses them, or there are no more descriptors; TargetExited: all of them have
        been removed.
        """
        self._python.foresee()
        processes = itertools.chain.from_iterable(group.processes() for group in (*self._chosen, *self._all))
        for pid in itertools.islice((pid for pid in processes if is_named(program_of(pid))), _MOST_LOOKS):
            self._python.look(pid)
        count_once(self._chosen)
        if self._all:  # what they hold is held
            for chosen in self._chosen:
                chosen.members.clear()
        try:
            self._events.watch_cgroups()
            if self._all:
                self._events.arm_everywhere(self._settings)
            else:
                members = [one for chosen in self._chosen for one in chosen.members.values()]
                if not sum(map(self._opens, members)):
                    raise TargetExited(f"the cgroup {members[0].path} has been removed, and so has each other one")
                self._forget_removed()
        except OSError as error:
            raise no_groups(error) from None
        for group in self._all:
            group.begin()
        for chosen in self._chosen:
            for one in list(chosen.members.values()):
                chosen.begin(one)
        self._due = time.monotonic() + _APART_SECONDS
        self._context.info.extra["cgroups"] = [one.path for group in self._chosen for one in group.members.values()]

    def _named(self, record: bytes) -> None:
        self._new.append(self._names.named(record))

    def look(self) -> None:
        """Opens events on new cgroups of the same choice, and forgets processes that have left; often called."""
        new, self._new = self._new, []
        joining = [] if self._all else [(group, *one) for one in new for group in self._chosen if group.takes(one[1])]
        if time.monotonic() < self._due and not joining:
            return
        began = time.monotonic()
        self._look_at_members()  # first, as a cgroup takes the name of one that has left
        for group, number, path in joining:
            if (one := group.now_at(number, path)) is None or not self._join(group, one):
                self._context.ledger.add(MISSED, 1)
        took = time.monotonic() - began
        self._due = began + max(_APART_SECONDS, _SHARE * took)

    def _opens(self, one: Cgroup) -> bool:
        """Opens the events of a cgroup; False: it has been removed since it was chosen. Raises OSError, Unavailable."""
        try:
            self._events.arm_everywhere(self._settings, one.open())
        except (TargetExited, FileNotFoundError):
            return False
        return True

    def _join(self, group: ChosenCgroups, one: Cgroup) -> bool:
        """Traces a cgroup that was just made. What was faulted in it until now is lost, and counted.

        Returns false when it has gone already.
        """
        if any(other.holds(one) for other in self._chosen):
            return True
        try:
            if not self._opens(one):
                return False
        except (OSError, Unavailable) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self._context.info.note(f"the cgroup {one.path}, made during the trace, is not traced: {why}")
            return True
        self._before += group.begin(one).faults or 0
        self._context.ledger.set(BEFORE_ARMED, self._before)
        again = " again" if group.had(one.path) else ""
        self._context.info.note(f"the cgroup {one.path} was made{again} during the trace, and is traced since then")
        return True

    def _forget_removed(self) -> None:
        for group in self._chosen:
            for one in group.left():
                self._context.info.note(f"the cgroup {one.path} was removed during the trace")

    def _look_at_members(self) -> None:
        self._forget_removed()
        if any(group.members for group in self._chosen) or self._all:
            self._gone_since = 0.0
        else:
            self._gone_since = self._gone_since or time.monotonic()
        inside = set() if self._all else {pid for group in self._chosen for pid in group.processes()}
        for pid in [pid for pid in self._side.live if (pid not in inside if not self._all else not _lives(pid))]:
            self._side.forget(pid)

    @property
    def gone(self) -> bool:
        """Whether no cgroup is left, for long enough that none comes back."""
        return bool(self._gone_since) and time.monotonic() - self._gone_since > _COMES_BACK_SECONDS

    def families(self) -> Iterator[int]:
        """None: after a loss in the side band, each process is met again when it faults next."""
        for pid in list(self._side.live):
            self._side.forget(pid)
        return iter(())

    def record_one_in(self, every: int) -> bool:
        """Changes the rate of all events: that is known here, where none is inherited."""
        every *= self._settings.period
        with contextlib.suppress(OSError):
            self._events.record_one_in(every)
            self.rate.now_is(every, now_ns())
            return True
        return False

    def observers(self, columns: Columns) -> NDArray[np.bool_] | None:
        """Which faults are the tracer's own: all of its process."""
        return np.asarray(columns["pid"] == os.getpid())

    def with_groups(self, columns: Columns) -> Columns:
        """The columns of faults with their cgroup's path. A process of another pid namespace has the pid 0."""
        columns = self._names.with_paths(columns)
        if self._names.unknown:
            self._context.ledger.set("unresolved", self._names.unknown, "cgroup")
        return columns


def _lives(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")  # noqa: PTH110 - it is one of many


_ID = struct.Struct("<Q")
_AT_ID, _AT_PATH = 8, 16
_SAMPLE_ID = 16  # TID and TIME at the end of the record
#: The most cgroups whose names are kept, and how long no further walk looks for an id that the last one did not find.
_MOST, _WALKS_APART_SECONDS = 1 << 16, 1.0


class CgroupIds:
    """Names the cgroups of faults. cgroups: those of the machine."""

    def __init__(self, context: Context, cgroups: Cgroups) -> None:
        self._context, self._cgroups = context, cgroups
        self._codes: dict[int, int] = {}
        self._walked = 0.0
        self.unknown = 0  # faults whose cgroup has no known path

    def named(self, record: bytes) -> tuple[int, str]:
        """The id and path of a PERF_RECORD_CGROUP, which are known from now on."""
        number = _ID.unpack_from(record, _AT_ID)[0]
        path = os.fsdecode(record[_AT_PATH:-_SAMPLE_ID].partition(b"\0")[0])
        self._learn(number, path)
        return number, path

    def with_paths(self, columns: Columns) -> Columns:
        """The columns of faults with `cgroup`, codes of paths, in place of the ids; 0 = not known."""
        ids = columns.pop(perf.CGROUP.column, None)
        if ids is None:
            return columns
        numbers, which = numbered(ids)
        if not self._codes.keys() >= set(numbers.tolist()):
            self._walk()
        found = np.array([self._codes.get(number, 0) for number in numbers.tolist()], "<u4")[which]
        self.unknown += int(np.count_nonzero(found == 0))
        return {**columns, "cgroup": found}

    def _walk(self) -> None:
        """Reads the paths of all cgroups that are there, not too often."""
        if time.monotonic() < self._walked:
            return
        for one in self._cgroups.all():
            self._learn(one.id, one.path)
        self._walked = time.monotonic() + _WALKS_APART_SECONDS

    def _learn(self, number: int, path: str) -> None:
        if len(self._codes) >= _MOST:
            self._codes.clear()
        self._codes[number] = self._context.strings.code(path)
