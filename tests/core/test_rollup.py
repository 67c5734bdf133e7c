"""Rollups: the sums of all rows are those of the trace, whatever is folded into `(others)`, sampled or lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import synthetic_trace as synthetic

from wstrace.analysis.rollup import LOST, OTHERS, ROLLUP, Rollup, whole_seconds
from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.clock import ClockAnchor
from wstrace.errors import UsageError
from wstrace.schema import CALL_SITE, KIND_ANON, KIND_FILE, PAGE_EXCLUSIVE, PAGE_FAULT, PROCESS, RESIDENT_PAGES
from wstrace.table import Records
from wstrace.testing import batch_of
from wstrace.trace_info import TraceInfo

SECOND = 1_000_000_000
WALL = 1_800_000_000  # a multiple of 60


def info(**other: Any) -> TraceInfo:
    return TraceInfo(clock=ClockAnchor([(0, WALL * SECOND)], "test"), page_size=4096, host={"name": "web1"}, **other)


def rows(batch: Batch) -> list[dict[str, Any]]:
    """The rows with names in clear."""
    text = {column.name for column in ROLLUP.columns if column.semantic == "str"}
    return [
        {name: batch.strings[int(batch[name][at])] if name in text else int(batch[name][at]) for name in batch}
        for at in range(len(batch))
    ]


def faults(strings: Dictionary, seconds: list[int], **columns: Any) -> Batch:
    given = {"pid": 7, "tid": 7, "pc": 1, "va": 4096, "flags": 0, "file": "/f", "kind": KIND_FILE} | columns
    return batch_of(PAGE_FAULT, strings, time_ns=[second * SECOND + 5 for second in seconds], **given)


def snapshot(strings: Dictionary, second: int, pages: list[int], flags: int = 0, **part: Any) -> Batch:
    batch = batch_of(RESIDENT_PAGES, strings, start=[4096 << at for at in range(len(pages))], pages=pages,
                     flags=[flags, *[0] * (len(pages) - 1)], file="/f", kind=KIND_FILE)  # fmt: skip
    given = {"pid": 7, "time_ns": second * SECOND, "number": second, **part}
    return Batch(RESIDENT_PAGES, dict(batch.columns), strings=strings, snapshot=SnapshotPart(**given))


def test_rows_tell_by_second_process_file_function_kind_and_disk():
    strings, rollup = Dictionary(), Rollup(info())
    rollup.add(batch_of(PROCESS, strings, time_ns=0, pid=7, ppid=1, tid=7, event=3, name="server", code=0))
    rollup.add(batch_of(CALL_SITE, strings, id=[1], parent=0, kind=1, mapping=0, offset=0, function="load",
                        file="/srv/app.py", line=3, flags=0))  # fmt: skip
    rollup.add(faults(strings, [0, 0, 1], flags=[0, 1, 0], stack=[1, 1, 0], stack_how=1))
    found = rows(rollup.take())
    common = {"host": "web1", "container_id": "", "process": "server", "file": "/f", "kind": KIND_FILE}
    told = [{name: row[name] for name in ("second", "function", "major", "faults", "bytes")} for row in found]
    assert all(row.items() >= common.items() for row in found)
    assert sorted(map(str, told)) == sorted(map(str, [
        {"second": WALL, "function": "load /srv/app.py", "major": 0, "faults": 1, "bytes": 4096},
        {"second": WALL, "function": "load /srv/app.py", "major": 1, "faults": 1, "bytes": 4096},
        {"second": WALL + 1, "function": "", "major": 0, "faults": 1, "bytes": 4096},
    ]))  # fmt: skip


def test_sums_are_those_of_the_trace_when_rare_keys_are_folded():
    strings, rollup = Dictionary(), Rollup(info(), limit=5)
    truth: Counter[tuple[int, int]] = Counter()
    rollup.add(synthetic.mappings(strings))
    for batch in synthetic.faults(strings, 50_000, rows=1000, ns=50_000):
        files = batch_of(PAGE_FAULT, strings, file=[f"/f{n % 97}" for n in batch["va"] >> np.uint64(12)])["file"]
        told = batch.with_columns({"file": files, "kind": np.where(files % 2, KIND_ANON, KIND_FILE).astype("|u1")})
        rollup.add(told)
        truth.update(zip(told["kind"].tolist(), (told["flags"] & 1).tolist(), strict=True))
    found = rows(rollup.take())
    sums: Counter[tuple[int, int]] = Counter()
    for row in found:
        sums[row["kind"], row["major"]] += row["faults"]
    assert sums == truth
    of_second = Counter(row["second"] for row in found)
    named = Counter(row["second"] for row in found if row["process"] != OTHERS)
    assert len(of_second) >= 2
    assert set(named.values()) == {5}
    assert max(of_second.values()) <= 5 + 4  # the others, by kind and disk
    largest = min(row["faults"] for row in found if row["second"] == WALL and row["file"] != OTHERS)
    assert largest >= 50_000 / len(of_second) / 97 / 2


def test_many_keys_of_one_interval_are_held_in_bounded_memory(monkeypatch):
    monkeypatch.setattr("wstrace.analysis.rollup._HELD", 500)
    strings, rollup = Dictionary(), Rollup(info(), limit=3)
    for start in range(0, 20_000, 400):
        rollup.add(faults(strings, [0] * 400, file=[f"/{n}" for n in range(start, start + 400)]))
        assert rollup._n_held <= 500 + 400
    found = rows(rollup.take())
    assert (len(found), sum(row["faults"] for row in found)) == (4, 20_000)


def test_a_sampled_fault_stands_for_its_period_and_the_estimate_is_marked():
    strings, rollup = Dictionary(), Rollup(info(sampled=7))
    rollup.add(faults(strings, [0, 0, 0]))
    rollup.add(faults(strings, [0, 0], sampled=[1, 100]))
    (row,) = rows(rollup.take())
    assert (row["faults"], row["recorded"], row["bytes"]) == (3 * 7 + 101, 5, (3 * 7 + 101) * 4096)


def test_what_was_lost_is_told_and_never_folded():
    strings, rollup = Dictionary(), Rollup(info(), limit=1)
    lossy = faults(strings, [3] * 9, file=[f"/{n}" for n in range(9)])
    rollup.add(Batch(PAGE_FAULT, dict(lossy.columns), strings=strings, window=lossy.window, lost=41))
    rollup.lose(4 * SECOND, 1)
    found = rows(rollup.take())
    assert {row["second"]: row["lost"] for row in found if row["process"] == LOST} == {WALL + 3: 41, WALL + 4: 1}
    assert (sum(row["faults"] for row in found), sum(row["lost"] for row in found), rollup.lost) == (9, 42, 41)


def test_what_a_merged_trace_lost_is_told_of_the_host_that_lost_it():
    strings, rollup = Dictionary(), Rollup(info(hosts=("a", "b")))
    one = faults(strings, [0, 0]).with_columns({"host": np.array([1, 1], "<u4")})
    rollup.add(Batch(PAGE_FAULT, dict(one.columns), strings=strings, window=one.window, lost=5))
    assert {row["host"] for row in rows(rollup.take()) if row["lost"]} == {"b"}


def test_resident_bytes_are_those_of_the_last_whole_snapshot_in_an_interval():
    strings, rollup = Dictionary(), Rollup(info(), seconds=60)
    rollup.add(snapshot(strings, 1, [5, 6]))
    rollup.add(snapshot(strings, 2, [2, 3], PAGE_EXCLUSIVE, last=False))
    rollup.add(snapshot(strings, 2, [1], part=1))
    rollup.add(snapshot(strings, 3, [50], last=False))  # cut: it never counts
    rollup.add(snapshot(strings, 70, [4]))
    found = {row["second"]: (row["resident_bytes"] // 4096, row["private_bytes"] // 4096, row["looks"], row["faults"])
             for row in rows(rollup.take())}  # fmt: skip
    assert found == {WALL: (6, 2, 1, 0), WALL + 60: (4, 0, 1, 0)}


def test_a_container_is_told_by_the_cgroup_of_its_processes():
    strings, rollup, own = Dictionary(), Rollup(info()), "ab" * 32
    paths = [f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{own}.scope", "/system.slice/cron.service"]
    rollup.add(faults(strings, [0, 0], pid=[7, 8], cgroup=[strings.code(path) for path in paths]))
    rollup.add(snapshot(strings, 0, [4]))
    found = rows(rollup.take())
    assert {row["container_id"]: (row["faults"], row["resident_bytes"]) for row in found} == {
        "": (1, 0),
        own: (1, 16384),
    }


def test_intervals_that_ended_are_taken_and_forgotten():
    strings, rollup = Dictionary(), Rollup(info())
    rollup.add(faults(strings, [0, 1, 2]))
    assert [row["second"] for row in rows(rollup.take(before_ns=2 * SECOND))] == [WALL, WALL + 1]
    rollup.add(faults(strings, [2]))
    assert [(row["second"], row["faults"]) for row in rows(rollup.take())] == [(WALL + 2, 2)]
    assert rows(rollup.take()) == []


def test_equal_pids_of_several_hosts_are_apart():
    strings, rollup = Dictionary(), Rollup(info(hosts=("a", "b")))
    host = np.array([0, 1], "<u4")
    rollup.add(batch_of(PROCESS, strings, time_ns=0, pid=[7, 7], ppid=1, tid=[7, 7], event=1, name=["x", "y"], code=0,
                        host=[0, 1]))  # fmt: skip
    rollup.add(faults(strings, [0, 0]).with_columns({"host": host}))
    assert {(row["host"], row["process"]): row["faults"] for row in rows(rollup.take())} == {
        ("a", "x"): 1,
        ("b", "y"): 1,
    }


def test_rows_without_times_count_when_they_were_read():
    """Windows tells no time of a fault, but when its batch was drained."""
    strings, rollup = Dictionary(), Rollup(info())
    timed = faults(strings, [4, 9])
    columns = {name: timed[name] for name in timed if name != "time_ns"}
    rollup.add(Batch(PAGE_FAULT, columns, strings=strings, window=timed.window))
    assert [(row["second"], row["faults"]) for row in rows(rollup.take())] == [(WALL + 9, 2)]


@pytest.mark.parametrize("seconds", [0.5, 0, -1, 7, 86_401])
def test_an_interval_is_a_part_of_a_day(seconds):
    with pytest.raises(UsageError, match="no interval"):
        whole_seconds(seconds)


@pytest.mark.parametrize("trace", [info(), info(sampled=3)])
def test_nothing_gives_nothing(trace: TraceInfo):
    assert len(Rollup(trace).take()) == 0


def test_its_rows_are_records_like_any_others():
    from wstrace.rollup_files import RollupRows

    strings, rollup = Dictionary(), Rollup(info())
    rollup.add(faults(strings, [0]))
    found: Records = RollupRows(rollup.take())
    assert found.table("rollup", ["second", "faults"]).to_numpy().tolist() == [(WALL, 1)]
