"""What a CPU limit of a cgroup costs the processes in it.

Source: Linux Documentation/admin-guide/cgroup-v2.rst ("cpu.stat"), scheduler/sched-bwc.rst for v1.
"""

from __future__ import annotations

import os
from pathlib import Path

from wstrace.errors import Unavailable
from wstrace_plugins.os.linux.cgroups.mounts import hierarchy_of, path_of

#: The line of v2 and that of v1, and how much of a second its unit is.
_THROTTLED = {"throttled_usec": 1e-6, "throttled_time": 1e-9}


def throttled_seconds(proc: Path = Path("/proc")) -> float:
    """How long a CPU limit has stopped this process's cgroup so far, in seconds; 0 where none is set or told.

    The limits of the cgroups above it count too, as far as they are seen here; the longest time is that of all, as
    these times overlap. With several CPUs it is the sum over them.
    """
    try:
        hierarchy = hierarchy_of("cpu", proc)
    except (OSError, Unavailable):
        return 0.0
    path = path_of(os.getpid(), "" if hierarchy.unified else "cpu", proc) or "/"
    own = hierarchy.folder / path.lstrip("/")
    seen = [one for one in (own, *own.parents) if one.is_relative_to(hierarchy.folder)]
    return max(map(_throttled, seen), default=0.0)


def _throttled(folder: Path) -> float:
    try:
        lines = (folder / "cpu.stat").read_text("ascii").splitlines()
    except OSError:
        return 0.0
    figures = (line.partition(" ") for line in lines)
    return next((int(value) * _THROTTLED[name] for name, _, value in figures if name in _THROTTLED), 0.0)
