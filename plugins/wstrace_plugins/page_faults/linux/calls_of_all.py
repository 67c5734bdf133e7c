"""Records of the calls of all processes, of which most are nobody's that is traced: these become no objects.

They stay as the ring had them until what came before them is known, as that tells who is traced.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.analysis.tally import distinct
from wstrace_plugins.page_faults.linux import perf_event as perf

if TYPE_CHECKING:
    from numpy.typing import NDArray

Record = tuple[int, int, int, bytes]  # time, type, misc, all of it
#: Of a SAMPLE with TID, TIME and RAW: its process, and the thread's id in the first namespace (common_pid), in u32.
_PROCESS, _THREAD, _LEAST = 2, 8, 40


class Samples(NamedTuple):
    """The records of one ring, all of them SAMPLEs: where they begin, in bytes; their times and processes."""

    raw: bytes
    begins: NDArray[Any]
    times: NDArray[Any]
    pids: NDArray[Any]

    def of(self, chosen: NDArray[Any]) -> Samples:
        """Those that are chosen, of the same bytes."""
        return Samples(self.raw, self.begins[chosen], self.times[chosen], self.pids[chosen])

    def threads(self) -> NDArray[Any]:
        """The process and the thread of each, as one u64: the process in its upper half."""
        threads = np.frombuffer(self.raw, "<u4")[self.begins // 4 + _THREAD].astype("<u8")
        found: NDArray[Any] = self.pids.astype("<u8") << np.uint64(32) | threads
        return found

    def records(self) -> list[Record]:
        """Each as an object."""
        sizes = np.frombuffer(self.raw, "<u2")[self.begins // 2 + 3].tolist()
        miscs = np.frombuffer(self.raw, "<u2")[self.begins // 2 + 2].tolist()
        each = zip(self.times.tolist(), miscs, self.begins.tolist(), sizes, strict=True)
        return [(time, perf.PERF_RECORD_SAMPLE, misc, self.raw[at : at + size]) for time, misc, at, size in each]


def samples(raw: bytes) -> Samples | None:
    """The records of a ring; None where one is no SAMPLE, as where records were lost, or where it ends within one."""
    words = len(raw) // 8
    sizes = np.frombuffer(raw, "<u2", words * 4)[3::4].tolist()  # of each u64: the size of a record that begins there
    begins, at = [], 0
    while at < words and sizes[at] >= _LEAST:
        begins.append(at)
        at += sizes[at] >> 3
    places = np.array(begins, np.intp)
    ids = np.frombuffer(raw, "<u4", words * 2)
    if at != words or len(raw) != words * 8 or (ids[places * 2] != perf.PERF_RECORD_SAMPLE).any():
        return None
    times = np.frombuffer(raw, "<u8")[places + 2]
    return Samples(raw, places * 8, times, ids[places * 2 + _PROCESS])


class CallsOfAll:
    """Holds such records until the watermark passes them."""

    def __init__(self) -> None:
        self._held: list[Samples] = []
        self._passed: list[Samples] = []

    def hold(self, found: Samples) -> None:
        """Adds what was read from a ring."""
        self._held.append(found)

    def give(self, watermark: int, traced: Collection[int], *, keep: bool) -> tuple[list[Record], int]:
        """The records up to the watermark of processes that are traced, and how many there are of others.

        Args:
            watermark: ns. traced: the processes.
            keep: whether those of others can be had by passed() until the next call.
        """
        self._passed = []
        given, others = list[Record](), 0
        held, self._held = self._held, []
        for found in held:
            due = found.times <= watermark
            if not due.all():
                self._held.append(found.of(~due))
                found = found.of(due)
            own = [pid for pid in distinct(found.pids).tolist() if pid in traced]
            mine = np.isin(found.pids, own) if own else np.zeros(len(found.pids), np.bool_)
            given += found.of(mine).records()
            others += len(mine) - int(np.count_nonzero(mine))
            self._passed += [found.of(~mine)] * keep
        return given, others

    def coming(self, pid: int) -> list[Record]:
        """The records of a process behind the watermark."""
        return [one for found in self._held for one in found.of(found.pids == pid).records()]

    def passed(self, pid: int) -> list[Record]:
        """The records of a process that was not traced when the last ones were given."""
        return [one for found in self._passed for one in found.of(found.pids == pid).records()]
