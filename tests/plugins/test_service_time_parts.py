"""Service times without a kernel: rows and the samples that they belong to, what is taken off, what is not told."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from side_band_records import lost

from wstrace.schema import DTYPES, PAGE_FAULT
from wstrace_plugins.page_faults.linux.python_stacks.protocol import STACK_ROW
from wstrace_plugins.page_faults.linux.python_stacks.rows import StackRows
from wstrace_plugins.page_faults.linux.samples import RingSamples, merge
from wstrace_plugins.page_faults.linux.service_time import capture
from wstrace_plugins.page_faults.linux.service_time.calibration import OwnCost, cost_of
from wstrace_plugins.page_faults.linux.service_time.programs import SERVICE_ROW
from wstrace_plugins.page_faults.linux.service_time.rows import NO_ENTRY, NO_ROW, ServiceRows


def sample(time_ns: int, tid: int = 8, va: int = 0x7000) -> bytes:
    return struct.pack("<IHHQIIQQ", 9, 2, 40, 0x400, 7, tid, time_ns, va)


def row(mark: int, value: int, tid: int = 8) -> bytes:
    return struct.pack("<IHHIIQQQ", 9, 2, 40, 7, tid, 0, mark, value)


def time_of(value: int, tid: int = 8) -> bytes:
    return row(SERVICE_ROW, value, tid)


def stack(value: int, tid: int = 8) -> bytes:
    return row(STACK_ROW, value, tid)


def taken(*reads: tuple[bytes, ...], stacks: bool = False, doubled: bool = False) -> dict[str, Any]:
    """The columns of what was read from a ring in these parts."""
    samples = RingSamples(False, StackRows() if stacks else None, ServiceRows())
    for parts in reads:
        samples.take(np.frombuffer(b"".join(parts), np.uint8), 0, 10**9, doubled=doubled)
    return merge([samples, RingSamples(True, StackRows() if stacks else None, ServiceRows())], 10**9)


def test_a_sample_has_the_time_of_the_row_before_it() -> None:
    columns = taken((time_of(500), sample(10), sample(20), time_of(0), sample(30)))
    assert columns["time_ns"].tolist() == [10, 20, 30]
    assert columns["service_ns"].tolist() == [501, NO_ROW, NO_ENTRY]


def test_a_time_is_of_one_sample_of_its_thread() -> None:
    columns = taken((time_of(500, tid=9), sample(10), time_of(600), time_of(700), sample(20), time_of(800)))
    assert columns["service_ns"].tolist() == [NO_ROW, 701]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_the_end_of_a_read_is_between_a_row_and_its_sample(cut: int) -> None:
    parts = (time_of(500), sample(10), time_of(600), sample(20), sample(30))
    assert taken(parts[:cut], (), parts[cut:])["service_ns"].tolist() == [501, 601, NO_ROW]


def test_after_a_loss_no_time_goes_to_another_fault() -> None:
    """The sample of a row is lost, or a row is, or both: the record of the loss stands before what comes next."""
    assert taken((time_of(500), lost(1, 5), sample(10)))["service_ns"].tolist() == [NO_ROW]
    assert taken((time_of(500), lost(1, 5), time_of(9), sample(10)))["service_ns"].tolist() == [10]
    assert taken((time_of(500),), (lost(3, 5), sample(10)))["service_ns"].tolist() == [NO_ROW]
    hostile = struct.pack("<IHHQQQQ", 2, 0, 40, 0, 0, SERVICE_ROW, 77)
    assert taken((hostile, sample(10)))["service_ns"].tolist() == [NO_ROW]


def test_beside_stack_rows() -> None:
    """A stack row stands between the time and the sample, or none where the stack is the same as before."""
    columns = taken((time_of(500), stack(1 << 20), sample(10), time_of(600), sample(20)), stacks=True)
    assert columns["stack_hash"].tolist() == [1 << 20, 1 << 20]
    assert columns["service_ns"].tolist() == [501, 601]


@pytest.mark.parametrize(
    "parts",
    [
        (time_of(500), sample(10), time_of(0), sample(10)),
        (time_of(0), sample(10), time_of(500), sample(10)),
        (sample(10), time_of(500), sample(10)),
        (time_of(500), sample(10), sample(10)),
    ],
)
def test_of_a_fault_that_two_events_give_twice_the_time_is_kept(parts: tuple[bytes, ...]) -> None:
    assert taken(parts, doubled=True)["service_ns"].tolist() == [501]


def test_a_ring_with_nothing_gives_an_empty_column_or_none() -> None:
    assert len(taken(())["time_ns"]) == 0


def test_own_cost_is_taken_off_and_what_is_below_twice_the_noise_is_not_told() -> None:
    told = np.array([NO_ROW, NO_ENTRY, 1 + 100, 1 + 100 + 39, 1 + 100 + 40, 1 + 1500, 2], "<u8")
    times, reasons = capture.served(told, OwnCost(100, 20))
    assert times.tolist() == [0, 0, 0, 0, 40, 1400, 0]
    assert reasons == (1, 1, 3)
    [column] = [column for column in PAGE_FAULT.columns if column.name == "service_ns"]
    assert times.dtype.str == DTYPES[column.type]


def test_the_cost_is_the_median_and_the_noise_holds_95_percent() -> None:
    cost = cost_of(np.array([100] * 90 + [110] * 6 + [5000] * 4, "<u8"))
    assert cost == OwnCost(100, 10)
    assert cost.least == 20


def test_a_time_that_is_below_its_own_cost_without_noise_is_not_told() -> None:
    assert capture.served(np.array([1 + 100], "<u8"), OwnCost(100, 0))[0].tolist() == [0]


def test_another_machine_is_refused_in_words(monkeypatch: Any) -> None:
    monkeypatch.setattr(capture.platform, "machine", lambda: "riscv64")
    level = capture.level()
    assert (level.name, level.why) == ("none", "the programs that measure them are for x86_64, this machine is riscv64")
