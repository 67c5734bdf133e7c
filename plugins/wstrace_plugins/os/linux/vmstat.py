"""The page faults that the kernel counts of all processes, and how its counts are read, also those of memory.stat."""

from __future__ import annotations

from wstrace.interfaces import Usage
from wstrace_plugins.os.linux import procfs


def node_faults() -> Usage:
    """Those of all processes since boot; Usage() = the system does not tell them."""
    counts = _counts()
    return usage(counts.get("pgfault"), counts.get("pgmajfault"))


def balancing_hints() -> int | None:
    """The hint faults of all processes since boot, on pages that were there: the kernel takes access to them away to
    learn which memory node uses them (NUMA balancing). None = it does not do that now.
    """
    return _counts().get("numa_hint_faults") if procfs.setting("kernel/numa_balancing") else None


def _counts() -> dict[str, int]:
    try:
        lines = procfs.content("/proc/vmstat").decode("ascii").splitlines()
    except OSError:
        return {}
    return {name: int(n) for name, _, n in (line.partition(" ") for line in lines)}


def usage(pgfault: int | None, pgmajfault: int | None) -> Usage:
    """The two counts as minor and major faults: pgfault counts all faults, those from disk too."""
    return Usage() if pgfault is None else Usage(max(pgfault - (pgmajfault or 0), 0), pgmajfault or 0)
