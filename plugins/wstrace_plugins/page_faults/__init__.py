"""Page faults: who brought which page into memory, by which instruction and thread, minor or major.

`wstrace_plugins.os.backend("wstrace_plugins.page_faults").PageFaults` is the source of the running system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wstrace.errors import Unavailable
from wstrace.hookspecs import Reference, hookimpl


@hookimpl
def wstrace_sources() -> Sequence[Reference]:
    """The source `page_faults`; on a system without capture, the Linux one, which says so at its start."""
    from wstrace_plugins.os import system

    try:
        name = system()
    except Unavailable:
        name = "linux"
    return [Reference("page_faults", f"{__name__}.{name}.backend:PageFaults", default=True)]


@hookimpl
def wstrace_stages() -> Mapping[str, tuple[bool, str]]:
    """The ledger stages for events that the kernel takes off a program that gains privilege by exec."""
    return {
        "lost_privileged": (True, "faults of programs that gained privilege by exec, at most so many"),
        "skipped_side_band": (True, "mapping and process records left out: more came than the tracer can take"),
        "before_armed": (True, "faults of a cgroup made during the trace, before it was traced"),
        "missed_cgroups": (True, "cgroups that had gone before they could be traced: how many faults is not known"),
    }
