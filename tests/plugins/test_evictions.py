"""What leaves the page cache, of the record that the running kernel's tracepoint has."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from side_band_records import comm, given, mmap2

from wstrace.batch import Dictionary
from wstrace.schema import LOSS_EVENTS
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux.calls import Calls
from wstrace_plugins.page_faults.linux.evicted_pages import EVICTED
from wstrace_plugins.page_faults.linux.evictions import decode, layout
from wstrace_plugins.page_faults.linux.side_band import SideBand
from wstrace_plugins.page_faults.linux.tracepoints import fields

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COMMON = """name: mm_filemap_delete_from_page_cache
ID: 565
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

"""
_REST = """	field:unsigned long index;	offset:24;	size:8;	signed:0;
	field:dev_t s_dev;	offset:32;	size:4;	signed:0;
"""
_ORDER = "	field:unsigned char order;	offset:36;	size:1;	signed:0;\n"
_PFN_FIRST = """	field:unsigned long pfn;	offset:8;	size:8;	signed:0;
	field:unsigned long i_ino;	offset:16;	size:8;	signed:0;
"""
_INODE_FIRST = """	field:u64 i_ino;	offset:8;	size:8;	signed:0;
	field:unsigned long pfn;	offset:16;	size:8;	signed:0;
"""
_INODE, _PFN, _END = 77, 0x115C29, (1 << 64) - 1


def raw(first: int, second: int, index: int, order: int, time_ns: int = 20) -> bytes:
    data = struct.pack("<HBBiQQQIB3x4x", 565, 0, 0, 9, first, second, index, 254 << 20 | 1, order)
    return struct.pack("<IHHIIQI", 9, 0, 72, 7, 7, time_ns, len(data)) + data


@pytest.mark.parametrize(
    ("text", "pair", "pages"),
    [
        (_PFN_FIRST + _REST, (_PFN, _INODE), 1),
        (_PFN_FIRST + _REST + _ORDER, (_PFN, _INODE), 4),
        (_INODE_FIRST + _REST + _ORDER, (_INODE, _PFN), 4),
    ],
    ids=["without order", "6.1 to 6.18", "7.2"],
)
def test_fields_are_where_this_kernel_has_them(text: str, pair: tuple[int, int], pages: int) -> None:
    record = layout(fields(_COMMON + text))
    assert record is not None
    found, lost = decode(raw(*pair, 8, 2) + raw(*pair, 8 + pages, 2), record)
    assert found.tolist() == [(20, procfs.device(254, 1), _INODE, 8, 8 + 2 * pages)]
    assert not lost


def test_a_tracepoint_without_the_fields_tells_nothing() -> None:
    assert layout(fields(_COMMON + _PFN_FIRST)) is None
    assert layout({}) is None


def band() -> SideBand:
    return SideBand(Dictionary(), children=True, exit_code={}.get, calls=Calls({"munmap": (1, 2)}))


def evicted(*row: int) -> NDArray[Any]:
    return np.array([row], EVICTED)


def told_evictions(side: SideBand, watermark: int = _END) -> list[tuple[Any, ...]]:
    return [row for row in given(side, watermark)["content_loss"] if LOSS_EVENTS[row[2]] == "evicted"]


def test_what_leaves_the_page_cache_is_told_of_the_files_that_are_mapped() -> None:
    """By their device and inode: of the files of all other processes nothing is told, nor held."""
    side, ours = band(), procfs.device(8, 1)
    side.take(comm(b"a", 1) + mmap2(0x10000, 0x4000, b"/x", 5))
    for device, inode in ((ours, 43), (procfs.device(8, 2), 42), (ours, 42)):
        side.evicted(evicted(20, device, inode, 2, 3))
    assert side.holds
    assert told_evictions(side) == [(20, 7, LOSS_EVENTS.index("evicted"), 0x10000, 0x11000, 0, 0)]
    assert not side.holds
    assert told_evictions(side) == []


def test_what_leaves_the_page_cache_waits_for_the_watermark() -> None:
    side, page = band(), (procfs.device(8, 1), 42, 2, 3)
    side.take(comm(b"a", 1) + mmap2(0x10000, 0x1000, b"/x", 5))
    given(side, 10)
    for time_ns in (30, 20):
        side.evicted(evicted(time_ns, *page))
    assert told_evictions(side, 10**7 + 25)[0][0] == 20
    assert [row[0] for row in told_evictions(side)] == [30]


def test_what_left_before_a_file_was_mapped_is_not_told() -> None:
    side = band()
    side.evicted(evicted(4, procfs.device(8, 1), 42, 2, 3))
    side.take(comm(b"a", 1) + mmap2(0x10000, 0x1000, b"/x", 5))
    assert told_evictions(side) == []
