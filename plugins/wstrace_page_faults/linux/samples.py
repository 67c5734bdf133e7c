"""Samples: checks and counts the rows of a ring, and merges the rows of all rings by time up to a watermark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wstrace.schema import FAULT_MAJOR, FAULT_PC_KERNEL
from wstrace_page_faults.linux import perf_event as perf
from wstrace_page_faults.linux import records
from wstrace_page_faults.linux.rings import MAJOR, Ring

if TYPE_CHECKING:
    from wstrace_page_faults.linux.python_stacks.rows import StackRows
    from wstrace_page_faults.linux.service_time.rows import ServiceRows

#: The headers of our records as one u64: type, misc, size.
_USER, _KERNEL = (
    perf.PERF_RECORD_SAMPLE | misc << 32 | perf.SAMPLE.itemsize << records.SIZE_SHIFT
    for misc in (perf.PERF_RECORD_MISC_USER, perf.PERF_RECORD_MISC_KERNEL)
)
#: The columns of a row, one u64 each: header, ip, pid and tid, time, address; with stacks the hash of the stack; with
#: service times what ServiceRows tells of it.
_HEADER, _IP, _IDS, _TIME, _ADDRESS, _STACK = range(6)
_NO_ROWS = np.zeros((0, 5), "<u8")
#: Rows that are transposed at a time: 160 KiB, which stay in the cache.
_ROWS_AT_ONCE = 4096


class RingSamples:
    """The samples of one ring, in the order in which the kernel wrote them, held until the watermark passes them.

    A row is five u64: the 40 bytes of a SAMPLE or LOST record (`records.rows` cuts longer ones to 40); a further
    one is the hash of the fault's stack, and the last one tells its service time, where these are recorded.

    Args:
        major: whether they are major faults.
        stacks: takes the stack rows out of the ring, where there are any.
        service: the same for the rows with service times.
    """

    def __init__(self, major: bool, stacks: StackRows | None = None, service: ServiceRows | None = None) -> None:
        self.major, self._stacks, self._service = major, stacks, service
        self.held = _NO_ROWS
        self.last_seen = 0
        self.recorded = self.lost = self.duplicates = self.foreign = self.malformed = 0
        self._last = _NO_ROWS

    @classmethod
    def of(cls, ring: Ring, stacks: StackRows | None = None, service: ServiceRows | None = None) -> RingSamples:
        """The samples of a ring."""
        return cls(ring.kind == MAJOR, stacks, service)

    @property
    def further(self) -> tuple[str, ...]:
        """What the columns of a row behind the record's are, by the names that merge() gives them."""
        return ("stack_hash",) * (self._stacks is not None) + ("service_ns",) * (self._service is not None)

    def take(self, raw: NDArray[Any], armed_ns: int, now_ns: int, *, doubled: bool) -> None:
        """Adds what was read from the ring.

        Args:
            raw: bytes, shape (n,).
            armed_ns, now_ns: a row with a time outside this range carries another tracer's clock: counted, not kept.
                The kernel passes the first event's time on to all events (perf_sample_data.sample_flags, Linux 6.0).
            doubled: threads may have two events (one inherited, one opened by us), which both write the same row.
        """
        if not len(raw):
            return
        rows, torn = records.rows(raw)
        self.malformed += bool(torn)
        if self._stacks is not None:
            rows = self._stacks.pair(rows)
        if self._service is not None:
            rows = self._service.pair(rows)
        header = rows[:, _HEADER]
        good = (header == _USER) | (header == _KERNEL)
        if not good.all():
            rows = self._without_lost(rows, good)
        # an earlier time wraps around
        strange = rows[:, _TIME] - np.uint64(armed_ns) > np.uint64(max(now_ns - armed_ns, 0))
        if strange.any():
            self.foreign += int(strange.sum())
            rows = rows[~strange]
        if doubled and len(rows):
            rows = self._without_doubles(rows)
        if len(rows):
            self.last_seen = int(rows[-1, _TIME])
            self.held = rows if not len(self.held) else np.concatenate((self.held, rows))

    def _without_lost(self, rows: NDArray[Any], good: NDArray[Any]) -> NDArray[Any]:
        others = np.ascontiguousarray(rows[~good, : records.WORDS]).view(perf.LOST).reshape(-1)
        lost = others["type"] == perf.PERF_RECORD_LOST
        self.lost += int(others["lost"][lost].sum())
        self.malformed += int((~lost).sum())
        kept: NDArray[Any] = rows[good]
        return kept

    def _without_doubles(self, rows: NDArray[Any]) -> NDArray[Any]:
        before = np.concatenate((self._last if len(self._last) else ~rows[:1], rows[:-1]))
        self._last = rows[-1:].copy()
        same = rows[:, _TIME] == before[:, _TIME]
        if not same.any():
            return rows
        same &= (rows[:, :_STACK] == before[:, :_STACK]).all(axis=1)
        if rows.shape[1] > _STACK:
            # A program ran for one of the two only: the other one's stack is a status, 0 to 15. So it is with a time.
            twice = np.flatnonzero(same[1:])
            rows[twice, _STACK:] = np.maximum(rows[twice, _STACK:], rows[twice + 1, _STACK:])
        self.duplicates += int(same.sum())
        kept: NDArray[Any] = rows[~same]
        return kept

    def give(self, watermark: int) -> NDArray[Any]:
        """Releases the held rows with times up to the watermark."""
        held = self.held
        if not len(held) or held[-1, _TIME] <= watermark:
            self.held = _NO_ROWS
            released = held
        else:
            cut = int(np.searchsorted(held[:, _TIME], np.uint64(watermark), side="right"))
            released, self.held = held[:cut], held[cut:]
        self.recorded += len(released)
        return released


def merge(all_samples: Sequence[RingSamples], watermark: int) -> dict[str, NDArray[Any]]:
    """The PAGE_FAULT columns, by name and in order of time, of the rows of all rings timed up to the watermark.

    With stacks there is a further one, `stack_hash`; with service times `service_ns`, as ServiceRows tells it.
    """
    released = [(samples.give(watermark), samples.major) for samples in all_samples]
    parts = [part for part in released if len(part[0])]
    flags = [
        ((rows[:, _HEADER] == _KERNEL).view(np.uint8) * np.uint8(FAULT_PC_KERNEL)) | np.uint8(FAULT_MAJOR * major)
        for rows, major in parts
    ]
    if not parts:
        rows, flag = _NO_ROWS, np.zeros(0, np.uint8)
    elif len(parts) == 1:
        rows, flag = parts[0][0], flags[0]
    else:
        rows = np.concatenate([rows for rows, _ in parts])
        order = np.argsort(rows[:, _TIME], kind="stable")  # timsort: its input is a few sorted runs
        rows, flag = rows.take(order, axis=0), np.concatenate(flags).take(order)  # [order] takes five times as long
    words = _transposed(rows)
    halves = words[_IDS].view("<u4")  # pid and tid, alternating
    further = dict(zip(all_samples[0].further, words[_STACK:], strict=False))  # words has none without any row
    return {
        "time_ns": words[_TIME],
        "pid": halves[0::2].copy(),
        "tid": halves[1::2].copy(),
        "pc": words[_IP],
        "va": words[_ADDRESS],
        "flags": flag,
        **further,
    }


def _transposed(rows: NDArray[Any]) -> NDArray[Any]:
    """The rows as columns, each contiguous: everyone after this reads single columns, again and again."""
    words = np.empty(rows.shape[::-1], rows.dtype)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        words[:, start : start + _ROWS_AT_ONCE] = rows[start : start + _ROWS_AT_ONCE].T
    return words
