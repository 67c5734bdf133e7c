"""Figures of the calling process on Linux: getrusage(2), smaps_rollup, and VmHWM, which clear_refs resets.

Source: Linux Documentation/filesystems/proc.rst, "clear_refs" (5 resets the peak resident set size) and "smaps_rollup".
"""

from __future__ import annotations

import re
import resource

from wstrace.errors import Unavailable

_RSS = re.compile(rb"^Rss:\s+(\d+) kB", re.MULTILINE)
_PEAK = re.compile(rb"^VmHWM:\s+(\d+) kB\n(?:.*\n)*?VmRSS:\s+(\d+) kB", re.MULTILINE)
#: The kernel counts resident pages in parts for each CPU; a sum of them may be off by so much.
_SLACK = 4 << 20


def faults() -> tuple[int, int | None]:
    """(minor + major, major) faults of all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt, usage.ru_majflt


def resident() -> int:
    """Rss of smaps_rollup: counted page by page, while VmRSS may be off by the counts that CPUs still hold back."""
    if found := _RSS.search(_read("smaps_rollup")):
        return int(found[1]) << 10
    raise Unavailable("/proc/self/smaps_rollup has no resident size")


def reset_peak() -> None:
    """Writes 5 to clear_refs, and looks whether that did something: other kernels (gVisor) ignore it."""
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as file:  # noqa: PTH123
            file.write(b"5")
    except OSError as error:
        raise Unavailable(f"cannot reset the peak resident size (/proc/self/clear_refs): {error.strerror}") from None
    highest, now = _peak()
    if highest > now + _SLACK:
        raise Unavailable("this kernel does not reset the peak resident size (/proc/self/clear_refs)")


def peak() -> int:
    """VmHWM."""
    return _peak()[0]


def _peak() -> tuple[int, int]:
    """(VmHWM, VmRSS) in bytes."""
    found = _PEAK.search(_read("status"))
    if found is None:
        raise Unavailable("/proc/self/status has no peak resident size (VmHWM)")
    return int(found[1]) << 10, int(found[2]) << 10


def _read(name: str) -> bytes:
    try:
        with open(f"/proc/self/{name}", "rb", buffering=0) as file:  # noqa: PTH123
            return file.readall()
    except OSError as error:
        raise Unavailable(f"cannot read /proc/self/{name}: {error.strerror}") from None
