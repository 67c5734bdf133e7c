"""The structures of the watch and of memory: golden bytes laid out by a C compiler, in both pointer widths."""

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
PC, VA = {8: 0x7FFB12345678, 4: 0x1017FFAF}, {8: 0x1D2F4A6B8C10, 4: 0x10190275}
KERNEL_PC = {8: 0xFFFFF80212345678, 4: 0x80512345}
WIDTHS = pytest.mark.parametrize("width", [8, 4], ids=["x64", "x86"])


def golden(name: str, layout: dict[int, np.dtype], width: int, count: int = 1) -> np.ndarray:
    raw = bytes.fromhex(BYTES[str(width)][name])
    return np.frombuffer(raw[: count * layout[width].itemsize], layout[width])


@WIDTHS
def test_extended_records_have_the_thread(width):
    changes = decode(golden("wswatchx", layouts.PSAPI_WS_WATCH_INFORMATION_EX, width, 3))
    assert changes.columns["tid"].tolist() == [4711, 4712]
    assert changes.columns["va"].tolist() == [VA[width] & ~1, 0x20000]
    assert changes.lost == 7
    assert {name: str(c.dtype) for name, c in changes.columns.items()} == {
        "pc": "uint64", "va": "uint64", "flags": "uint8", "tid": "uint32"
    }  # fmt: skip


@WIDTHS
def test_bit_0_is_soft_and_no_part_of_the_address(width):
    soft, hard = decode(golden("wswatchx", layouts.PSAPI_WS_WATCH_INFORMATION_EX, width, 3)).columns["flags"]
    assert not soft & FAULT_MAJOR
    assert hard & FAULT_MAJOR


@WIDTHS
def test_an_instruction_in_the_kernel_is_told(width):
    user, kernel = decode(golden("wswatchx", layouts.PSAPI_WS_WATCH_INFORMATION_EX, width, 3)).columns["flags"]
    assert not user & FAULT_PC_KERNEL
    assert kernel & FAULT_PC_KERNEL


def test_a_large_address_aware_x86_process_has_user_code_above_2_gib():
    records = golden("wswatchx", layouts.PSAPI_WS_WATCH_INFORMATION_EX, 4, 3)
    assert not decode(records, kernel_base=0xC0000000).columns["flags"][1] & FAULT_PC_KERNEL


@WIDTHS
def test_what_lies_behind_the_terminator_is_not_read(width):
    records = np.ones(8, layouts.PSAPI_WS_WATCH_INFORMATION_EX[width])
    records["FaultingPc"][5] = 0
    records["FaultingVa"][5] = 3
    changes = decode(records)
    assert (len(changes), changes.lost) == (5, 3)


def test_a_full_buffer_without_terminator_ends_at_its_end():
    changes = decode(np.ones(4, layouts.PSAPI_WS_WATCH_INFORMATION_EX[8]))
    assert (len(changes), changes.lost) == (4, 0)
    assert len(decode(np.zeros(0, layouts.PSAPI_WS_WATCH_INFORMATION_EX[8]))) == 0


def test_columns_do_not_change_when_the_buffer_is_used_again():
    records = np.ones(4, layouts.PSAPI_WS_WATCH_INFORMATION_EX[8])
    columns = decode(records).columns
    records[:] = np.zeros(1, records.dtype)
    assert all(column.any() for name, column in columns.items() if name not in ("va", "flags"))


@WIDTHS
def test_working_set_blocks(width):
    count, first, second = golden("wsblocks", layouts.PSAPI_WORKING_SET_BLOCK, width, 3).tolist()
    assert count == 2
    assert first == 0x7FFB1 << 12 | 1 << 8 | 7 << 5 | 3
    assert second == 0x500 << 12 | 16 + 4


@WIDTHS
def test_extended_attributes(width):
    valid, invalid = golden("wsex", layouts.PSAPI_WORKING_SET_EX_INFORMATION, width, 2)
    bits = int(valid["VirtualAttributes"])
    assert bits == 1 | 5 << 1 | 0x20 << 4 | 1 << 15 | 33 << 16 | 1 << 22 | 1 << 23
    assert int(invalid["VirtualAttributes"]) == 1 << 15


@WIDTHS
def test_memory_basic_information(width):
    row = golden("mbi", layouts.MEMORY_BASIC_INFORMATION, width)[0]
    assert row.item() == (0x7FF10000, 0x7FF00000, 0x80, 0x3000, 0x1000, 0x20, 0x1000000)


@WIDTHS
def test_process_counters_and_entries(width):
    counters = golden("pmc", layouts.PROCESS_MEMORY_COUNTERS, width)[0]
    assert counters.item() == (72 if width == 8 else 40, 123456, 0x2000000, 0x1000000, 0x300000, 0x400000)
    entry = golden("pe32w", layouts.PROCESSENTRY32W, width)[0]
    assert (int(entry["dwSize"]), int(entry["th32ProcessID"]), int(entry["th32ParentProcessID"])) == (
        entry.itemsize, 42, 7
    )  # fmt: skip
    assert entry["szExeFile"].tobytes().startswith("app.exe\0".encode("utf-16-le"))


@WIDTHS
def test_token_privileges(width):
    raw = bytes.fromhex(BYTES[str(width)]["token"])
    row = np.frombuffer(raw[:16], layouts.LUID_AND_ATTRIBUTES)[0]
    assert (int(row["Count"]), int(row["Attributes"])) == (1, 2)


@WIDTHS
def test_what_tells_of_processes(width):
    basic = golden("pbi", layouts.PROCESS_BASIC_INFORMATION, width)[0]
    assert basic.item() == (0x7FFE1000, 42, 7)
    entry = golden("spi", layouts.SYSTEM_PROCESS_INFORMATION, width)[0]
    assert entry.item() == (0x180, 14, 0x12340, 42, 7, 0x1000000)


@WIDTHS
def test_what_creates_a_process(width):
    size = {8: 112, 4: 72}[width]
    assert golden("startup", layouts.STARTUPINFOEXW, width)[0].item() == (size, 0x12340)
    assert golden("created", layouts.PROCESS_INFORMATION, width)[0].item() == (0x44, 0x48, 42)


@WIDTHS
def test_the_system_and_its_version(width):
    assert golden("sysinfo", layouts.SYSTEM_INFO, width)[0].item() == (4096, 0x7FFEFFFF)
    version = np.frombuffer(bytes.fromhex(BYTES[str(width)]["version"])[:276], layouts.OSVERSIONINFOW)[0]
    assert (int(version["dwOSVersionInfoSize"]), int(version["dwBuildNumber"])) == (276, 26100)
    required = np.frombuffer(bytes.fromhex(BYTES[str(width)]["privset"])[:20], layouts.PRIVILEGE_SET)[0]
    assert (int(required["Count"]), bytes(required["Luid"])[0]) == (1, 20)


@WIDTHS
def test_the_limits_and_the_members_of_a_job(width):
    limits = bytes.fromhex(BYTES[str(width)]["joblimit"])
    assert len(limits) >= job._LIMITS_BYTES[width]
    assert limits[job._LIMIT_FLAGS_AT : job._LIMIT_FLAGS_AT + 4] == (0x2800).to_bytes(4, "little")
    members = bytes.fromhex(BYTES[str(width)]["jobpids"])
    assert (members[0], members[4], members[job._LIST_HEAD]) == (3, 1, 42)


@given(st.lists(st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))),
       st.integers(0, 2**64 - 1))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_records_come_out_as_they_went_in(rows, lost):
    records = np.zeros(len(rows) + 1, layouts.PSAPI_WS_WATCH_INFORMATION_EX[8])
    for record, (pc, va, tid) in zip(records, rows, strict=False):
        record["FaultingPc"], record["FaultingVa"], record["FaultingThreadId"] = pc, va, tid
    records["FaultingVa"][-1] = lost
    changes = decode(records)
    columns = changes.columns
    assert changes.lost == lost
    assert columns["pc"].tolist() == [pc for pc, _, _ in rows]
    assert columns["va"].tolist() == [va & ~1 for _, va, _ in rows]
    assert columns["tid"].tolist() == [tid for _, _, tid in rows]
    assert (columns["flags"] & 1).tolist() == [1 - (va & 1) for _, va, _ in rows]
