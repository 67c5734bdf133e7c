"""The processes that are traced, watched: the sum of their resident sizes, and their end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from wstrace.clock import now_ns
from wstrace.firing import Firing
from wstrace.interfaces import Context
from wstrace.text import base_name
from wstrace_plugins.working_set.backend import backend
from wstrace_plugins.working_set.conditions import Condition
from wstrace_plugins.working_set.process_tree import resident_bytes, traced
from wstrace_plugins.working_set.watching import Armed, Sizes

#: Children are looked for so often, as that reads what all processes descend from.
_CHILDREN_SECONDS = 1.0


class WatchedProcesses:
    """The targets of a session, with their children where these are traced.

    Args:
        context: the session's. conditions: those that are of processes. pause: see Armed.
    """

    def __init__(self, context: Context, conditions: Sequence[Condition], pause: float) -> None:
        self._context, self._backend = context, backend()
        self._conditions = [one for one in conditions if not one.of_cgroup]
        self._sizes, self._armed = Sizes(), Armed(pause)
        self._pids: list[int] = []
        self._children_due = 0.0
        self.name = ""
        self._ended = self.ending = self.gone = False
        self._last_look = 0
        self.seconds = float("inf")

    def pids(self) -> list[int]:
        """The targets and, as of the last second, their children."""
        if time.monotonic() >= self._children_due:
            self._pids = traced(self._context, self._backend)
            self._children_due = time.monotonic() + _CHILDREN_SECONDS
        return self._pids

    def read(self) -> list[Condition]:
        """Reads the sum of the resident sizes. At the end of all it stays what it was."""
        if n_bytes := sum(map(self._resident, self.pids())):
            self._sizes.add(now_ns(), n_bytes)
        return [one for one in self._conditions if self._true(one)]

    def _true(self, one: Condition) -> bool:
        if one.kind == "rss":
            return self._armed.rises(one, self._sizes.newest[1], one.amount)
        if one.kind == "growth":
            return self._armed.grown(one, self._sizes)
        if self._ended or not self.ending or any(target.wait(0) is None for target in self._context.targets):
            return False
        self._ended = True
        return True

    def look_is_due(self) -> bool:
        """Never: they are looked at when something fires."""
        return False

    def looked(self, time_ns: int, cpu_seconds: float, n_bytes: int = 0) -> None:
        """Notes a look."""
        self._last_look = time_ns

    def close(self) -> None:
        """Does nothing."""

    def members(self) -> tuple[int, ...]:
        """The targets and their children as of the last second."""
        return tuple(self.pids())

    def firing(self, condition: Condition, time_ns: int, pids: tuple[int, ...]) -> Firing:
        """Describes a firing."""
        names = list(dict.fromkeys(base_name(target.name) for target in self._context.targets))
        who = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
        return Firing(time_ns, condition.text, who, condition.how, self._sizes.newest[1], "", pids, self._last_look,
                      self._sizes.all())  # fmt: skip

    def _resident(self, pid: int) -> int:
        return resident_bytes(self._backend, pid)
