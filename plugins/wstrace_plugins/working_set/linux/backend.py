"""Working sets on Linux: the backend, which opens processes, says what works here, and keeps an address space."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context, Level
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.working_set.backend import Accounted
from wstrace_plugins.working_set.linux import smaps
from wstrace_plugins.working_set.linux.space import Keeper
from wstrace_plugins.working_set.linux.space import Space as Space

if TYPE_CHECKING:
    from wstrace_plugins.working_set.file_heat import FileHeat
    from wstrace_plugins.working_set.watching import Condition, Watched

descendants, arguments = procfs.living_descendants, procfs.arguments
clear_referenced, make_keeper = smaps.clear_referenced, Keeper


def file_heat(path: str, pids: Sequence[int] = ()) -> FileHeat:
    """What of a file is in memory of these processes, or of all that map it, and in the page cache."""
    from wstrace_plugins.working_set.linux import file_pages

    return file_pages.file_heat(path, pids or [one[0] for one in listed()], chosen=bool(pids))


def probe() -> Level:
    """full with PAGEMAP_SCAN; `pagemap` else, where huge and zero pages cannot be distinguished."""
    with Space(os.getpid()) as space:
        space.runs(space.mappings(Dictionary()))
        if space.scans:
            return Level("full")
    why = "this kernel has no PAGEMAP_SCAN: huge pages are not distinguished, and zero pages count as resident"
    return Level("pagemap", why, "Linux 6.7 or newer")


def listed() -> Iterator[tuple[int, int, str, str, int]]:
    """Every process with an address space: pid, parent's pid, name, user, resident bytes."""
    for pid in procfs.processes():
        try:
            found = procfs.stat_with_memory(pid)
            uid = int(procfs.status(pid)["Uid"].split()[0])
        except Unavailable:
            continue
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = str(uid)
        yield pid, found.ppid, procfs.program_name(found), user, found.resident_bytes


def size(pid: int) -> tuple[int, int]:
    """The resident bytes of a process, and its faults so far; zeros where it has ended."""
    try:
        found = procfs.stat_with_memory(pid)
    except Unavailable:
        return 0, 0
    return found.resident_bytes, found.minor + found.major


def accounted(pid: int) -> Accounted:
    """What smaps_rollup accounts to a process; large: hugetlb. Raises TargetExited.

    Its Rss is VmRSS, and before Linux 6.2 also what threads have faulted in that VmRSS does not count yet.
    """
    try:
        sums = smaps.rollup(pid)
    except TargetExited:
        raise
    except Unavailable:
        return Accounted()
    private = sums.get("Private_Clean", 0) + sums.get("Private_Dirty", 0)
    large = sums.get("Private_Hugetlb", 0) + sums.get("Shared_Hugetlb", 0)
    return Accounted(private, large, sums.get("Pss"), resident=sums.get("Rss"))


def distinct(pids: Sequence[int]) -> int:
    """Bytes resident in these processes together, each page once: by the numbers of the page frames (root only)."""
    frames = [np.empty(0, "<u8")]
    for pid in pids:
        with suppress(TargetExited), Space(pid) as space:
            frames.append(space.frames())
    return len(np.unique(np.concatenate(frames))) * Space.page_size


def watched_cgroups(
    patterns: Sequence[str], of: Context, conditions: Sequence[Condition], pause: float
) -> Sequence[Watched]:
    """The cgroups of these paths or globs, else those of what is traced; see linux/watched_cgroup.py."""
    from wstrace_plugins.working_set.linux.watched_cgroup import watched

    return watched(patterns, of, conditions, pause)


def faults() -> tuple[int, int | None]:
    """(minor, major) faults of the calling process so far: getrusage(2)."""
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_majflt
