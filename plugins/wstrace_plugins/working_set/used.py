"""What a process uses of its memory in a time, by the referenced bits of its pages."""

from __future__ import annotations

import time
from typing import NamedTuple

from wstrace.errors import TargetExited
from wstrace.plugins import Plugins
from wstrace.schema import KINDS
from wstrace_plugins.working_set.backend import backend


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
    target = Plugins.from_environment(third_party=False).platform.attach(pid)
    try:
        if target.wait(seconds) is not None:
            raise TargetExited(f"process {pid} ended while it was watched")
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for name, number, used, resident in read():
            kind = KINDS[number if number < len(KINDS) else 0]
            before = sums.get((name, kind), (0, 0))
            sums[name, kind] = before[0] + used, before[1] + resident
    finally:
        target.close()
    uses = [Use(*owner, *both) for owner, both in sums.items() if both[1]]
    uses.sort(key=lambda use: (-use.used, -use.resident, use.name))
    together = sum(use.used for use in uses), sum(use.resident for use in uses)
    return Used(time.perf_counter() - started, uses, *together)
