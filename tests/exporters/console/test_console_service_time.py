"""The time in faults in a report: a column where it was recorded, an order of rows, and the same sum in each table."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from stacks_scripted import Fault, Stacks

from wstrace.analysis.summary import Summary
from wstrace.batch import Batch
from wstrace.schema import HOW_NOT_PYTHON, PAGE_FAULT

HEAP, TORCH = "[heap]", "/opt/torch/lib/libtorch_cpu.so"
PARSE, LOAD = ("parse", "/srv/app/leak.py", 12), ("load", "/srv/app/leak.py", 20)


def timed(batch: Batch, *times: int) -> Batch:
    """The faults of a batch with these service times in turn, in ns."""
    return batch.with_columns({"service_ns": np.resize(np.array(times, "<u8"), len(batch))})


def files(trace: Any) -> list[Batch]:
    """9 short faults of the heap, 3 long ones of a file, of which one has no known time."""
    return [
        timed(trace.faults([(9, HEAP, TORCH)]), 1_000),
        timed(trace.faults([(3, TORCH, TORCH)], major=True, pid=8, tid=8), 2_000_000, 4_000_000, 0),
    ]


def lines(kit: Any, how: str = "files", **options: Any) -> list[str]:
    trace = kit.Trace()
    trace.context.info.page_size = 4096
    if how == "files":
        return list(kit.printed(trace, files(trace), **options).splitlines())
    faults = [Fault([PARSE])] * 9 + [Fault([LOAD])] * 2 + [Fault([])] + [Fault(None, how=HOW_NOT_PYTHON)] * 2
    batches = Stacks(trace.context.strings).batches(faults)
    batches[-1] = timed(batches[-1], *[1_000] * 9, 3_000_000, 2_000_000, 500, 100, 200)
    if how == "native":
        batches[-1] = batches[-1].with_columns({name: batches[-1][name] * 0 for name in ("stack", "stack_how")})
    return list(kit.printed(trace, batches, **options).splitlines())


def cells(line: str) -> list[str]:
    """The words of a line without its bar."""
    return [word for word in line.split() if word.isascii()]


def test_without_times_there_is_no_column(kit: Any) -> None:
    trace = kit.Trace()
    assert "time in faults" not in kit.printed(trace, kit.ordinary(trace))
    trace = kit.Trace()
    report = json.loads(kit.printed(trace, kit.ordinary(trace), json=True))
    assert "time_ns" not in json.dumps(report)


@pytest.mark.parametrize("by", ["file", "process", "thread", "pair"])
def test_with_times_each_table_has_them_and_can_be_in_their_order(kit: Any, by: str) -> None:
    first, second = lines(kit, by=by)[4:6]
    assert cells(first)[:6] == ["9", "0", "9", "us", "75.0%", cells(first)[5]]
    assert cells(second)[:5] == ["3", "3", "6", "ms", "25.0%"]
    first, second = lines(kit, by=by, sort="time")[4:6]
    assert cells(first)[:5] == ["3", "3", "6", "ms", "99.9%"]
    assert cells(second)[:5] == ["9", "0", "9", "us", "0.1%"]


def test_by_own_line(kit: Any) -> None:
    table = lines(kit, "stacks", by="line", sort="time")[3:]
    assert table[0].split()[:5] == ["faults", "time", "in", "faults", "share"]
    assert [cells(line)[:3] for line in table[1:5]] == [
        ["2", "5", "ms"],
        ["9", "9", "us"],
        ["1", "0.5", "us"],
        ["2", "0.3", "us"],
    ]
    assert [line.rsplit("  ", 1)[1] for line in table[1:5]] == [
        "load leak.py:20", "parse leak.py:12", "(no Python frame)", "(not a Python program)",
    ]  # fmt: skip
    assert "99.8%" in table[1]


def test_where_no_time_was_recorded_the_order_is_refused_in_words(kit: Any) -> None:
    trace = kit.Trace()
    assert kit.printed(trace, kit.ordinary(trace), sort="time").splitlines()[3] == (
        "no service time was recorded: record with -s page_faults:service_time=true (see wstrace doctor)"
    )
    found = lines(kit, "native", by="line", native=True, sort="time")
    assert found[3] == "samples of native code tell no time in faults: --by file, module or thread does"


def test_json_has_the_times(kit: Any) -> None:
    report = json.loads("\n".join(lines(kit, json=True)))
    summary = report["summary"]
    assert (summary["timed"], summary["time_ns"]) == (11, 6_009_000)
    for rows in summary["top"].values():
        assert sum(row.get("time_ns", 0) for row in rows) == 6_009_000
    (row,) = json.loads("\n".join(lines(kit, "stacks", json=True, by="line", top=1)))["summary"]["top"]["line"]
    assert (row["name"], row["time_ns"]) == ("parse leak.py:12", 9_000)


def test_forged_times_are_bounded(kit: Any) -> None:
    trace, summary = kit.Trace(), Summary()
    summary.add(timed(trace.faults([(70_000, HEAP, TORCH)]), (1 << 64) - 1))
    (row,) = summary.top("file")
    assert row.time_ns == summary.time_ns == 70_000 << 45
    assert PAGE_FAULT.column("service_ns") is not None
