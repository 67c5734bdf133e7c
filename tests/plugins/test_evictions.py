"""What leaves the page cache, of the record that the running kernel's tracepoint has."""

from __future__ import annotations

import struct

import pytest

from wstrace_os.linux import procfs
from wstrace_page_faults.linux.evictions import decode, layout
from wstrace_page_faults.linux.tracepoints import fields

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
_INODE, _PFN = 77, 0x115C29


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
    assert found == [(20, procfs.device(254, 1), _INODE, 8, 8 + 2 * pages)]
    assert not lost


def test_a_tracepoint_without_the_fields_tells_nothing() -> None:
    assert layout(fields(_COMMON + _PFN_FIRST)) is None
    assert layout({}) is None
