"""The bulk mode against a scripted receiver: every record, in bodies below the limit."""

from __future__ import annotations

import threading
import time

import pytest
from otel_scripted import faulted, otel, run, started
from receiver import Receiver, logs, plain

from wstrace.schema import PAGE_FAULT, Column
from wstrace.testing import batch_of


def test_bulk_sends_every_record_with_the_content_of_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=a%20b")
    batch = faulted(500)
    with Receiver() as receiver:
        run(otel(receiver, mode="bulk"), [started(), batch])
        bulk = {}
        for _, record in logs(receiver):
            if record.event_name == "wstrace.page_fault":
                bulk[record.time_unix_nano] = plain(record.attributes), record.severity_number, record.severity_text
        assert {h["content-encoding"] for p, h, _ in receiver.seen if p == "/v1/logs"} == {"gzip"}
        assert {h["x-token"] for _, h, _ in receiver.seen} == {"a b"}
    with Receiver() as receiver:
        run(otel(receiver, events=1e9), [started(), batch])
        sdk = {
            r.time_unix_nano: (plain(r.attributes), r.severity_number, r.severity_text)
            for _, r in logs(receiver)
            if r.event_name == "wstrace.page_fault"
        }
    assert len(bulk) == 500
    # the two runs read the wall clock's offset each for itself
    assert [v for _, v in sorted(bulk.items())] == [v for _, v in sorted(sdk.items())]
    assert sorted(v[0]["wstrace.fault.address"] for v in bulk.values()) == [
        f"{va:#018x}" for va in batch["va"].tolist()
    ]


def test_a_column_that_the_schema_gains_is_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    new = (Column("cpu", "u16", "id"), Column("around", "u64", "addr"), Column("drift", "i64", "count"))
    schema = PAGE_FAULT._replace(columns=(*PAGE_FAULT.columns, *new, Column("lock", "u32", "str")))
    batch = batch_of(schema, time_ns=[5, 6], pid=7, tid=7, pc=1, va=2, flags=0, file="/f", kind=1, mapping=1,
                     cpu=[0, 65535], around=[0, 2**64 - 1], drift=[-1, 300], lock=["", "mmap_lock"])  # fmt: skip
    expected = [
        {"wstrace.fault.cpu": 0, "wstrace.fault.around": f"{0:#018x}", "wstrace.fault.drift": -1},
        {"wstrace.fault.cpu": 65535, "wstrace.fault.around": f"{2**64 - 1:#018x}", "wstrace.fault.drift": 300},
    ]
    shown = {"wstrace.fault.lock": "mmap_lock"}
    known = {"wstrace.fault.address", "wstrace.fault.instruction"}
    for options, names in (({"mode": "bulk"}, {}), ({"events": 1e9}, shown)):
        with Receiver() as receiver:
            run(otel(receiver, **options), [started(), batch])
            records = sorted(
                (r.time_unix_nano, plain(r.attributes))
                for _, r in logs(receiver)
                if r.event_name == "wstrace.page_fault"
            )
        found = [
            {name: value for name, value in attributes.items() if name.startswith("wstrace.fault.")}
            for _, attributes in records
        ]
        assert [set(row) - {*expected[0], *shown} for row in found] == [known, known]
        others = [{name: value for name, value in row.items() if name not in known} for row in found]
        assert others == [expected[0], {**expected[1], **names}]


def test_bulk_bodies_stay_below_the_limit_and_lose_nothing() -> None:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.sdk.resources import Resource

    from wstrace_otel.experimental.bulk import Encoder

    batch = batch_of(PAGE_FAULT, time_ns=list(range(3000)), pid=[1 + i % 3 for i in range(3000)], tid=7, pc=1,
                     va=list(range(3000)), flags=0, file=[f"/f{i % 50}" for i in range(3000)], kind=1)  # fmt: skip
    found = []
    for body, n in Encoder(lambda pid: Resource({"process.pid": pid}), lambda t: 0, 20_000).payloads(batch):
        assert len(body) <= 20_000
        (about,) = ExportLogsServiceRequest.FromString(body).resource_logs
        (scope,) = about.scope_logs
        assert len(scope.log_records) == n
        assert scope.scope.name == "wstrace"
        found += [
            (plain(about.resource.attributes)["process.pid"], r.time_unix_nano, plain(r.attributes)["file.path"])
            for r in scope.log_records
        ]
    assert sorted(found) == sorted((1 + i % 3, i, f"/f{i % 50}") for i in range(3000))


def test_bulk_records_carry_the_span_that_was_open() -> None:
    import os

    from wstrace_otel.correlation import span_intervals

    span_intervals.forget()
    tid, at = threading.get_native_id(), time.monotonic_ns()
    outer = span_intervals.open(0xABC, 0x1)
    inner = span_intervals.open(0xABC, 0x2)
    span_intervals.close(inner)
    span_intervals.close(outer)
    times = [at, inner.start, inner.end, outer.end, outer.end + 10**9]
    batch = batch_of(PAGE_FAULT, time_ns=times, pid=os.getpid(), tid=tid, pc=1, va=2, flags=0, file="/f", kind=1)
    for options in ({"mode": "bulk"}, {"events": 1e9}):
        with Receiver() as receiver:
            run(otel(receiver, **options), [batch])
            found = sorted(
                (r.time_unix_nano, r.span_id.hex(), r.trace_id.hex())
                for _, r in logs(receiver)
                if r.event_name == "wstrace.page_fault"
            )
        assert [s for _, s, _ in found] == ["", f"{2:016x}", f"{2:016x}", f"{1:016x}", ""]
        assert found[1][2] == f"{0xABC:032x}"
