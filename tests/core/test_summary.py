"""Summary agrees with counting by hand, in bounded memory; Filter keeps what it says."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.analysis.filter import Filter
from wstrace.analysis.summary import OTHER, UNKNOWN, By, Summary
from wstrace.analysis.tally import Tally, distinct, group
from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.errors import UsageError
from wstrace.schema import (
    KINDS,
    MAPPING,
    PAGE_FAULT,
    PAGE_SWAPPED,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    RESIDENT_PAGES,
    WRITTEN_PAGES,
)
from wstrace.text import base_name

NAMES = ["/usr/lib/libc.so.6", "/opt/lib/libc.so.6", "/usr/bin/python3.11", "[heap]", "[anon]", "/a b/data\n.bin"]
ROW = st.tuples(
    st.integers(0, 10**6),  # time
    st.sampled_from([7, 8, 4_000_000, 2**32 - 1]),  # pid
    st.sampled_from([7, 8, 9, 4_000_001, 2**32 - 1]),  # tid
    st.integers(0, 63),  # flags
    st.integers(0, len(NAMES)),  # file
    st.integers(0, len(NAMES)),  # pc_file
    st.integers(0, len(KINDS) - 1),
)


def dictionary(names: list[str] = NAMES) -> Dictionary:
    strings = Dictionary()
    for name in names:
        strings.code(name)
    return strings


def faults(rows: list[tuple[int, ...]], strings: Dictionary, *, drop: tuple[str, ...] = (), **more: Any) -> Batch:
    names = ("time_ns", "pid", "tid", "flags", "file", "pc_file", "kind")
    types = ("u8", "u4", "u4", "u1", "u4", "u4", "u1")
    columns = {
        name: np.array([row[i] for row in rows], dtype)
        for i, (name, dtype) in enumerate(zip(names, types, strict=True))
        if name not in drop
    }
    return Batch(PAGE_FAULT, columns, strings=strings, **more)


def by_hand(rows: list[tuple[int, ...]], by: By) -> dict[tuple[Any, ...], tuple[int, int]]:
    """The same table, counted one record at a time."""
    known = [UNKNOWN, *NAMES]
    count: Counter[tuple[Any, ...]] = Counter()
    major: Counter[tuple[Any, ...]] = Counter()
    for _time, pid, tid, flags, file, module, kind in rows:
        key = {
            "file": (known[file],),
            "module": (base_name(known[module]),),
            "pair": (known[file], base_name(known[module])),
            "thread": ("", pid, tid),
            "process": ("", pid),
            "kind": (KINDS[kind],),
            "cgroup": (UNKNOWN,),
        }[by]
        count[key] += 1
        major[key] += flags & 1
    return {key: (n - major[key], major[key]) for key, n in count.items()}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ROW, max_size=60), max_size=5), st.sampled_from(get_args(By)))
def test_summary_equals_counting_by_hand(batches: list[list[tuple[int, ...]]], by: By) -> None:
    strings, summary = dictionary(), Summary()
    for rows in batches:
        summary.add(faults(rows, strings))
    rows = [row for batch in batches for row in batch]

    expected = by_hand(rows, by)
    assert {row.key: (row.minor, row.major) for row in summary.top(by, None)} == expected
    assert (summary.total, summary.major) == (len(rows), sum(row[3] & 1 for row in rows))
    assert summary.minor == summary.total - summary.major
    assert summary.kernel == sum(row[3] >> 1 & 1 for row in rows)
    assert summary.observer == sum(row[3] >> 5 & 1 for row in rows)
    assert summary.unresolved == sum(row[4] == 0 for row in rows)
    if rows:
        assert (summary.first_ns, summary.last_ns) == (
            min(r[0] for r in rows) or summary.first_ns,
            max(r[0] for r in rows),
        )
    for hard, soft in ((False, False), (True, False), (False, True)):
        ordered = sorted(((0 if hard else a) + (0 if soft else b) for a, b in expected.values()), reverse=True)
        top = summary.top(by, 2, hard=hard, soft=soft)
        assert [row.total for row in top] == [n for n in ordered if n][:2]
        assert all(row.total == row.minor + row.major for row in top)
        assert all(row.share == pytest.approx(row.total / sum(ordered)) for row in top)
    json.dumps(summary.as_dict())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(-3, 3), st.booleans(), st.integers(0, 1000)), max_size=80))
def test_group_counts_and_weighs(rows: list[tuple[int, int, bool, int]]) -> None:
    a, b = np.array([r[0] for r in rows], np.int64), np.array([r[1] for r in rows], np.int64)
    c, w = np.array([r[2] for r in rows], np.uint8), np.array([r[3] for r in rows], np.int64)
    (x, y, z), counts = group(a, b, c)
    found = dict(zip(zip(x.tolist(), y.tolist(), z.tolist(), strict=True), counts.tolist(), strict=True))
    assert found == Counter((r[0], r[1], int(r[2])) for r in rows)
    (x,), sums = group(b, weights=w)
    weighed: Counter[int] = Counter()
    for row in rows:
        weighed[row[1]] += row[3]
    assert dict(zip(x.tolist(), sums.tolist(), strict=True)) == {r[1]: weighed[r[1]] for r in rows}


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50), st.sampled_from(["<u8", "<u4", "<i8", "u1"]))
def test_distinct_is_what_np_unique_gives(values: list[int], dtype: str) -> None:
    column = np.array(values, "<u8").astype(dtype)
    assert np.array_equal(distinct(column), np.unique(column))
    assert distinct(column).dtype == column.dtype


def test_group_of_wide_of_strided_and_of_many_columns() -> None:
    rows = np.zeros(40_000, np.dtype([("x", "<u8"), ("y", "<u4"), ("z", "<u4")]))
    rng = np.random.default_rng(1)
    rows["y"] = rng.integers(0, 2**32, len(rows), dtype=np.uint32)
    rows["y"][::2] = 2**32 - 1
    rows["z"] = rng.integers(1000, 1400, len(rows))
    (y, z), counts = group(rows["y"], rows["z"])
    expected = Counter(zip(rows["y"].tolist(), rows["z"].tolist(), strict=True))
    assert dict(zip(zip(y.tolist(), z.tolist(), strict=True), counts.tolist(), strict=True)) == expected


def test_tables_stay_bounded_and_their_sum_exact() -> None:
    summary, rng = Summary(), np.random.default_rng(2)
    n, rounds = 40_000, 12
    for i in range(rounds):
        tid = np.arange(i * n, (i + 1) * n, dtype=np.uint32)
        tid[: n // 4] = 7  # one busy thread among 480,000
        columns = {"pid": np.full(n, 7, np.uint32), "tid": tid, "flags": rng.integers(0, 2, n).astype(np.uint8)}
        summary.add(Batch(PAGE_FAULT, columns, window=(5, 6)))
    table = summary.top("thread", None)
    assert len(table) <= Summary.LIMIT + 1
    assert sum(row.total for row in table) == summary.total == n * rounds
    assert sum(row.major for row in table) == summary.major
    assert any(row.label == OTHER for row in table)
    assert {row.key: row.total for row in table}["", 7, 7] == n // 4 * rounds
    assert (summary.first_ns, summary.last_ns) == (5, 6)


def test_tally_of_hostile_keys_forgets_the_rare_ones_first() -> None:
    tally = Tally(limit=8)
    tally.add(np.array([1, 2, 1]), np.array([60, 50, 40]), np.array([2, 2]), np.array([30, 20]))
    for key in range(10, 200):
        tally.add(np.array([key]), np.array([1]), np.array([key]), np.array([1]))
        assert len(tally) <= 8
    held = dict(zip(tally.keys.tolist(), tally.counts.tolist(), strict=True))
    assert held.items() >= {1: [100, 0], 2: [50, 50]}.items()
    assert tally.total().tolist() == [340, 240]


def test_batches_with_another_dictionary_count_under_the_same_name() -> None:
    summary = Summary()
    summary.add(faults([(1, 7, 7, 0, 1, 3, 1)], dictionary()))
    summary.add(faults([(2, 7, 7, 0, 3, 1, 1), (3, 7, 7, 0, 99, 1, 1)], dictionary(NAMES[::-1][3:])))
    assert {row.label: row.total for row in summary.top("file", None)} == {NAMES[0]: 2, UNKNOWN: 1}
    assert {row.label: row.total for row in summary.top("module", None)} == {"python3.11": 3}


def test_no_enricher_means_all_unknown() -> None:
    summary = Summary()
    summary.add(faults([(1, 7, 7, 0, 1, 1, 1)], dictionary(), drop=("file", "pc_file", "kind")))
    assert (summary.unresolved, [row.label for row in summary.top("pair")]) == (1, [f"{UNKNOWN} by {UNKNOWN}"])
    assert [row.label for row in summary.top("kind")] == ["other"]


def process(rows: list[tuple[int, int, int, int, str]], strings: Dictionary) -> Batch:
    """Rows of (pid, ppid, tid, event, name)."""
    columns = {
        name: np.array([row[i] for row in rows], dtype)
        for i, (name, dtype) in enumerate([("pid", "u4"), ("ppid", "u4"), ("tid", "u4"), ("event", "u1")])
    }
    columns["name"] = np.array([strings.code(row[4]) for row in rows], "u4")
    return Batch(PROCESS, columns, strings=strings)


def test_threads_and_processes_bear_their_last_name() -> None:
    strings, summary = dictionary(), Summary()
    rows = [
        (7, 1, 7, PROCESS_EXEC, "sh"),
        (7, 1, 7, PROCESS_EXEC, "python"),
        (7, 7, 8, PROCESS_FORK, ""),
        (9, 7, 9, PROCESS_FORK, ""),
        (7, 1, 10, 5, "worker"),
        (9, 7, 9, PROCESS_EXIT, ""),
        (7, 7, 8, PROCESS_EXIT, ""),
    ]
    summary.add(process(rows, strings))
    summary.add(
        faults(
            [
                (1, 7, 7, 0, 1, 1, 1),
                (1, 7, 8, 0, 1, 1, 1),
                (1, 9, 9, 0, 1, 1, 1),
                (1, 7, 10, 0, 1, 1, 1),
                (1, 11, 11, 0, 1, 1, 1),
            ],
            strings,
        )
    )
    assert [row.label for row in summary.top("process")] == ["python (7)", f"{UNKNOWN} (11)", "python (9)"]
    assert sorted(row.label for row in summary.top("thread")) == [
        f"{UNKNOWN} (11)",
        "python (7)",
        "python (8)",
        "python (9)",
        "worker (10)",
    ]
    assert summary.exits == 1  # of processes; the thread's exit is none
    assert summary.count("process") == 3


def pages(schema: Any, header: dict[str, Any], rows: list[tuple[int, int, int]], strings: Dictionary) -> Batch:
    """Rows of (pages, file, flags)."""
    columns = {
        "start": np.arange(len(rows), dtype="u8") << 12,
        "pages": np.array([row[0] for row in rows], "u4"),
        "file": np.array([row[1] for row in rows], "u4"),
        "kind": np.array([1 if row[1] < 4 else 2 for row in rows], "u1"),
    }
    if schema is RESIDENT_PAGES:
        columns["flags"] = np.array([row[2] for row in rows], "u2")
    return Batch(schema, columns, snapshot=SnapshotPart.from_dict(header), strings=strings)


def test_resident_is_each_process_s_last_whole_snapshot() -> None:
    strings, summary = dictionary(), Summary()

    def add(pid: int, snap: int, part: int, last: bool, *rows: tuple[int, int, int], t: int = 5) -> None:
        header = {"snap": snap, "part": part, "last": last, "pid": pid, "t": t, "pages": 0}
        summary.add(pages(RESIDENT_PAGES, header, list(rows), strings))

    add(7, 1, 0, False, (10, 1, 0), (5, 5, 0))
    assert summary.resident() == []  # a snapshot counts when it is whole
    add(7, 1, 1, True, (1, 1, 0), (100, 1, PAGE_SWAPPED))
    assert summary.resident()[0] == (NAMES[0], "file", 11)
    add(7, 2, 0, False, (999, 1, 0))
    assert summary.resident()[0] == (NAMES[0], "file", 11)  # not whole yet
    add(7, 2, 1, True, (1, 1, 0))
    add(8, 3, 0, True, (4, 1, 0))
    assert summary.resident() == [(NAMES[0], "file", 1004)]
    add(8, 9, 0, True, (70, 1, 0), t=4)
    assert summary.resident() == [(NAMES[0], "file", 1004)]  # of another source, taken before, come late


def test_written_pages_add_up() -> None:
    strings, summary = dictionary(), Summary()
    for _ in range(3):
        summary.add(pages(WRITTEN_PAGES, {"pid": 7, "snap": 1, "last": True}, [(2, 5, 0), (1, 1, 0)], strings))
    assert summary.written() == [("[anon]", "anon", 6), (NAMES[0], "file", 3)]
    assert summary.as_dict()["written"][0] == {"file": "[anon]", "kind": "anon", "pages": 6}


def test_other_streams_are_ignored() -> None:
    summary = Summary()
    summary.add(Batch(MAPPING, {"id": np.array([1], "u4")}))
    assert summary.total == 0
    assert summary.top() == []


# -- Filter ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ROW, max_size=40),
    st.sampled_from(["", "*", "libc*", "/usr/*", "[[]heap]", "nothing"]),
    st.sampled_from([0, 8]),
    st.sampled_from([(0, 0), (1e-4, 0), (0, 5e-4), (1e-4, 5e-4)]),
    st.sampled_from(["", "hard", "soft"]),
)
def test_filter_keeps_what_it_says(
    rows: list[tuple[int, ...]], glob: str, tid: int, span: tuple[float, float], kind: str
) -> None:
    known = ["", *NAMES]
    condition = Filter(
        file=glob,
        tids=[tid] if tid else [],
        start=span[0],
        end=span[1],
        hard=kind == "hard",
        soft=kind == "soft",
        origin_ns=1000,
    )
    kept = condition.apply(faults(rows, dictionary()))
    start, end = 1000 + span[0] * 1e9, 1000 + span[1] * 1e9 if span[1] else 10**12
    expected = [
        row
        for row in rows
        if (not glob or fnmatch.fnmatchcase(known[row[4]], glob) or fnmatch.fnmatchcase(base_name(known[row[4]]), glob))
        and tid in (0, row[2])
        and (not (span[0] or span[1]) or start <= row[0] < end)
        and {"": True, "hard": row[3] & 1 == 1, "soft": row[3] & 1 == 0}[kind]
    ]
    assert kept["time_ns"].tolist() == [row[0] for row in expected]


def test_filter_counts_from_the_first_fault_and_leaves_other_streams_alone() -> None:
    condition, strings = Filter(start=1, end=2), dictionary()
    times = [5_000_000_000, 6_000_000_000, 6_999_999_999, 7_000_000_000]
    assert len(condition.apply(faults([(t, 7, 7, 0, 1, 1, 1) for t in times], strings))) == 2
    batch = process([(7, 1, 7, PROCESS_EXEC, "sh")], strings)
    assert condition.apply(batch) is batch
    assert not Filter()
    assert (
        str(Filter(file="*.so", tids=[3], start=1, end=2.5, hard=True))
        == "file *.so, thread 3, from 1 s to 2.5 s, only from disk"
    )


@pytest.mark.parametrize("wrong", [{"hard": True, "soft": True}, {"start": 2, "end": 1}, {"start": -1}])
def test_filter_refuses_what_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Filter(**wrong)


def of_host(batch: Batch, host: int) -> Batch:
    """The batch as a merged trace has it."""
    snapshot = None if batch.snapshot is None else batch.snapshot._replace(host=host)
    columns = {**batch.columns, "host": np.full(len(batch), host, "u2")}
    return Batch(batch.schema, columns, strings=batch.strings, snapshot=snapshot)


def test_equal_pids_of_several_hosts_are_several_processes() -> None:
    strings, summary = dictionary(), Summary()
    rows = [(5, 7, 7, 0, 1, 2, 1), (6, 7, 8, 1, 1, 2, 1)]
    for host in (0, 1, 2):
        name = [strings.code(f"a@h{host}")] * 2
        columns = {"pid": [7, 9], "ppid": [1, 7], "tid": [7, 9], "event": [1, PROCESS_FORK], "name": [name[0], 0]}
        types = {"pid": "u4", "ppid": "u4", "tid": "u4", "event": "u1", "name": "u4"}
        born = {key: np.array(values, types[key]) for key, values in columns.items()}
        summary.add(of_host(Batch(PROCESS, born, strings=strings), host))
        summary.add(of_host(faults(rows * (host + 1), strings), host))
        summary.add(of_host(faults([(9, 9, 9, 0, 1, 2, 1)], strings), host))
        pages = {"start": np.zeros(1, "u8"), "pages": np.array([10 + host], "u4")}
        summary.add(of_host(Batch(RESIDENT_PAGES, pages, strings=strings, snapshot=SnapshotPart(pid=7)), host))
    assert summary.processes == summary.count("process") == 6
    assert [(row.key, row.total) for row in summary.top("process", 3)] == [
        (("a@h2", 7), 6), (("a@h1", 7), 4), (("a@h0", 7), 2)]  # fmt: skip
    assert [row.key for row in summary.top("thread", 2)] == [("a@h2", 7, 7), ("a@h2", 7, 8)]
    assert sorted(row.key[0] for row in summary.top("process", None) if row.key[1] == 9) == ["a@h0", "a@h1", "a@h2"]
    assert sorted(summary.snapshots) == [(7, "a@h0", 10), (7, "a@h1", 11), (7, "a@h2", 12)]
    assert sum(n for _, _, n in summary.resident()) == 33


def test_processes_of_other_hosts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Summary, "LIMIT", 2)
    strings, summary = dictionary(), Summary()
    for pid in (7, 8, 9, 10):
        summary.add(of_host(faults([(5, pid, pid, 0, 1, 2, 1)], strings), 1))
    assert sum(row.total for row in summary.top("process", None)) == 4
    assert summary.total == 4


def test_a_summary_answers_for_itself():
    summary = Summary()
    assert repr(summary) == "<Summary: 0 faults>"
    summary.add(faults([(1_000, 7, 7, 0, 1, 1, 1), (2_001_000, 7, 7, 1, 1, 1, 1), (5, 7, 8, 0, 2, 1, 1)], dictionary()))
    assert repr(summary) == "<Summary: 3 faults, 1 from disk, 1 process; most in libc.so.6 (2)>"
