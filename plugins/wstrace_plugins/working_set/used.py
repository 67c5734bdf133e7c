"""What a process uses of its memory in a time: by the referenced bits of its pages, or by what returns when emptied."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from wstrace.errors import TargetExited
from wstrace.interfaces import Target
from wstrace.plugins import Plugins
from wstrace.schema import KIND_FILE, KIND_SHARED, KINDS
from wstrace_plugins.working_set.backend import backend
from wstrace_plugins.working_set.delta import Delta
from wstrace_plugins.working_set.empty import Emptied, empty_working_set

#: Kinds of memory whose pages several processes may have.
_SHARED = (KINDS[KIND_FILE], KINDS[KIND_SHARED])


@dataclass(frozen=True, slots=True)
class Use:
    """What was used of one file or kind of memory, and what of it was resident at the end, in bytes."""

    name: str
    kind: str
    used: int
    resident: int


@dataclass(frozen=True, slots=True)
class Used:
    """What a process used in a time of so many seconds; uses: the largest first.

    emptied: what came back after all was taken out, and not what was referenced.
    """

    seconds: float
    uses: tuple[Use, ...]
    emptied: bool = False

    def may_be_of_others(self, use: Use) -> bool:
        """Whether other processes may have used these pages: a referenced bit does not say by which."""
        return not self.emptied and use.kind in _SHARED

    @property
    def used(self) -> int:
        """Bytes."""
        return sum(use.used for use in self.uses)

    @property
    def resident(self) -> int:
        """Bytes at the end."""
        return sum(use.resident for use in self.uses)


def referenced(pid: int, seconds: float) -> Used:
    """What a process uses in that time, by the referenced bits of its pages, which are cleared for it.

    Raises:
        TargetExited: the process ended, or executed another program.
        Unavailable: it belongs to another user, or the system has no referenced bits.
    """
    read, started = backend().clear_referenced(pid), time.perf_counter()
    target = _attached(pid)
    try:
        if target.wait(seconds) is not None:
            raise TargetExited(f"process {pid} ended while it was watched")
        found = _summed(read())
        return Used(time.perf_counter() - started, found)
    finally:
        target.close()


def after_emptying(pid: int, seconds: float) -> tuple[Emptied, Used, int | None]:
    """What a process brings back into memory after all of it was taken out: it pays each page with a fault.

    What is still in memory right after cannot be judged: Linux takes out no page that others map too, nor, without
    swap, a private one; and what the process used at once is back again.

    Returns:
        What emptying did; what came back; the page faults meanwhile, None = not known.

    Raises:
        TargetExited: the process ended.
        Unavailable: the system refuses.
    """
    target = _attached(pid)
    try:
        done = empty_working_set(pid, others=True)
        compared, before = Delta(pid, written=False), target.usage()
        if target.wait(seconds) is not None:
            raise TargetExited(f"process {pid} ({done.name}) ended while it was watched")
        compared.finish()
        after = target.usage()
    finally:
        target.close()
    resident = {owner.name: owner.resident for owner in compared.after.by()}
    uses = tuple(
        Use(one.name, one.kind, one.new, resident.get(one.name, 0))
        for one in compared.by()
        if one.new and one.name in resident
    )
    counts = [None if usage.minor is None else usage.minor + (usage.major or 0)
              for usage in (before, after)]  # fmt: skip
    faults = None if counts[0] is None or counts[1] is None else counts[1] - counts[0]
    return done, Used(compared.seconds, uses, emptied=True), faults


def _attached(pid: int) -> Target:
    return Plugins.from_environment(third_party=False).platform.attach(pid)


def _summed(found: Iterable[tuple[str, int, int, int]]) -> tuple[Use, ...]:
    """By name and kind, the largest use first."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for name, number, used, resident in found:
        kind = KINDS[number if number < len(KINDS) else 0]
        before = sums.get((name, kind), (0, 0))
        sums[name, kind] = before[0] + used, before[1] + resident
    uses = (Use(*owner, *both) for owner, both in sums.items() if both[1])
    return tuple(sorted(uses, key=lambda use: (-use.used, -use.resident, use.name)))
