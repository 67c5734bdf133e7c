"""Which records of the side band are of processes that are traced, where events are not those of their threads."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

from wstrace.errors import Unavailable
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.side_band import SideBand

#: The pids of a record: of a fork those of the new process and of its parent, else its process first.
_IDS = struct.Struct("<II")
_OF_A_PROCESS = (perf.PERF_RECORD_MMAP2, perf.PERF_RECORD_COMM, perf.PERF_RECORD_EXIT)


def met(side: SideBand, time_ns: int, kind: int, misc: int, record: bytes, *, look: Callable[[int], object]) -> bool:
    """Takes what befalls processes that were met, and new programs; a parent is met when it forks.

    So is a process that maps something: what it had mapped before holds from then on.
    """
    if kind == perf.PERF_RECORD_FORK:
        pid, parent = _IDS.unpack_from(record, 8)
        if pid == parent:
            return pid in side.live
        _meet(side, parent, time_ns - 1, look, whole=True)
    elif kind == perf.PERF_RECORD_MMAP2:
        _meet(side, _IDS.unpack_from(record, 8)[0], time_ns - 1, look, whole=False)
    elif kind in _OF_A_PROCESS and _IDS.unpack_from(record, 8)[0] not in side.live:
        return bool(kind == perf.PERF_RECORD_COMM and misc & perf.PERF_RECORD_MISC_COMM_EXEC)
    return True


def _meet(side: SideBand, pid: int, time_ns: int, look: Callable[[int], object], *, whole: bool) -> None:
    """Makes a process known; `whole`: with all its mappings, as a child inherits them."""
    if pid not in side.live:
        try:
            look(pid)
            side.seen(pid, time_ns, whole=False)
            side.asked.faulted(pid, side.given_before)
        except Unavailable:
            if pid not in side.live:
                side.unread(pid, time_ns)
    if whole and pid in side.asked:  # a list is of now: what records tell of since then is left out of it
        with contextlib.suppress(Unavailable):  # it has ended
            side.list_whole(pid)


def family(side: SideBand, time_ns: int, kind: int, misc: int, record: bytes) -> bool:
    """Takes what befalls processes that are known, and those that these start."""
    if kind == perf.PERF_RECORD_FORK:
        return _IDS.unpack_from(record, 8)[1] in side.live
    return kind not in _OF_A_PROCESS or _IDS.unpack_from(record, 8)[0] in side.live
