"""What a process uses of its memory in a time: by the referenced bits of its pages, or by what returns when emptied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from wstrace.errors import TargetExited
from wstrace.interfaces import Target
from wstrace.plugins import Plugins
from wstrace.schema import KIND_FILE, KIND_SHARED, KINDS
from wstrace_plugins.working_set.backend import ReferencedBits, Uses, backend
from wstrace_plugins.working_set.delta import Delta
from wstrace_plugins.working_set.empty import Emptied, empty_working_set

#: A window is at least so many times as long as the two steps that it needs, which hold the target's memory lock.
_TIMES_COST = 20
#: Kinds of memory whose pages several processes may have.
_SHARED = (KINDS[KIND_FILE], KINDS[KIND_SHARED])


@dataclass(frozen=True, slots=True)
class Use:
    """What was used of one file or kind of memory, and what of it was resident at the window's end, in bytes."""

    name: str
    kind: str
    used: int
    resident: int


@dataclass(frozen=True, slots=True)
class Window:
    """What a process used in one window of time.

    begin: seconds since the first window began. cost: seconds that clearing and reading took. ended: the process ended
    in the window, or executed another program, and what it used in it is not known. uses: the largest first.
    emptied: what came back after all was taken out, and not what was referenced.
    """

    begin: float
    seconds: float
    cost: float
    uses: tuple[Use, ...]
    ended: bool = False
    emptied: bool = False

    def may_be_of_others(self, use: Use) -> bool:
        """Whether other processes may have used these pages: a referenced bit does not tell by whom."""
        return not self.emptied and use.kind in _SHARED

    @property
    def used(self) -> int:
        """Bytes."""
        return sum(use.used for use in self.uses)

    @property
    def resident(self) -> int:
        """Bytes at the window's end."""
        return sum(use.resident for use in self.uses)


def windows(pid: int, seconds: float, every: float | None = None) -> Iterator[Window]:
    """What a process uses in each of several windows, by the referenced bits of its pages, which are cleared for it.

    Args:
        pid: the process.
        seconds: for how long.
        every: the length of a window; None = one window. A window is longer where clearing and reading need more than
            a twentieth of it.

    Raises:
        TargetExited: the process had ended, or executed another program.
        Unavailable: it belongs to another user, or the system has no referenced bits.
    """
    bits, target = backend().referenced_bits(pid), _attached(pid)
    started = time.perf_counter()
    begin = cost = 0.0
    try:
        while begin < seconds:
            length = max(min(every or seconds, seconds - begin), _TIMES_COST * cost)
            try:
                window = _window(bits, target, begin, length)
            except TargetExited:
                if not begin:
                    raise
                yield Window(begin, time.perf_counter() - started - begin, 0.0, (), True)
                return
            yield window
            cost, begin = window.cost, time.perf_counter() - started
            if seconds - begin < (every or seconds) / 2:  # what is left is no window of that length
                return
    finally:
        target.close()


def _window(bits: ReferencedBits, target: Target, begin: float, length: float) -> Window:
    times = [time.perf_counter()]
    bits.clear()
    times.append(time.perf_counter())
    if target.wait(length) is not None:
        raise TargetExited(f"process {target.pid} ended before the first window did")
    times.append(time.perf_counter())
    uses = bits.read()
    clearing, seconds, reading = (after - before for before, after in pairwise([*times, time.perf_counter()]))
    return Window(begin, seconds, clearing + reading, _summed(uses))


def after_emptying(pid: int, seconds: float) -> tuple[Emptied, Window, int | None]:
    """What a process brings back into memory after all of it was taken out: it pays each page with a fault.

    What is still in memory right after cannot be judged: Linux takes out no page that others map too, nor, without
    swap, a private one; and what the process used at once is back again.

    Returns:
        What emptying did; the window, whose `used` is what came back; the page faults meanwhile, None = not known.

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
    uses = tuple(Use(one.name, one.kind, one.new, resident.get(one.name, 0)) for one in compared.by() if one.new)
    counts = [None if usage.minor is None else usage.minor + (usage.major or 0)
              for usage in (before, after)]  # fmt: skip
    faults = None if counts[0] is None or counts[1] is None else counts[1] - counts[0]
    return done, Window(0.0, compared.seconds, 0.0, uses, emptied=True), faults


def _attached(pid: int) -> Target:
    return Plugins.from_environment(third_party=False).platform.attach(pid)


def _summed(found: Uses) -> tuple[Use, ...]:
    """By name and kind, the largest use first."""
    sums: dict[tuple[str, int], tuple[int, int]] = {}
    columns = (found.kind.tolist(), found.used.tolist(), found.resident.tolist())
    for name, kind, used, resident in zip(found.names, *columns, strict=True):
        before = sums.get((name, kind), (0, 0))
        sums[name, kind] = before[0] + used, before[1] + resident
    uses = (Use(name, KINDS[kind if kind < len(KINDS) else 0], *both) for (name, kind), both in sums.items())
    return tuple(sorted((use for use in uses if use.resident), key=lambda use: (-use.used, -use.resident, use.name)))
