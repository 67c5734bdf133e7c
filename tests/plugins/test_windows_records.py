"""The structures of the watch and of memory: golden bytes laid out by a C compiler."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.schema import FAULT_MAJOR, FAULT_PC_KERNEL
from wstrace_plugins.os.windows import job, layouts
from wstrace_plugins.page_faults.windows.watch import decode

GOLDEN = Path(__file__).parents[1] / "golden"
BYTES = json.loads((GOLDEN / "windows_layouts.json").read_text())
VA = 0x1D2F4A6B8C10


def golden(name: str, layout: np.dtype, count: int = 1) -> np.ndarray:
    raw = bytes.fromhex(BYTES[name])
    return np.frombuffer(raw[: count * layout.itemsize], layout)


def test_extended_records_have_the_thread():
    changes = decode(golden("wswatchx", layouts.PSAPI_WS_WATCH_INFORMATION_EX, 3))
    assert changes.columns["tid"].tolist() == [4711, 4712]
    assert changes.columns["va"].tolist() == [VA & ~1, 0x20000]
    assert changes.lost == 7
    assert {name: str(c.dtype) for name, c in changes.columns.items()} == {
        "pc": "uint64", "va": "uint64", "flags": "uint8", "tid": "uint32"
    }  # fmt: skip
    assert changes.columns["flags"].tolist() == [0, FAULT_MAJOR | FAULT_PC_KERNEL]


def test_a_full_buffer_without_terminator_ends_at_its_end():
    changes = decode(np.ones(4, layouts.PSAPI_WS_WATCH_INFORMATION_EX))
    assert (len(changes), changes.lost) == (4, 0)
    assert len(decode(np.zeros(0, layouts.PSAPI_WS_WATCH_INFORMATION_EX))) == 0


def test_columns_do_not_change_when_the_buffer_is_used_again():
    records = np.ones(4, layouts.PSAPI_WS_WATCH_INFORMATION_EX)
    columns = decode(records).columns
    records[:] = np.zeros(1, records.dtype)
    assert all(column.any() for name, column in columns.items() if name not in ("va", "flags"))


def test_working_set_blocks():
    count, first, second = golden("wsblocks", layouts.PSAPI_WORKING_SET_BLOCK, 3).tolist()
    assert count == 2
    assert first == 0x7FFB1 << 12 | 1 << 8 | 7 << 5 | 3
    assert second == 0x500 << 12 | 16 + 4


def test_extended_attributes():
    valid, invalid = golden("wsex", layouts.PSAPI_WORKING_SET_EX_INFORMATION, 2)
    bits = int(valid["VirtualAttributes"])
    assert bits == 1 | 5 << 1 | 0x20 << 4 | 1 << 15 | 33 << 16 | 1 << 22 | 1 << 23
    assert int(invalid["VirtualAttributes"]) == 1 << 15


@pytest.mark.parametrize(("name", "layout", "expected"), [
    ("mbi", layouts.MEMORY_BASIC_INFORMATION, (0x7FF10000, 0x7FF00000, 0x80, 0x3000, 0x1000, 0x20, 0x1000000)),
    ("pmc", layouts.PROCESS_MEMORY_COUNTERS, (72, 123456, 0x2000000, 0x1000000, 0x300000, 0x400000)),
    ("pbi", layouts.PROCESS_BASIC_INFORMATION, (0x7FFE1000, 42, 7)),
    ("spi", layouts.SYSTEM_PROCESS_INFORMATION, (0x180, 0x1DC00000, 14, 0x12340, 42, 7, 0x1000000)),
    ("token", layouts.LUID_AND_ATTRIBUTES, (1, (20).to_bytes(8, "little"), 2)),
    ("startup", layouts.STARTUPINFOEXW, (112, 0x12340)),
    ("created", layouts.PROCESS_INFORMATION, (0x44, 0x48, 42)),
])  # fmt: skip
def test_a_structure_is_as_the_compiler_laid_it_out(name, layout, expected):
    assert golden(name, layout)[0].item() == expected


def test_the_version_of_the_system():
    version = np.frombuffer(bytes.fromhex(BYTES["version"])[:276], layouts.OSVERSIONINFOW)[0]
    assert (int(version["dwOSVersionInfoSize"]), int(version["dwBuildNumber"])) == (276, 26100)
    required = np.frombuffer(bytes.fromhex(BYTES["privset"])[:20], layouts.PRIVILEGE_SET)[0]
    assert (int(required["Count"]), bytes(required["Luid"])[0]) == (1, 20)


def test_the_limits_and_the_members_of_a_job():
    limits = bytes.fromhex(BYTES["joblimit"])
    assert len(limits) >= job._LIMITS_BYTES
    assert limits[job._LIMIT_FLAGS_AT : job._LIMIT_FLAGS_AT + 4] == (0x2800).to_bytes(4, "little")
    members = bytes.fromhex(BYTES["jobpids"])
    assert (members[0], members[4], members[job._LIST_HEAD]) == (3, 1, 42)


@given(st.lists(st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))),
       st.integers(0, 2**64 - 1))  # fmt: skip
@settings(max_examples=60)
def test_any_records_come_out_as_they_went_in(rows, lost):
    records = np.ones(len(rows) + 3, layouts.PSAPI_WS_WATCH_INFORMATION_EX)  # behind the terminator are older ones
    for record, (pc, va, tid) in zip(records, rows, strict=False):
        record["FaultingPc"], record["FaultingVa"], record["FaultingThreadId"] = pc, va, tid
    records["FaultingPc"][len(rows)], records["FaultingVa"][len(rows)] = 0, lost
    changes = decode(records)
    columns = changes.columns
    assert changes.lost == lost
    assert columns["pc"].tolist() == [pc for pc, _, _ in rows]
    assert columns["va"].tolist() == [va & ~1 for _, va, _ in rows]
    assert columns["tid"].tolist() == [tid for _, _, tid in rows]
    assert (columns["flags"] & 1).tolist() == [1 - (va & 1) for _, va, _ in rows]
