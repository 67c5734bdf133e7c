"""Counting by columns, series for a backend, and sampling: all of it adds up to what was recorded."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.schema import PAGE_FAULT, RESIDENT_PAGES, WRITTEN_PAGES
from wstrace.testing import batch_of
from wstrace_exporters.otel.export.processes import MAX_PLACES, OTHER_FILE, Processes
from wstrace_exporters.otel.export.sampling import Sampler

rows = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 9), st.integers(0, 7), st.integers(0, 1)), min_size=0, max_size=60
)


def faults(values: list[tuple[int, int, int, int]], strings: Dictionary) -> Batch:
    pid, file, kind, major = (np.array([v[i] for v in values]) for i in range(4)) if values else [np.empty(0)] * 4
    return Batch(
        PAGE_FAULT,
        {"pid": pid.astype("<u4"), "file": file.astype("<u4"), "kind": kind.astype("u1"), "flags": major.astype("u1")},
        strings=strings,
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, max_size=5), st.integers(0, 4))
def test_counts_are_those_of_a_loop_over_the_rows(batches, limit):
    processes = Processes(Dictionary(), limit=limit, modules=3)
    expected = {}
    own = []
    for values in batches:
        processes.add_faults(faults(values, processes.strings))
        for pid, *place in sorted(values):
            if pid not in own and len(own) < limit:
                own.append(pid)
            key = (pid if pid in own else 0, *place)
            expected[key] = expected.get(key, 0) + 1
    assert {(p.pid, *place): n for p in processes for place, n in p.faults.items()} == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, max_size=8))
def test_every_series_only_grows_and_together_they_are_all(batches):
    processes = Processes(Dictionary(), limit=1, modules=2)
    before = {}
    total = 0
    for values in batches:
        processes.add_faults(faults(values, processes.strings))
        total += len(values)
        series = {(p.pid, place): n for p in processes for place, n in p.series().items()}
        assert sum(series.values()) == total
        for key, n in before.items():
            assert series[key] >= n, key
        before = series
        for process in processes:
            files = {place[0] for place in process.series()} - {OTHER_FILE}
            assert len(files) <= 2 * 2


def test_the_modules_with_the_most_faults_have_the_series():
    processes = Processes(Dictionary(), limit=4, modules=2)
    processes.add_faults(
        faults([(1, 5, 1, 0)] * 9 + [(1, 6, 1, 0)] * 8 + [(1, 7, 1, 0)] * 2 + [(1, 8, 1, 1)], processes.strings)
    )
    assert processes.get(1).series() == {(5, 1, 0): 9, (6, 1, 0): 8, (OTHER_FILE, 0, 0): 2, (OTHER_FILE, 0, 1): 1}


def test_a_hundred_thousand_modules_stay_bounded_and_are_all_counted():
    processes = Processes(Dictionary(), limit=4, modules=20)
    files = np.arange(1, 100_001, dtype="<u4")
    for _ in range(2):
        processes.add_faults(
            Batch(PAGE_FAULT, {"pid": np.full(100_000, 7, "<u4"), "file": files, "flags": np.zeros(100_000, "u1")})
        )
    process = processes.get(7)
    assert len(process.faults) <= MAX_PLACES + 2
    assert process.recorded(0) == 200_000
    series = process.series()
    assert sum(series.values()) == 200_000
    assert len(series) <= 22


def test_what_only_the_kernel_counted_is_the_root_process_s():
    processes = Processes(Dictionary(), limit=64, modules=20)
    processes.roots = (1,)
    processes.add_faults(faults([(1, 0, 0, 0)] * 10 + [(2, 0, 0, 0)] * 5 + [(2, 0, 0, 1)], processes.strings))
    processes.take_kernel(40, 3)
    assert {p.pid: p.kernel for p in processes} == {1: [35, 2], 2: [5, 1]}
    processes.take_kernel(0, 0)  # a counter that is gone takes nothing back
    assert sum(p.kernel[0] for p in processes) == 40


def test_a_snapshot_counts_when_its_last_part_has_come_and_written_pages_add_up():
    processes = Processes(Dictionary(), limit=4, modules=2)
    process = processes.get(5)
    part = batch_of(RESIDENT_PAGES, start=[0, 4096], pages=[3, 4], flags=[16, 0], kind=[1, 1])
    columns = dict(part.columns)
    process.add_resident(
        Batch(RESIDENT_PAGES, columns, snapshot=SnapshotPart.from_dict({"pid": 5, "part": 0, "last": False}))
    )
    assert process.resident == {}
    process.add_resident(
        Batch(RESIDENT_PAGES, columns, snapshot=SnapshotPart.from_dict({"pid": 5, "part": 1, "last": True}))
    )
    assert process.resident == {(1, 1): 6, (1, 0): 8}
    process.add_resident(
        Batch(RESIDENT_PAGES, columns, snapshot=SnapshotPart.from_dict({"pid": 5, "part": 0, "last": True}))
    )
    assert process.resident == {(1, 1): 3, (1, 0): 4}
    for _ in range(2):
        process.add_written(batch_of(WRITTEN_PAGES, start=[0], pages=[10], kind=[3]))
    assert process.written == {3: 20}


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, max_size=6), st.integers(0, 40))
def test_weights_add_up_to_what_was_recorded(batches, rate):
    now = [0.0]
    sampler = Sampler(rate, lambda: now[0])
    recorded = {}
    weighed = {}
    chosen = 0

    def take(batch, weights):
        assert len(batch) == len(weights)
        assert (weights > 0).all()
        for pid, flags, weight in zip(batch["pid"].tolist(), batch["flags"].tolist(), weights.tolist(), strict=True):
            weighed[pid, flags] = weighed.get((pid, flags), 0) + weight

    for values in batches:
        batch = faults(values, Dictionary())
        for pid, _, _, major in values:
            recorded[pid, major] = recorded.get((pid, major), 0) + 1
        for some, weights in sampler.choose(batch):
            take(some, weights)
            chosen += int((some["flags"] == 0).sum())
        now[0] += 0.5
    assert chosen <= rate + rate * 0.5 * len(batches)
    for some, weights in sampler.rest():
        take(some, weights)
    assert weighed == recorded


def test_events_come_at_their_rate_and_no_more_after_a_pause():
    now = [0.0]
    sampler = Sampler(100, lambda: now[0])

    def events(at):
        now[0] = at
        batch = faults([(1, 1, 1, 0)] * 1000, Dictionary())
        return sum(len(rows) for rows, _ in sampler.choose(batch))

    assert [events(at) for at in (0.0, 0.0, 0.25, 3600.0)] == [100, 0, 25, 100]
