"""What leaves the page cache: the pages of files that were truncated, punched or evicted, by whomever.

The kernel tells each folio at the time when no process has it mapped any more.
Source: include/trace/events/filemap.h, __filemap_remove_folio() in mm/filemap.c.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux import tracepoints
from wstrace_plugins.page_faults.linux.evicted_pages import EVICTED
from wstrace_plugins.page_faults.linux.rare_calls import RareCalls
from wstrace_plugins.page_faults.linux.side_band import SideBand

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RAW = 28  # where the raw data of a SAMPLE of type TID|TIME|RAW begin
_HEADER = struct.Struct("<I2xH")
#: Name -> offset and bytes of what every sample of that type has.
_SAMPLE = {"type": (0, 4), "size": (6, 2), "tid": (12, 4), "time": (16, 8)}
#: The fields that are read. A kernel without `order` tells each page.
_NEEDED, _WANTED = {"i_ino", "index", "s_dev"}, {"i_ino", "index", "s_dev", "order"}
#: One call takes neighbours one after the other. Those that are further apart may have come back in between.
_APART_NS = np.uint64(50_000)
_MINOR_BITS = 20
#: Of each CPU: who removes a file of 200 MiB may tell of 50,000 pages in some hundredths of a second.
_RING_BYTES = 4 << 20
#: Neighbours that are told as one row cost a fiftieth of as many rows (0.05 and 2.8 us of our CPU).
_NEIGHBOURS = 50


class Evictions(RareCalls):
    """The tracepoint on all CPUs and its rings; nothing where it is not permitted.

    Args:
        cpus: the CPUs. wanted: whether to open it at all.
    """

    def __init__(self, cpus: Sequence[int], *, wanted: bool) -> None:
        record = layout(tracepoints.fields_of_evictions()) if wanted else None
        super().__init__(cpus, wanted=record is not None, watch=tracepoints.watch_evictions, ring_bytes=_RING_BYTES)
        self._record = record if record is not None else _record(_SAMPLE, _RAW)
        self._seen = 0

    def tell(self, side: SideBand) -> None:
        """Gives what the rings hold to the side band, and whether everything is told.

        No thread is left out: nothing would be told of the pages that it takes from the files of others.
        """
        for raw, full in self.read():
            found, lost = decode(raw, self._record)
            self._seen += max(len(found), len(raw) // self._record.itemsize // _NEIGHBOURS)
            self.complete &= not (lost or full)
            side.evicted(found)
        self.too_many(self._seen)
        side.evictions_told = self.complete


def layout(fields: Mapping[str, tuple[int, int]]) -> np.dtype[Any] | None:
    """How a record lies in memory; None where the tracepoint does not have the fields that are needed.

    Args:
        fields: name -> offset in the raw data and bytes, as tracepoints.fields_of_evictions() gives them.
    """
    if not set(fields) >= _NEEDED:
        return None
    found = _SAMPLE | {name: (_RAW + at, size) for name, (at, size) in fields.items() if name in _WANTED}
    data = -(-max(at + size for at, size in fields.values()) // 8) * 8  # as the kernel's structure, which has u64
    return _record(found, _RAW - 4 + -(-(4 + data) // 8) * 8)


def _record(fields: Mapping[str, tuple[int, int]], size: int) -> np.dtype[Any]:
    return np.dtype({
        "names": list(fields),
        "formats": [f"<u{width}" for _, width in fields.values()],
        "offsets": [at for at, _ in fields.values()],
        "itemsize": size,
    })  # fmt: skip


def decode(raw: bytes, record: np.dtype[Any]) -> tuple[NDArray[Any], bool]:
    """What the records of a ring tell, as rows of EVICTED, and whether some were lost; record: their layout()."""
    parts: list[NDArray[Any]] = [np.zeros(0, record)]
    lost, at = False, 0
    while at + _HEADER.size <= len(raw):
        rows = np.frombuffer(raw, record, (len(raw) - at) // record.itemsize, at)
        other = np.flatnonzero((rows["type"] != perf.PERF_RECORD_SAMPLE) | (rows["size"] != record.itemsize))
        n = int(other[0]) if len(other) else len(rows)
        parts.append(rows[:n])
        at += n * record.itemsize
        if at + _HEADER.size <= len(raw):
            _, size = _HEADER.unpack_from(raw, at)
            lost, at = True, at + max(size, _HEADER.size)
    return _together(np.concatenate(parts)), lost


def _together(rows: NDArray[Any]) -> NDArray[Any]:
    """The rows as those of EVICTED, neighbours as one."""
    if not len(rows):
        return np.zeros(0, EVICTED)
    order = rows["order"].astype(np.uint64) if "order" in (rows.dtype.names or ()) else np.uint64(0)
    past = rows["index"] + (np.uint64(1) << order)
    new = np.ones(len(rows), np.bool_)
    new[1:] = (rows["index"][1:] != past[:-1]) | (rows["time"][1:] - rows["time"][:-1] > _APART_NS)
    for name in ("i_ino", "s_dev", "tid"):
        new[1:] |= rows[name][1:] != rows[name][:-1]
    begin = np.flatnonzero(new)
    found = np.empty(len(begin), EVICTED)
    found["time_ns"], found["inode"], found["first"] = (rows[name][begin] for name in ("time", "i_ino", "index"))
    found["past"] = past[np.append(begin[1:], len(rows)) - 1]
    device = rows["s_dev"][begin].astype("<i8")
    found["device"] = procfs.device(device >> _MINOR_BITS, device & ((1 << _MINOR_BITS) - 1))
    return found
