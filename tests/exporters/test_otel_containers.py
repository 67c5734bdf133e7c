"""The exporter otel_containers: what a receiver gets of the containers of a node."""

from typing import Any

import pytest
from kit.otel_scripted import run
from receiver import Receiver, plain

from wstrace.batch import Batch, Dictionary
from wstrace.errors import UsageError
from wstrace.schema import PAGE_FAULT
from wstrace.testing import batch_of
from wstrace_exporters.otel.by_container import OtelContainersExporter
from wstrace_exporters.otel.export.containers import Containers
from wstrace_exporters.otel.export.metrics import Collection

IDS = [f"{n:064x}" for n in range(1, 2000)]
UID = "0f1e2d3c-0000-4000-8000-00000000000a"
POD = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
PATHS = [f"{POD}/cri-containerd-{IDS[0]}.scope", f"/docker/{IDS[1]}", POD, "/system.slice/nginx.service", ""]


def faults(paths: list[str], sampled: list[int] | None = None, file: str = "/lib/libc.so.6", major: int = 0) -> Batch:
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
    run(OtelContainersExporter(to="http", endpoint=receiver.url), [faults(PATHS), faults(PATHS[:1], major=1)])
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
    run(OtelContainersExporter(to="http", endpoint=receiver.url), [faults(PATHS[:1] * 3, sampled=[1, 1, 50])])
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
    add(containers, faults([f"/docker/{one}" for one in IDS[:1500]]))
    found = collected(containers)
    assert len(found) == 1001
    assert sums(found) == {"target": 1000, "other": 500}


def test_one_that_is_long_idle_gives_its_place_to_a_new_one():
    containers = table(limit=2)
    add(containers, faults([f"/docker/{IDS[0]}", f"/docker/{IDS[1]}"]))
    containers._rows[IDS[0], "", ""].seen -= 3600
    add(containers, faults([f"/docker/{IDS[2]}"]))
    assert set(containers._rows) == {(IDS[1], "", ""), (IDS[2], "", "")}
    add(containers, faults([f"/docker/{IDS[0]}"]))  # it faults again: where there is no room, as part of the rest
    assert sums(collected(containers)) == {"target": 2, "other": 1}


def test_the_places_of_a_container_are_bounded():
    containers = table()
    for n in range(200):
        add(containers, faults([f"/docker/{IDS[0]}"], file=f"/lib/{n}.so"))
    assert sums(collected(containers)) == {"target": 200}
    (row,) = containers
    assert len(row.faults) <= 130


def test_deltas_add_up_and_a_new_container_of_the_same_path_begins_anew():
    containers = table(limit=1)
    delta = collection(containers, cumulative=False)

    def collect():
        return delta().resource_metrics

    add(containers, faults([f"/docker/{IDS[0]}"] * 3))
    assert sums(collect()) == {"target": 3}
    assert collect() == []
    add(containers, faults([f"/docker/{IDS[0]}"] * 2))
    assert sums(collect()) == {"target": 2}
    containers._rows[IDS[0], "", ""].seen -= 3600
    add(containers, faults([f"/docker/{IDS[1]}"]))
    assert sums(collect()) == {"target": 1}
    point = collected(containers)[0].scope_metrics[0].metrics[0].data.data_points[0]
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano


def test_a_hostile_path_arrives_harmless():
    receiver = Receiver()
    run(OtelContainersExporter(to="http", endpoint=receiver.url), [faults(["/x\x1b[31m\udcff" + "y" * 9000])])
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
