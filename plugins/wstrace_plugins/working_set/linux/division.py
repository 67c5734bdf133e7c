"""Which of the watched cgroups others belong to, by their paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace_plugins.os.linux.cgroups.groups import ChosenCgroups
from wstrace_plugins.os.linux.cgroups.tree import Cgroups


class WatchedPaths:
    """The cgroups of some choices, those to come included: see wstrace.firing.Division.

    Args:
        cgroups: those of the machine. takes: each says whether the cgroup of a path is chosen.
    """

    def __init__(self, cgroups: Cgroups, takes: Sequence[Callable[[str], bool]]) -> None:
        self._cgroups, self._takes = cgroups, takes

    @classmethod
    def chosen(cls, patterns: Sequence[str], of: Context) -> WatchedPaths:
        """Those of these paths or globs; without any, those that are traced. Raises Unavailable, UsageError."""
        cgroups = Cgroups.mounted()
        if patterns:
            return cls(cgroups, [cgroups.taken_by(pattern) for pattern in patterns])
        return cls(cgroups, [group.takes for group in of.groups if isinstance(group, ChosenCgroups)])

    def of_cgroup(self, path: str) -> str:
        """The outermost one that is chosen of a cgroup and those that hold it."""
        outermost_first = ["/", *accumulate(f"/{name}" for name in path.split("/") if name)]
        return next((one for one in outermost_first if any(takes(one) for takes in self._takes)), "")

    def of_process(self, pid: int) -> str:
        """The same of the cgroup that a process is in now."""
        try:
            return self.of_cgroup(self._cgroups.of_process(pid).path)
        except Unavailable:
            return ""
