"""Groups of processes to trace: chosen cgroups, those to come included, or all processes of the machine."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from wstrace import cgroup_names as names
from wstrace.errors import Unavailable, UsageError
from wstrace.interfaces import Group, Usage
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.cgroups.tree import Cgroup, Cgroups, topmost, unit_name
from wstrace_plugins.os.linux.procfs import node_faults, usage

#: Of how many removed cgroups it is known that they were there.
_FORMER = 256


class Everything(Group):
    """All processes of the machine. cgroups: the cgroups that they are in."""

    def __init__(self, cgroups: Cgroups) -> None:
        self.name, self.cgroups = "all processes", cgroups
        self._before = Usage()
        self._in_all: Usage | None = None

    def processes(self) -> Sequence[int]:
        """The pids of all processes that have memory of their own."""
        found = []
        for pid in procfs.processes():
            with contextlib.suppress(Unavailable):
                if not procfs.stat(pid).kernel_thread:
                    found.append(pid)
        return found

    def begin(self) -> None:
        """From now on faults count."""
        self._before = node_faults()

    def usage(self) -> Usage:
        """Faults of all processes since begin(), by /proc/vmstat."""
        return self._in_all or _since(node_faults(), self._before)

    def end(self) -> None:
        """Keeps what usage() says."""
        self._in_all = self.usage()


class ChosenCgroups(Group):
    """Cgroups that are there now, none below another, and those of the same choice that are made later.

    name: what they were chosen by. cgroups: where they lie. found: those that are there now. takes: whether the cgroup
    of a path is one of them.
    """

    def __init__(self, name: str, cgroups: Cgroups, found: Iterable[Cgroup], takes: Callable[[str], bool]) -> None:
        self.name, self.cgroups, self.takes = name, cgroups, takes
        self.members = {one.id: one for one in topmost(found)}
        self._before: dict[int, _Counted] = {}
        self._former: deque[tuple[str, int]] = deque(maxlen=_FORMER)  # of those removed: path, memory cgroup
        self._in_all: Usage | None = None

    def processes(self) -> Sequence[int]:
        """The pids of the processes in all of them and below."""
        return list(dict.fromkeys(pid for one in self.members.values() for pid in _processes(one)))

    def begin(self, one: Cgroup) -> Usage:
        """Adds a cgroup whose faults count from now on; returns those that the system had counted before.

        What the memory cgroup of one removed before counts is not its own: it stays a little longer in a hierarchy of
        its own.
        """
        self.members[one.id] = one
        before = self._memory(one)
        if before[1] in {number for _, number in self._former}:
            before = _UNKNOWN
        self._before[one.id] = before
        return before[0]

    def had(self, path: str) -> bool:
        """Whether one of that path was removed, of the last few hundred."""
        return any(path == former for former, _ in self._former)

    def holds(self, one: Cgroup) -> bool:
        """Whether it is one of them, or lies below one."""
        return any(member.holds(one) for member in self.members.values())

    def now_at(self, number: int, path: str) -> Cgroup | None:
        """The cgroup of that id, if it is still there at that path."""
        try:
            one = self.cgroups.at(path)
        except Unavailable:
            return None
        return one if one.id == number else None

    def left(self) -> list[Cgroup]:
        """Those that have been removed, which are forgotten from now on."""
        gone = [one for one in self.members.values() if not one.exists()]
        for one in gone:
            del self.members[one.id]
            self._former.append((one.path, self._before.pop(one.id, _UNKNOWN)[1]))
        return gone

    def usage(self) -> Usage:
        """Faults since begin(), by memory.stat; nothing once one of them has been removed, or where memory has none."""
        if self._in_all is not None:
            return self._in_all
        if self._former:
            return Usage()
        each = [self._counted(one) for one in self.members.values()]
        return sum(each, Usage(0, 0)) if all(one.minor is not None for one in each) else Usage()

    def end(self) -> None:
        """Keeps what usage() says."""
        self._in_all = self.usage()

    def _counted(self, one: Cgroup) -> Usage:
        """The faults of a cgroup since begin()."""
        before, now = self._before.get(one.id, _UNKNOWN), self._memory(one)
        return _since(now[0], before[0]) if now[1] == before[1] else Usage()

    def _memory(self, one: Cgroup) -> _Counted:
        """What memory counts now; nothing known where another cgroup of the same path has taken its place."""
        try:
            files = self.cgroups.memory(one)
            number, stat = files.id, files.stat()
        except Unavailable:
            return _UNKNOWN
        if not one.exists() or files.id != number:
            return _UNKNOWN
        return usage(stat.get("pgfault"), stat.get("pgmajfault")), number


#: The faults that a memory cgroup has counted, and its inode; 0 = there is none.
_Counted = tuple[Usage, int]
_UNKNOWN: _Counted = Usage(), 0


def count_once(chosen: Sequence[ChosenCgroups]) -> None:
    """Leaves each cgroup to the first of the groups that chose it, and none below another to any of them."""
    left = {one.id for one in topmost(one for group in chosen for one in group.members.values())}
    for group in chosen:
        group.members = {number: one for number, one in group.members.items() if number in left}
        left -= group.members.keys()


def group(kind: str, name: str, cgroups: Cgroups | None = None) -> Group:
    """The group of Platform.group(), of these cgroups or those of the machine.

    Raises TargetExited: there is none of that name. UsageError: it is no name, or one of several. Unavailable: the
    cgroups are not mounted, or not for perf events.
    """
    cgroups = cgroups or Cgroups.mounted()
    if kind == "all":
        return Everything(cgroups)
    if kind == "cgroup":
        label, found, takes = name, cgroups.matching(name), cgroups.taken_by(name)
    elif kind == "container":
        found = [cgroups.container(name)]
        whole = names.container_id(found[0].path)
        label, takes = whole[:12], lambda path: names.own_container_id(path) == whole
    elif kind == "unit":
        label = unit_name(name)
        takes = lambda path: fnmatchcase(names.own_unit(path), label)  # noqa: E731 - as the others
        found = cgroups.taken(takes, f"no unit {label} has a cgroup", f"is it active? systemctl status {label}")
    else:
        raise UsageError(f"there is no kind of group {kind!r}", "one of cgroup, container, unit, all")
    return ChosenCgroups(f"{kind} {label}", cgroups, found, takes)


def _processes(one: Cgroup) -> list[int]:
    """The pids of a cgroup, none once it has been removed."""
    try:
        return one.processes()
    except Unavailable:  # it has been removed
        return []


def _since(now: Usage, before: Usage) -> Usage:
    """The faults between two counts; not known where one of them is not."""
    if now.minor is None or before.minor is None:
        return Usage()
    return Usage(max(now.minor - before.minor, 0), max((now.major or 0) - (before.major or 0), 0))
