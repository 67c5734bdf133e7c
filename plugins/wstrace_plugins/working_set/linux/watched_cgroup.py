"""The memory of a cgroup, watched: its size and limits, what the kernel counts there, how long it is waited for."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from pathlib import Path

from wstrace import cgroup_names as names
from wstrace.clock import now_ns
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace.firing import ENDED, KILLED, MOST_PIDS, Firing
from wstrace.interfaces import Context
from wstrace.text import base_name
from wstrace_plugins.os.linux.cgroups.groups import ChosenCgroups
from wstrace_plugins.os.linux.cgroups.memory import MemoryFiles
from wstrace_plugins.os.linux.cgroups.tree import Cgroup, Cgroups, topmost
from wstrace_plugins.working_set.conditions import REARM, Condition
from wstrace_plugins.working_set.watching import Armed, Sizes

#: From this part of the limit on the memory is looked at, and again for each such part of it that was gained since:
#: after a kill there is nothing to look at any more.
NEAR, _STEP = 0.9, 0.02
#: A reading is due when the limit could be near at this speed, which is that of touching fresh pages on one CPU.
_FASTEST = 2 << 30
_SOONEST, _LATEST = 0.01, 0.5
#: A limit may be changed at any time.
_LIMIT_SECONDS = 1.0
#: A kill is known so long after it at the latest.
_LEFT_NS = 5_000_000_000
#: The most cgroups that a message names.
_MOST_NAMED = 3
#: Looks are so many times their own CPU time apart.
_APART = 20


class WatchedCgroup:
    """A cgroup, with all below it.

    Args:
        cgroup: the cgroup. files: what tells of its memory.
        conditions: what is waited for. pause: see Armed.

    Attributes:
        gone: whether it has been removed. ending: set before the last reading.
        limit: its memory.max in bytes as it was read last; None = none of its own.

    Raises:
        Unavailable: its memory may not be read.
    """

    def __init__(self, cgroup: Cgroup, files: MemoryFiles, conditions: Sequence[Condition], pause: float) -> None:
        self.cgroup, self._files, self._conditions = cgroup, files, conditions
        self._armed, self._sizes = Armed(pause), Sizes()
        self._events = dict(files.events())
        for one in conditions:
            if one.kind == "oom_kill" and one.kind not in self._events:
                raise Unavailable(f"trigger {one.text}: the cgroup {cgroup.path} does not count it", "Linux 4.13 does")
            if one.kind == "psi" and files.pressure_file is None:
                raise Unavailable(f"trigger {one.text}: the cgroup {cgroup.path} has no memory.pressure",
                                  "it needs cgroup v2 and a kernel with CONFIG_PSI, booted without psi=0")  # fmt: skip
        self.limit = files.max()
        self._limit_due = self._due = self._look_due = 0.0
        self._looked_at = 0  # the size then, in bytes
        self._looks = ((0, 0), (0, 0))  # the last two: when, in ns, and the resident bytes that were seen
        self._killed_at = self._kills = 0
        self.name = cgroup.path
        self._seen: dict[int, None] = {}  # processes, the newest last
        self._pressure = Pressure(files.pressure_file, [one for one in conditions if one.kind == "psi"])
        self._group = False  # whether the last kill was of all processes
        self.ending = self.gone = False

    @property
    def seconds(self) -> float:
        """When the next reading is due at the latest."""
        return max(self._due - time.monotonic(), _SOONEST)

    def pids(self) -> Sequence[int]:
        """The processes that are in it now."""
        try:
            found = self.cgroup.processes()
        except Unavailable:
            return ()
        for pid in found:
            self._seen.pop(pid, None)
            self._seen[pid] = None
        for pid in list(self._seen)[:-MOST_PIDS]:
            del self._seen[pid]
        return found

    def members(self) -> tuple[int, ...]:
        """The processes that were seen in it, the newest first, those that have ended included."""
        return tuple(reversed(self._seen))

    def read(self) -> list[Condition]:
        """Reads what is due. A kill is one that the kernel has counted since the reading before."""
        now = time.monotonic()
        pressed = self._pressure.come_true()
        if self.gone or (now < self._due and not pressed and not self.ending):
            return []
        try:
            events, size = self._files.events(), self._files.current()
            if now >= self._limit_due:
                self.limit, self._limit_due = self._files.max(), now + _LIMIT_SECONDS
                self.pids()
        except Unavailable:  # it has been removed, and with it the count of what was killed just before
            self.gone = True
            return [one for one in self._conditions if one.kind == "end"]
        before, self._events = self._events, dict(events)
        rose = {name for name, n in events.items() if n > before.get(name, 0)}
        if "oom_kill" in rose:
            full = self.limit if "max" in rose or "oom" in rose else None
            self._killed_at = full or self._sizes.newest[1]
            self._kills = events["oom_kill"] - before.get("oom_kill", 0)
            self._group = "oom_group_kill" in rose
        self._sizes.add(now_ns(), size)
        room = NEAR * self.limit - size if self.limit else float("inf")
        self._due = now + min(max(room / _FASTEST, _SOONEST), _LATEST)
        return [one for one in self._conditions if self._true(one, rose, pressed)]

    def _true(self, one: Condition, rose: set[str], pressed: set[Condition]) -> bool:
        size = self._sizes.newest[1]
        if one.kind == "oom_kill":
            return "oom_kill" in rose
        if one.kind == "psi":
            return one in pressed and self._armed.may(one)
        if one.kind == "rss":
            return self._armed.rises(one, size, one.amount)
        if one.kind == "growth":
            return self._armed.grown(one, self._sizes)
        return False

    def look_is_due(self) -> bool:
        """Whether its memory is to be looked at although nothing fires: a kill is near."""
        size = self._sizes.newest[1]
        return (not self.gone and self.limit is not None and size >= NEAR * self.limit
                and size >= self._looked_at + _STEP * self.limit and time.monotonic() >= self._look_due)  # fmt: skip

    def looked(self, time_ns: int, cpu_seconds: float, n_bytes: int = 0) -> None:
        """Notes a look at its memory that ended then, and how much was seen."""
        self._looks, self._looked_at = (self._looks[1], (time_ns, n_bytes)), self._sizes.newest[1]
        self._look_due = time.monotonic() + _APART * cpu_seconds

    def _look_before_a_kill(self) -> int:
        """When what was killed was looked at last. Before its kill is known, there may be a look at what it has left.

        As looks are made when the size has risen, one that saw clearly less than that just before came behind a kill.
        """
        (before_ns, before), (last_ns, last) = self._looks
        return before_ns if last < REARM * before and last_ns - before_ns < _LEFT_NS else last_ns

    def firing(self, condition: Condition, time_ns: int, pids: tuple[int, ...]) -> Firing:
        """Describes a firing."""
        size, what, look = self._sizes.newest[1], condition.text, self._looks[1][0]
        if condition.how in (KILLED, ENDED):
            look = self._look_before_a_kill()
        if condition.how == KILLED:
            size = self._killed_at
            # memory.oom.group: the kernel counts the first one twice (oom_kill_process() in mm/oom_kill.c, Linux 6.12)
            several = f" ({self._kills} kills)" if self._kills > 1 else ""
            what += " (the whole group)" if self._group else several
        return Firing(time_ns, what, name_of(self.cgroup.path), condition.how, size, self.cgroup.path, pids,
                      look, self._sizes.all())  # fmt: skip

    def close(self) -> None:
        """Closes the descriptors of its pressure."""
        self._pressure.close()


def watched(patterns: Sequence[str], of: Context, conditions: Sequence[Condition], pause: float) -> list[WatchedCgroup]:
    """The cgroups of these paths or globs; without any, those that are traced, or whose memory the targets' is.

    Raises:
        Unavailable: there is none, or none that tells of its memory. UsageError: all processes are traced.
    """
    cgroups = Cgroups.mounted()
    if patterns or of.groups:
        chosen = (one for pattern in patterns for one in cgroups.matching(pattern)) if patterns else _traced(of)
        found = {one.path: one for one in chosen}.values()
        pairs, refused = [], None
        for one in found:
            try:
                pairs.append((one, cgroups.memory(one)))
            except Unavailable as why:  # one that only groups others, or has just gone
                refused = why
        if refused is not None and not pairs:
            raise refused
    else:
        pids = [target.pid for target in of.targets]
        pairs = list({one.path: (one, files) for one, files in map(cgroups.memory_of_process, pids)}.values())
    cgroups_: list[WatchedCgroup] = []
    try:
        for one, files in pairs:
            try:
                cgroups_.append(WatchedCgroup(one, files, conditions, pause))
            except Unavailable:
                if one.exists():
                    raise
    except Unavailable:
        for each in cgroups_:
            each.close()
        raise
    if pairs and not cgroups_:
        raise TargetExited(f"the cgroup {pairs[0][0].path} has been removed")
    return cgroups_


def _traced(context: Context) -> list[Cgroup]:
    """The cgroups that are traced now."""
    chosen = [group for group in context.groups if isinstance(group, ChosenCgroups)]
    if len(chosen) < len(context.groups):
        raise UsageError("triggers: all processes together have no memory cgroup to watch",
                         "name some: -s 'triggers:cgroups=/system.slice/*'")  # fmt: skip
    return topmost(one for group in chosen for one in list(group.members.values()))


class Pressure:
    """Triggers of the kernel on how long some of a cgroup has waited for memory (psi.rst), one for each condition.

    Raises:
        Unavailable: the kernel refuses one.
    """

    def __init__(self, path: Path | None, conditions: Sequence[Condition]) -> None:
        self._poll = select.poll()
        self._conditions: dict[int, Condition] = {}  # by descriptor
        for one in conditions:
            try:
                fd = os.open(path or "", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                self._conditions[fd] = one
                os.write(fd, f"some {int(one.amount * 1e6)} {int(one.seconds * 1e6)}\0".encode())
            except OSError as error:
                self.close()
                raise Unavailable(
                    f"trigger {one.text}: the kernel refuses it at {path}: {error.strerror}",
                    "give a stall within 0.5 to 10 s; without CAP_SYS_RESOURCE within a multiple of 2 s: psi=300ms/2s",
                ) from None
            self._poll.register(fd, select.POLLPRI)

    def come_true(self) -> set[Condition]:
        """The conditions that have come true since the last call."""
        # another event, as when a cgroup is removed, is no pressure
        return {self._conditions[fd] for fd, what in self._poll.poll(0) if what & select.POLLPRI}

    def close(self) -> None:
        """Closes the descriptors."""
        for fd in self._conditions:
            os.close(fd)
        self._conditions, self._poll = {}, select.poll()


def name_of(path: str) -> str:
    """How a cgroup is called in a line: the short id of its container, else its last name."""
    container = names.container_id(path)
    return container[:12] if container else base_name(path.rstrip("/")) or "/"
