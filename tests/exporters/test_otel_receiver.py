"""The exporter against a scripted receiver: what arrives."""

import os
import threading
import time
from typing import Any

from kit.otel_scripted import NOW, SECRET, ended, faulted, otel, run, started
from receiver import Receiver, last_points, logs, plain, spans

from wstrace.schema import PAGE_FAULT, Column
from wstrace.session import Session
from wstrace.testing import ExporterContract, ScriptedSource, batch_of
from wstrace_exporters.otel.exporter import OtelExporter
from wstrace_exporters.otel.spans import span_intervals


def test_metrics_events_and_the_process_span_say_what_the_batches_hold():
    with Receiver() as receiver:
        session = run(otel(receiver), [started(), faulted(), ended()])
        points, records, traces = last_points(receiver), logs(receiver), spans(receiver)
    kind = "system.paging.fault.type"
    assert {k[2]: v for k, v in points.items() if k[:2] == ("process.paging.faults", 4711)} == {
        ((kind, "minor"),): 990,
        ((kind, "major"),): 10,
    }
    faults = {k[2]: v for k, v in points.items() if k[:2] == ("wstrace.page_faults", 4711)}
    assert sum(faults.values()) == 1000
    assert faults[("file.path", "[heap]"), (kind, "major"), ("wstrace.mapping.kind", "heap")] == 10
    assert faults[("file.path", "/lib/libc.so.6"), (kind, "minor"), ("wstrace.mapping.kind", "file")] == 750
    assert points["wstrace.records", "tracer", (("wstrace.stage", "recorded"), ("wstrace.who", "page_fault"))] == 1000
    assert points["process.memory.usage", "tracer", ()] > 1 << 20

    events = [(about, r) for about, r in records if r.event_name == "wstrace.page_fault"]
    weights = {"minor": 0, "major": 0}
    for about, record in events:
        attributes = plain(record.attributes)
        assert about["process.pid"] == 4711
        assert about["process.executable.name"] == "demo"
        assert attributes["wstrace.thread.id"] == 4712
        assert attributes["wstrace.fault.instruction"] == "0x0000000000400123"
        assert record.severity_number == (9 if attributes[kind] == "major" else 5)
        weights[attributes[kind]] += attributes["wstrace.sample.weight"]
    assert weights == {"minor": 990, "major": 10}
    assert sum(plain(r.attributes)[kind] == "major" for _, r in events) == 10
    assert [r.event_name for _, r in records if "process" in r.event_name] == [
        "wstrace.process.start",
        "wstrace.process.exit",
    ]

    ((about, span),) = traces
    assert (span.name, span.kind, span.status.code) == ("demo", 1, 2)
    assert plain(span.attributes)["process.exit.code"] == 3
    assert span.end_time_unix_nano - span.start_time_unix_nano == 10**9
    assert abs(span.start_time_unix_nano - (time.time_ns() - (time.monotonic_ns() - NOW))) < 5 * 10**6
    assert about["service.name"] == "demo"
    assert not session.ledger.losses()


def test_the_resource_takes_the_environment_and_never_the_arguments(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,process.pid=1")
    with Receiver() as receiver:
        batches, command = [started(), faulted(10)], ["/usr/bin/demo", "--password", SECRET]
        session = Session(
            sources=ScriptedSource(batches), exporters=otel(receiver), enrichers=[], command=command, record=False
        )
        session.start()
        session.wait(5)
        session.stop()
        abouts = [about for about, _ in logs(receiver) + spans(receiver)]
    assert abouts
    for about in abouts:
        assert about["service.name"] == "shop"
        assert about["deployment.environment.name"] == "test"
        assert about["process.pid"] == 4711
    assert all(SECRET.encode() not in body for _, _, body in receiver.seen)


def test_hostile_names_arrive_harmless():
    evil = "/tmp/\x1b[31m\n" + "a" * 70_000
    strings_evil = faulted(8, file="/b\udcff\x00d" + "x" * 60_000)
    with Receiver() as receiver:
        session = run(otel(receiver), [started(name=evil[:5000]), strings_evil])
        records = logs(receiver)
    assert not session.ledger.losses()
    files = {plain(r.attributes).get("file.path") for _, r in records if r.event_name == "wstrace.page_fault"}
    assert any(f and f.startswith("/b\\xff\\x00d") for f in files)
    for about, record in records:
        for value in (*about.values(), *plain(record.attributes).values()):
            assert not isinstance(value, str) or (len(value) <= 4096 and value.isprintable())


def fault_records(receiver: Receiver) -> list[Any]:
    """The events of page faults, by time."""
    found = [record for _, record in logs(receiver) if record.event_name == "wstrace.page_fault"]
    return sorted(found, key=lambda record: record.time_unix_nano)


def test_a_column_that_the_schema_gains_is_an_attribute():
    new = (Column("cpu", "u16", "id"), Column("around", "u64", "addr"), Column("drift", "i64", "count"))
    schema = PAGE_FAULT._replace(columns=(*PAGE_FAULT.columns, *new, Column("lock", "u32", "str")))
    batch = batch_of(schema, time_ns=[5, 6], pid=7, tid=7, pc=1, va=2, flags=0, file="/f", kind=1, mapping=1,
                     cpu=[0, 65535], around=[0, 2**64 - 1], drift=[-1, 300], lock=["", "mmap_lock"])  # fmt: skip
    with Receiver() as receiver:
        run(otel(receiver, events=1e9), [started(), batch])
        found = [plain(record.attributes) for record in fault_records(receiver)]
    columns = ("cpu", "around", "drift", "lock", "mapping")
    assert [tuple(row.get(f"wstrace.fault.{name}") for name in columns) for row in found] == [
        (0, f"{0:#018x}", -1, None, None),
        (65535, f"{2**64 - 1:#018x}", 300, "mmap_lock", None),
    ]


def test_an_event_carries_the_span_that_was_open():
    span_intervals.forget()
    tid, at = threading.get_native_id(), time.monotonic_ns()
    outer = span_intervals.open(0xABC, 0x1)
    inner = span_intervals.open(0xABC, 0x2)
    span_intervals.close(inner)
    span_intervals.close(outer)
    times = [at, inner.start, inner.end, outer.end, outer.end + 10**9]
    batch = batch_of(PAGE_FAULT, time_ns=times, pid=os.getpid(), tid=tid, pc=1, va=2, flags=0, file="/f", kind=1)
    with Receiver() as receiver:
        run(otel(receiver, events=1e9), [batch])
        found = fault_records(receiver)
    assert [record.span_id.hex() for record in found] == ["", f"{2:016x}", f"{2:016x}", f"{1:016x}", ""]
    assert found[1].trace_id.hex() == f"{0xABC:032x}"


class TestContract(ExporterContract):
    def make(self) -> OtelExporter:
        return OtelExporter(to="console", providers="own")
