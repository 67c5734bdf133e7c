"""The largest resident size of a trace's processes in words: how much, and whose it is."""

from __future__ import annotations

from wstrace.analysis.summary import Summary
from wstrace.analysis.symbols import UNKNOWN
from wstrace.text import number, printable, size
from wstrace.trace_info import PEAK_SEEN, TraceInfo

NAME_LIMIT = 60
#: Linux counts resident pages in parts for each CPU: its peak of a process may lack some (get_mm_counter()).
_INEXACT = 1.01


def of_peak(summary: Summary, info: TraceInfo) -> str:
    """`peak 64.0 MiB resident in cc1 (4711)`: the largest resident size of any one process; "" = not known.

    A snapshot is a lower bound: short programs end unsampled.
    """
    usage = info.usage
    peak, at_least, pid = usage.peak_resident_bytes or 0, usage.peak_sampled, usage.peak_pid
    most = max(summary.snapshots, key=lambda held: held.pages, default=None)
    owner = summary.name_of(pid) if pid is not None else ""
    if most is not None and (held := most.pages * info.page_size) > peak:
        peak, at_least, pid, owner = held, at_least or held > peak * _INEXACT, most.pid, most.name
    if not peak:
        return ""
    whose = _process(owner, pid) if pid is not None else _largest(summary, info, peak)
    several = f" in {whose}{_together(info)}" if summary.processes > 1 else ""
    return f"peak {'at least ' if at_least else ''}{size(peak)} resident{several}"


def _largest(summary: Summary, info: TraceInfo, peak: int) -> str:
    """The process of a peak of which the system does not say whose it is: rusage is that of the largest of several.

    It is the one that was seen with all of it. One that was seen with most of it is told with what it was seen with:
    another one may have ended between two looks.
    """
    seen = [(one.pages * info.page_size, one.pid, one.name) for one in summary.snapshots]
    noted = info.extra.get(PEAK_SEEN)
    if (
        isinstance(noted, dict)
        and isinstance(had := noted.get("bytes"), int)
        and isinstance(pid := noted.get("pid"), int)
    ):
        seen.append((had, pid, summary.name_of(pid)))
    had, pid, name = max(seen, default=(0, 0, ""))
    if had * _INEXACT >= peak:
        return _process(name, pid)
    told = f", of which {_process(name, pid)} was seen with {size(had)}" if 2 * had > peak else ""
    return f"the largest of its {number(summary.processes)} processes{told}"


def _process(name: str, pid: int) -> str:
    return f"{printable(name, NAME_LIMIT) or UNKNOWN} ({pid})"


def _together(info: TraceInfo) -> str:
    """`; 5 together 310.2 MiB pss (rss_sum 812.4 MiB, distinct 305.0 MiB)`, at the largest look; "" = not known."""
    from wstrace.analysis.blame.sums import read_sums

    read = read_sums(info)
    if read is None or read.sums.pss is None or read.sums.processes < 2:
        return ""
    distinct = f", distinct {size(read.sums.distinct)}" if read.sums.distinct is not None else ""
    sums = f"{size(read.sums.pss)} pss (rss_sum {size(read.sums.rss_sum)}{distinct})"
    return f"; {number(read.sums.processes)} together {sums}"
