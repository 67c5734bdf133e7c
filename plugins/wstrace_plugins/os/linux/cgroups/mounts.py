"""Where the control groups are mounted: v2, v1, or both (hybrid), and which hierarchy serves a controller.

A controller belongs to one hierarchy at a time: to a v1 hierarchy of its own, else to the only v2 hierarchy. Perf
events go by the hierarchy of `perf_event`, memory by that of `memory`; on a hybrid system these may be two, and the
same container may have a cgroup in one of them only.

Source: cgroups(7), proc_pid_mountinfo(5), Linux Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from wstrace.errors import Unavailable


class Hierarchy(NamedTuple):
    """A mounted hierarchy: the folder of its root cgroup as seen here, and whether it is the v2 one."""

    folder: Path
    unified: bool


def hierarchy_of(controller: str, proc: Path = Path("/proc")) -> Hierarchy:
    """The hierarchy of a controller (`perf_event`, `memory`).

    Of several mounts of it, the one that shows most is taken: a container that has the host's mount beside its own sees
    the host's cgroups in it.
    Raises Unavailable: it is in no hierarchy that is mounted here.
    """
    mounts = _mounts((proc / "self/mountinfo").read_text("utf-8", "surrogateescape"))
    # v1 first: a controller that has a v1 hierarchy is not in the v2 one, whatever else is mounted
    found = [one for one in mounts if not one[1].unified and controller in one[2]] or [
        one for one in mounts if one[1].unified and controller in _offered(one[1].folder)
    ]
    if found:
        return min(found, key=lambda one: one[0])[1]
    raise Unavailable(
        f"the cgroup controller {controller} is in no hierarchy that is mounted here",
        "mount -t cgroup2 none /sys/fs/cgroup; in a container: mount the host's /sys/fs/cgroup read-only",
    )


def path_of(pid: int, controller: str, proc: Path = Path("/proc")) -> str | None:
    """The path of a process's cgroup in the hierarchy of a controller, "" = v2; None = it is gone, or not seen here."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text("utf-8", "surrogateescape").split("\n")
    except OSError:
        return None
    for line in lines:  # number:controllers:path
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        # /.. : above the root of our cgroup namespace; (deleted): removed, as a zombie's may be
        if path and controller in controllers.split(",") and not path.startswith("/..") and " (del" not in path:
            return path
    return None


def _offered(folder: Path) -> list[str]:
    """The controllers of a mounted v2 hierarchy; that of perf events is always on, and in no list."""
    try:
        return ["perf_event", *(folder / "cgroup.controllers").read_text("ascii").split()]
    except OSError:
        return ["perf_event"]


def _mounts(mountinfo: str) -> list[tuple[int, Hierarchy, list[str]]]:
    """The mounts of control groups: how deep their root lies, what is seen there, and their options.

    Fields: id parent device root mountpoint options [tag...] - type source super.
    """
    found = []
    for line in mountinfo.split("\n"):
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(" "), tail.split(" ")
        if kind[0] in ("cgroup", "cgroup2"):
            hierarchy = Hierarchy(Path(_plain(fields[4])), kind[0] == "cgroup2")
            found.append((_depth(fields[3]), hierarchy, kind[2].split(",")))
    return found


def _plain(path: str) -> str:
    r"""A path as mountinfo writes it (a blank is `\040`) as it is."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(octal, character)
    return path


def _depth(root: str) -> int:
    """How far below the top of what is seen a mount's root lies; a root above our own cgroup namespace: `/../..`."""
    parts = [part for part in root.split("/") if part]
    return sum(-1 if part == ".." else 1 for part in parts)
