"""The memory of a cgroup, watched: its size and limit, what the kernel counts there, how long it is waited for."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence

from wstrace import cgroup_names as names
from wstrace.errors import Unavailable, UsageError
from wstrace.firing import ENDED, KILLED, Firing
from wstrace.interfaces import Context
from wstrace.text import base_name
from wstrace_plugins.os.linux.cgroups.groups import ChosenCgroups
from wstrace_plugins.os.linux.cgroups.memory import MemoryFiles
from wstrace_plugins.os.linux.cgroups.tree import Cgroup, Cgroups, topmost
from wstrace_plugins.working_set.watching import REARM, Condition, Watched

#: From this part of the limit on snapshots are taken, and again for each such part of it that was gained since: after
#: a kill there is no memory left.
NEAR, _STEP = 0.9, 0.02


class WatchedCgroup(Watched):
    """A cgroup, with all below it.

    files: what tells of its memory. Raises Unavailable: its memory may not be read, or does not tell what is waited
    for.
    """

    def __init__(self, cgroup: Cgroup, files: MemoryFiles, conditions: Sequence[Condition], pause: float) -> None:
        super().__init__(cgroup.path, name_of(cgroup.path), conditions, pause)
        self._cgroup, self._files = cgroup, files
        self._events, self._limit = dict(files.events()), files.max()
        self._seen_at = 0  # the size at the last snapshot, in bytes
        self._killed = (0, "")  # the size at the last kill, and what is said of it
        self._poll = select.poll()
        self._pressure: dict[int, Condition] = {}  # triggers of the kernel (psi.rst), by descriptor
        for one in conditions:
            if one.kind == "oom_kill" and one.kind not in self._events:
                raise Unavailable(f"trigger {one.text}: the cgroup {cgroup.path} does not count it", "Linux 4.13 does")
            if one.kind == "psi":
                self._wait_for(one)

    def _wait_for(self, one: Condition) -> None:
        if (path := self._files.pressure_file) is None:
            raise Unavailable(f"trigger {one.text}: the cgroup {self.name} has no memory.pressure",
                              "it needs cgroup v2 and a kernel with CONFIG_PSI, booted without psi=0")  # fmt: skip
        try:
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self._pressure[fd] = one
            os.write(fd, f"some {int(one.amount * 1e6)} {int(one.seconds * 1e6)}\0".encode())
        except OSError as error:
            self.close()
            raise Unavailable(
                f"trigger {one.text}: the kernel refuses it at {path}: {error.strerror}",
                "give a stall within 0.5 to 10 s; without CAP_SYS_RESOURCE within a multiple of 2 s: psi=300ms/2s",
            ) from None
        self._poll.register(fd, select.POLLPRI)

    def pids(self) -> Sequence[int]:
        """The processes that are in it now."""
        try:
            return self._cgroup.processes()
        except Unavailable:
            return ()

    def happened(self) -> set[Condition]:
        """Kills that the kernel has counted since the last call, pressure, and its removal."""
        # another event, as when a cgroup is removed, is no pressure
        found = {self._pressure[fd] for fd, what in self._poll.poll(0) if what & select.POLLPRI}
        found = {one for one in found if self.may(one)}
        before = self._events
        try:
            self._events, self._limit = dict(self._files.events()), self._files.max()
        except Unavailable:  # it has been removed, and with it the count of what was killed just before
            self.gone = True
            return {one for one in self.conditions if one.kind == "end"}
        rose = {name: n - before.get(name, 0) for name, n in self._events.items() if n > before.get(name, 0)}
        if kills := rose.get("oom_kill"):
            full = self._limit if "max" in rose or "oom" in rose else None
            # memory.oom.group: the kernel counts the first one twice (oom_kill_process() in mm/oom_kill.c, Linux 6.12)
            several = f" ({kills} kills)" if kills > 1 else ""
            self._killed = full or self.newest[1], " (the whole group)" if "oom_group_kill" in rose else several
            found |= {one for one in self.conditions if one.kind == "oom_kill"}
        return found

    def size(self) -> int:
        """What is accounted to it, in bytes."""
        try:
            return self._files.current()
        except Unavailable:
            return 0

    def is_near(self) -> bool:
        """Whether a kill is near."""
        size = self.newest[1]
        self._seen_at = min(self._seen_at, size)
        return (not self.gone and self._limit is not None and size >= NEAR * self._limit
                and size >= self._seen_at + _STEP * self._limit and time.monotonic() >= self.snapshot_due)  # fmt: skip

    def note_snapshot(self, time_ns: int, cpu_seconds: float, n_bytes: int = 0) -> None:
        """Notes a snapshot of its memory that ended then, and how much was seen."""
        super().note_snapshot(time_ns, cpu_seconds, n_bytes)
        self._seen_at = self.newest[1]

    def firing(self, condition: Condition, pids: tuple[int, ...]) -> Firing:
        """Describes a firing now; of a kill by the last snapshot that saw what was killed."""
        firing = super().firing(condition, pids)
        (before_ns, before), (_, last) = self.snapshots
        # snapshots are taken when the size has risen: one that saw clearly less came behind a kill
        if condition.how in (KILLED, ENDED) and last < REARM * before:
            firing = firing._replace(last_look_ns=before_ns)
        if condition.how == KILLED:
            firing = firing._replace(n_bytes=self._killed[0], what=condition.text + self._killed[1])
        return firing

    def close(self) -> None:
        """Closes the descriptors of its pressure."""
        for fd in self._pressure:
            os.close(fd)
        self._pressure, self._poll = {}, select.poll()


def watched(patterns: Sequence[str], of: Context, conditions: Sequence[Condition], pause: float) -> list[WatchedCgroup]:
    """The cgroups of these paths or globs; without any, those that are traced or that account for the targets' memory.

    Those that say nothing of their memory are left out.
    Raises Unavailable: there is none that tells of its memory. UsageError: all processes are traced.
    """
    cgroups = Cgroups.mounted()
    chosen: Sequence[Cgroup | int] = [target.pid for target in of.targets]
    if patterns:
        chosen = [one for pattern in patterns for one in cgroups.matching(pattern)]
    elif of.groups:
        chosen = _traced(of)
    found: dict[str, WatchedCgroup] = {}
    refused = None
    for one in chosen:
        try:
            cgroup, files = cgroups.memory_of_process(one) if isinstance(one, int) else (one, cgroups.memory(one))
            if cgroup.path not in found:
                found[cgroup.path] = WatchedCgroup(cgroup, files, conditions, pause)
        except Unavailable as why:
            refused = why
    if refused is not None and not found:
        raise refused
    return list(found.values())


def _traced(context: Context) -> list[Cgroup]:
    """The cgroups that are traced now."""
    chosen = [group for group in context.groups if isinstance(group, ChosenCgroups)]
    if len(chosen) < len(context.groups):
        raise UsageError("triggers: all processes together have no memory cgroup to watch",
                         "name some: -s 'triggers:cgroups=/system.slice/*'")  # fmt: skip
    return topmost(one for group in chosen for one in list(group.members.values()))


def name_of(path: str) -> str:
    """How a cgroup is called in a line: the short id of its container, else its last name."""
    container = names.container_id(path)
    return container[:12] if container else base_name(path.rstrip("/")) or "/"
