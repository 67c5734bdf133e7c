"""Registers in the records of faults: rows of two lengths in one ring, and the columns that they become."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest

if sys.platform != "linux":
    pytest.skip("the records are Linux's", allow_module_level=True)

from wstrace.errors import UsageError
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.backend import PageFaults
from wstrace_plugins.page_faults.linux.events import Settings
from wstrace_plugins.page_faults.linux.python_stacks.protocol import STACK_ROW
from wstrace_plugins.page_faults.linux.python_stacks.rows import StackRows
from wstrace_plugins.page_faults.linux.registers import REGISTERS, part, taken_out
from wstrace_plugins.page_faults.linux.rings import MINOR
from wstrace_plugins.page_faults.linux.samples import RingSamples, merge


def sample(time_ns: int, *registers: int, junk: bytes = b"", misc: int = perf.PERF_RECORD_MISC_USER) -> bytes:
    """A fault at that time, at the address 4096 times it, with ABI, BP and SP."""
    size = 40 + 8 * len(registers) + len(junk)
    row = struct.pack("<IHHQIIQQ", perf.PERF_RECORD_SAMPLE, misc, size, 0x400, 7, 8, time_ns, time_ns * 4096)
    return row + struct.pack(f"<{len(registers)}Q", *registers) + junk


def lost(n: int, time_ns: int) -> bytes:
    return struct.pack("<IHHQQIIQ", perf.PERF_RECORD_LOST, 0, 40, 1, n, 7, 8, time_ns)


def taken(samples: RingSamples, *records: bytes) -> RingSamples:
    samples.take(np.frombuffer(b"".join(records), np.uint8), 0, 1 << 62, doubled=False)
    return samples


def test_registers_become_columns_of_their_own() -> None:
    columns = merge([taken(RingSamples(False, registers=True), sample(10, 2, 5, 6), sample(20, 2, 7, 8))], 99)
    registers = taken_out(columns)
    assert {name: column.tolist() for name, column in registers.items()} == {
        "time_ns": [10, 20], "bp": [5, 7], "sp": [6, 8],
    }  # fmt: skip
    assert set(columns) == {"time_ns", "pid", "tid", "pc", "va", "flags"}
    assert [one["sp"].tolist() for one in part(registers, 1, 9)] == [[8]]


def test_rows_of_other_lengths_are_told_apart() -> None:
    """Losses have 40 bytes, rows without registers 48; another tracer's event makes rows longer."""
    longer = sample(30, 2, 7, 8, junk=sample(1, 2, 3, 4) + b"\xff" * 24)
    samples = taken(RingSamples(False, registers=True), sample(10, 2, 5, 6), lost(5, 15), sample(20, 0), longer,
                    sample(40, 2, 9, 10), lost(2, 45), sample(50, 1, 0, 77))  # fmt: skip
    columns = merge([samples], 99)
    registers = taken_out(columns)
    assert (columns["time_ns"].tolist(), columns["va"].tolist()) == (
        [10, 20, 30, 40, 50], [n * 4096 for n in (10, 20, 30, 40, 50)],
    )  # fmt: skip
    assert registers["sp"].tolist() == [6, 0, 8, 10, 0], "one of another ABI than that of 64 bits counts"
    assert (samples.lost, samples.malformed) == (7, 0)


def test_they_stand_beside_the_rows_of_python_stacks() -> None:
    row = struct.pack("<IHHQIIQQ", perf.PERF_RECORD_SAMPLE, 1, 40, 7 | 8 << 32, 0, 0, STACK_ROW, 77)
    samples = RingSamples(False, StackRows(), registers=True)
    columns = merge([taken(samples, sample(10, 2, 5, 6), row, sample(20, 2, 7, 8), sample(30, 2, 7, 9))], 99)
    assert columns["stack_hash"].tolist()[1:] == [77, 77]
    assert taken_out(columns)["sp"].tolist() == [6, 8, 9]


def test_records_have_registers_only_where_they_are_asked_for() -> None:
    [plain] = Settings().attributes(MINOR, lost=True)
    [asked] = Settings(registers=True).attributes(MINOR, lost=True)
    assert (plain["sample_regs_user"][0], asked["sample_regs_user"][0]) == (0, REGISTERS)
    assert asked["sample_type"][0] == plain["sample_type"][0] | perf.PERF_SAMPLE_REGS_USER


def test_borrowing_needs_native_stacks_sampled_by_time() -> None:
    PageFaults(stacks="native", borrow=True)
    with pytest.raises(UsageError, match="borrow=true is for native stacks"):
        PageFaults(stacks="python", borrow=True)
    with pytest.raises(UsageError, match="samples that keep no step with the program"):
        PageFaults(stacks="native", borrow=True, stack_period=16)
