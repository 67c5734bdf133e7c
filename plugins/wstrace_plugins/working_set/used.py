"""What a process uses of its memory in a time: by the referenced bits of its pages, or by what returns when emptied."""

from __future__ import annotations

import time
from typing import NamedTuple

from wstrace.errors import TargetExited
from wstrace.plugins import Plugins
from wstrace.schema import KINDS
from wstrace_plugins.working_set.backend import backend
from wstrace_plugins.working_set.delta import Delta
from wstrace_plugins.working_set.empty import Emptied, empty_working_set


class Use(NamedTuple):
    """What was used of one file or kind of memory, and what of it was resident at the end, in bytes."""

    name: str
    kind: str
    used: int
    resident: int


class Used(NamedTuple):
    """What a process used in a time of so many seconds: by name and kind, the largest use first; the sums in bytes."""

    seconds: float
    uses: list[Use]
    used: int
    resident: int


def referenced(pid: int, seconds: float) -> Used:
    """What a process uses in that time, by the referenced bits of its pages, which are cleared for it.

    Raises:
        TargetExited: the process ended, or executed another program.
        Unavailable: it belongs to another user, or the system has no referenced bits.
    """
    read, started = backend().clear_referenced(pid), time.perf_counter()
    _watch(pid, seconds)
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for name, number, used, resident in read():
        kind = KINDS[number if number < len(KINDS) else 0]
        before = sums.get((name, kind), (0, 0))
        sums[name, kind] = before[0] + used, before[1] + resident
    return _used(time.perf_counter() - started, [Use(*owner, *both) for owner, both in sums.items() if both[1]])


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
    done = empty_working_set(pid, others=True)
    compared = Delta(pid, written=False)
    faults = _watch(pid, seconds)
    compared.finish()
    resident = {owner.name: owner.resident for owner in compared.after.by()}
    uses = [Use(one.name, one.kind, one.new, resident[one.name])
            for one in compared.by() if one.new and one.name in resident]  # fmt: skip
    return done, _used(compared.seconds, uses), faults


def _watch(pid: int, seconds: float) -> int | None:
    """Waits; returns the page faults of the process meanwhile, None = not known. Raises TargetExited: it ended."""
    target = Plugins.from_environment(third_party=False).platform.attach(pid)
    try:
        before = target.usage().faults
        if target.wait(seconds) is not None:
            raise TargetExited(f"process {pid} ended while it was watched")
        after = target.usage().faults
    finally:
        target.close()
    return None if before is None or after is None else after - before


def _used(seconds: float, uses: list[Use]) -> Used:
    uses.sort(key=lambda use: (-use.used, -use.resident, use.name))
    return Used(seconds, uses, sum(use.used for use in uses), sum(use.resident for use in uses))
