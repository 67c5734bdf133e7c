"""Counting by columns, series for a backend, sampling, and the containers of a node: all of it adds up."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.otel_scripted import run
from receiver import Receiver, plain

from wstrace.batch import Batch, Dictionary, SnapshotPart
from wstrace.errors import UsageError
from wstrace.schema import PAGE_FAULT, RESIDENT_PAGES, WRITTEN_PAGES
from wstrace.testing import batch_of
from wstrace_exporters.otel.by_container import OtelContainersExporter
from wstrace_exporters.otel.export.containers import Containers
from wstrace_exporters.otel.export.metrics import Collection
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


@settings(max_examples=60)
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


@settings(max_examples=60)
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


@settings(max_examples=60)
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


IDS = [f"{n:064x}" for n in range(1, 2000)]
UID = "0f1e2d3c-0000-4000-8000-00000000000a"
POD = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
PATHS = [f"{POD}/cri-containerd-{IDS[0]}.scope", f"/docker/{IDS[1]}", POD, "/system.slice/nginx.service", ""]


def faults_in(
    paths: list[str], sampled: list[int] | None = None, file: str = "/lib/libc.so.6", major: int = 0
) -> Batch:
    more = {} if sampled is None else {"sampled": sampled}
    n = len(paths)
    return batch_of(
        PAGE_FAULT, time_ns=list(range(1, n + 1)), pid=7, tid=7, pc=0, va=[4096 * i for i in range(n)], flags=major,
        file=file, kind=1, cgroup=paths, **more,
    )  # fmt: skip


def received(receiver: Receiver) -> dict[tuple[str, str], dict[str, Any]]:
    """(container id or path, pod uid) -> the attributes of its Resource and the last value of each metric and type."""
    found = {}
    for message in receiver.messages("/v1/metrics"):
        for one in message.resource_metrics:
            resource = plain(one.resource.attributes)
            values = {}
            for scope in one.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.sum.data_points:
                        attributes = plain(point.attributes)
                        values[metric.name, *sorted(attributes.items())] = point.as_int
            key = (
                resource.get("container.id") or resource.get("process.linux.cgroup", ""),
                resource.get("k8s.pod.uid", ""),
            )
            found[key] = {"resource": resource, "values": values}
    return found


def whole(one: dict[str, Any], metric: str) -> dict[str, int]:
    return {key[1][1]: n for key, n in one["values"].items() if key[0] == metric and len(key) == 2}


def test_each_container_and_pod_is_a_resource_and_never_an_attribute(monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=n1")
    receiver = Receiver()
    run(OtelContainersExporter(to="http", endpoint=receiver.url), [faults_in(PATHS), faults_in(PATHS[:1], major=1)])
    found = received(receiver)
    receiver.close()
    assert set(found) >= {(IDS[0], UID), (IDS[1], ""), (POD, UID), ("/system.slice/nginx.service", ""), ("", "")}
    inner = found[IDS[0], UID]
    assert whole(inner, "container.paging.faults") == {"minor": 1, "major": 1}
    assert inner["resource"]["k8s.node.name"] == "n1"
    assert "service.name" not in inner["resource"]
    assert whole(found[POD, UID], "k8s.pod.paging.faults") == {"minor": 1, "major": 0}
    assert whole(found["/system.slice/nginx.service", ""], "wstrace.cgroup.paging.faults") == {"minor": 1, "major": 0}
    assert found["", ""]["resource"]["wstrace.role"] in ("other", "tracer")
    for one in found.values():
        for name, *attributes in one["values"]:
            assert not {key for key, _ in attributes} & {"container.id", "k8s.pod.uid", "process.pid"}, name


def test_a_sampled_fault_counts_for_as_many_as_it_stands_for():
    receiver = Receiver()
    run(OtelContainersExporter(to="http", endpoint=receiver.url), [faults_in(PATHS[:1] * 3, sampled=[1, 1, 50])])
    inner = received(receiver)[IDS[0], UID]
    receiver.close()
    assert whole(inner, "container.paging.faults") == {"minor": 52, "major": 0}
    assert [n for key, n in inner["values"].items() if key[0] == "wstrace.page_faults"] == [52]


def table(limit: int = 1000, modules: int = 10) -> Containers:
    return Containers(Dictionary(), limit=limit, modules=modules)


def add(to: Containers, batch: Batch) -> None:
    to.add(batch.recode(to._strings))


def collection(of: Containers, cumulative: bool = True) -> Collection:
    return Collection(lambda: ((row.resource, row.began_ns, row.values()) for row in of), cumulative)


def collected(of: Containers) -> list[Any]:
    return list(collection(of)().resource_metrics)


def sums(metrics: list[Any]) -> dict[str, int]:
    """Role -> sum of the faults of all its resources."""
    found = {}
    for one in metrics:
        for metric in one.scope_metrics[0].metrics:
            if metric.name != "wstrace.page_faults":
                role = one.resource.attributes["wstrace.role"]
                found[role] = found.get(role, 0) + sum(point.value for point in metric.data.data_points)
    return found


def test_at_most_so_many_are_resources_and_the_rest_is_other():
    containers = table(limit=1000)
    add(containers, faults_in([f"/docker/{one}" for one in IDS[:1500]]))
    found = collected(containers)
    assert len(found) == 1001
    assert sums(found) == {"target": 1000, "other": 500}


def test_one_that_is_long_idle_gives_its_place_to_a_new_one():
    containers = table(limit=2)
    add(containers, faults_in([f"/docker/{IDS[0]}", f"/docker/{IDS[1]}"]))
    containers._rows[IDS[0], "", ""].seen -= 3600
    add(containers, faults_in([f"/docker/{IDS[2]}"]))
    assert set(containers._rows) == {(IDS[1], "", ""), (IDS[2], "", "")}
    add(containers, faults_in([f"/docker/{IDS[0]}"]))  # it faults again: where there is no room, as part of the rest
    assert sums(collected(containers)) == {"target": 2, "other": 1}


def test_the_places_of_a_container_are_bounded():
    containers = table()
    for n in range(200):
        add(containers, faults_in([f"/docker/{IDS[0]}"], file=f"/lib/{n}.so"))
    assert sums(collected(containers)) == {"target": 200}
    (row,) = containers
    assert len(row.faults) <= 130


def test_deltas_add_up_and_a_new_container_of_the_same_path_begins_anew():
    containers = table(limit=1)
    delta = collection(containers, cumulative=False)

    def collect():
        return delta().resource_metrics

    add(containers, faults_in([f"/docker/{IDS[0]}"] * 3))
    assert sums(collect()) == {"target": 3}
    assert collect() == []
    add(containers, faults_in([f"/docker/{IDS[0]}"] * 2))
    assert sums(collect()) == {"target": 2}
    containers._rows[IDS[0], "", ""].seen -= 3600
    add(containers, faults_in([f"/docker/{IDS[1]}"]))
    assert sums(collect()) == {"target": 1}
    point = collected(containers)[0].scope_metrics[0].metrics[0].data.data_points[0]
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano


def test_a_hostile_path_arrives_harmless():
    receiver = Receiver()
    run(OtelContainersExporter(to="http", endpoint=receiver.url), [faults_in(["/x\x1b[31m\udcff" + "y" * 9000])])
    paths = [key[0] for key in received(receiver) if key[0].startswith("/x")]
    receiver.close()
    assert len(paths) == 1
    assert paths[0].isprintable()
    assert len(paths[0]) <= 4096


def test_prometheus_is_refused_and_wrong_numbers_too(monkeypatch):
    with pytest.raises(UsageError):
        OtelContainersExporter(containers=0)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus")
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", "0")
    from wstrace.errors import OutputError

    with pytest.raises(OutputError, match="otel_containers sends OTLP"):
        run(OtelContainersExporter(), [])
