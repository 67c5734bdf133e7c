"""The exporter against a scripted receiver: what arrives, of an old trace with the time at which it happened."""

import logging
import os
import socket
import threading
import time
from typing import Any

import pytest
from kit.otel_scripted import NOW, SECRET, ended, faulted, otel, run, started
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from receiver import Receiver, last_points, logs, plain, spans

from wstrace.batch import Dictionary
from wstrace.errors import OutputError, UsageError
from wstrace.interfaces import Context
from wstrace.schema import PAGE_FAULT, Column
from wstrace.session import Session
from wstrace.testing import ExporterContract, ScriptedSource, batch_of
from wstrace_exporters.msgpack.format.frames import Header
from wstrace_exporters.msgpack.read.replay import Replay
from wstrace_exporters.msgpack.write.parts import Parts
from wstrace_exporters.msgpack.write.writer import TraceWriter
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


def test_a_process_beyond_the_limit_is_no_process_0():
    with Receiver() as receiver:
        source = ScriptedSource([started(), faulted(), ended()])
        with Session(os.getpid(), sources=source, exporters=otel(receiver, processes=0), enrichers=[], record=False):
            pass
        said = {record.event_name for _, record in logs(receiver)}
        assert (said, spans(receiver)) == ({"wstrace.page_fault"}, [])


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


SECOND = 10**9
#: 30 days ago; the records' clock then said NOW
THEN = time.time_ns() - 30 * 86_400 * SECOND


@pytest.fixture(params=["whole", "cut"])
def old(tmp_path, request):
    """A trace of 30 days ago: a launched program, which has no row that says when it began."""
    path, strings = tmp_path / "old.wst", Dictionary()
    clock = {"name": "CLOCK_MONOTONIC", "realtime_offset_ns": THEN - NOW}
    like = Header(created_ns=THEN, boot_id="another", clock=clock, command=["/usr/bin/demo", "x"])
    writer = TraceWriter(Parts(str(path), like=like), strings)
    writer.copy_mark({"m": "clock", "t": NOW, "monotonic": NOW, "realtime": THEN})
    for batch in (faulted(300), faulted(300, pid=4712), started(4712, "child"), ended()):
        writer.write(batch.recode(strings))
    facts = {"pid": 4711, "command": ["/usr/bin/demo", "x"], "exit_code": 3, "started_ns": NOW}
    writer.close({}, {**facts, "ended_ns": NOW + 2 * SECOND})
    if request.param == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    return path


def test_a_replay_carries_the_time_of_the_trace(old):
    with Receiver() as receiver:
        with Session(sources=Replay(path=[str(old)]), exporters=otel(receiver), enrichers=[], record=False) as session:
            assert session.wait(10)
        events, ended_spans = [record for _, record in logs(receiver)], [span for _, span in spans(receiver)]
        abouts = [about for about, _ in logs(receiver)]
    times = {record.event_name: set() for record in events}
    for record in events:
        times[record.event_name].add(record.time_unix_nano)
    assert {"wstrace.page_fault", "wstrace.process.start", "wstrace.process.exit"} <= set(times)
    for name, when in times.items():
        assert all(THEN <= at <= THEN + 2 * SECOND for at in when), name
    assert times["wstrace.process.start"] == {THEN}
    assert ended_spans
    assert all(THEN <= s.start_time_unix_nano <= s.end_time_unix_nano <= THEN + 2 * SECOND for s in ended_spans)
    created = {about.get("process.creation.time") for about in abouts}
    assert not any(at and at.startswith(time.strftime("%Y-%m-%d")) for at in created)


Answer = tuple[int, dict[str, str], bytes, float]
SOON = {"retry-after": "0"}
PARTIAL = ExportTraceServiceResponse()
PARTIAL.partial_success.rejected_spans = 1


def answer(status: int = 200, headers: dict[str, str] | None = None, body: bytes = b"", wait: float = 0.0) -> Answer:
    return status, headers or {}, body, wait


#: what a receiver answers -> (the least requests, spans lost, what the error says)
BAD: dict[str, tuple[list[Answer], int, int, str]] = {
    **{f"status {n}": ([answer(n, SOON)] * 2, 3, 0, "") for n in (429, 502, 503, 504)},
    "retry-after": ([answer(503, {"retry-after": "1"})], 2, 0, ""),
    **{f"status {n}": ([answer(n, SOON, SECRET.encode())], 1, 1, f"HTTP {n}") for n in (400, 401, 403, 404, 413, 500)},
    "no such status": ([answer(599)], 1, 1, "HTTP 599"),
    "a page to log in": ([answer(body=b"<html>log in first</html>")], 1, 1, "not OTLP"),
    "binary garbage": ([answer(body=b"\xff" * 100)], 1, 1, "not OTLP"),
    "broken JSON": ([answer(body=b"{]")], 1, 1, "not OTLP"),
    "a cut message": ([answer(body=b"\x0a\x7f")], 1, 1, "not OTLP"),
    "an endless answer": ([answer(body=b"x" * (8 << 20))], 1, 1, "not OTLP"),
    "partial success": ([answer(body=PARTIAL.SerializeToString())], 1, 1, ""),
    "partial success in JSON": ([answer(body=b'{"partialSuccess":{"rejectedSpans":"2"}}')], 1, 1, ""),
    "a slow one": ([answer(wait=2.0)], 1, 1, "Timeout"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_a_bad_receiver_does_not_take_is_counted(kind, monkeypatch):
    answers, requests, lost, shown = BAD[kind]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5" if kind == "a slow one" else "5")
    with Receiver(list(answers)) as receiver:
        exporter = otel(receiver, metrics=False, logs=False)
        session = run(exporter, [started(), ended()])
        assert len(receiver.seen) == requests
        if kind == "retry-after":
            assert receiver.times[1] - receiver.times[0] >= 0.95
    assert session.ledger.get("lost_otel", "otel.traces") == lost
    assert shown in session.exporter_queues[0].error
    assert SECRET not in session.exporter_queues[0].error


def test_a_redirect_is_refused_and_its_target_never_requested():
    with Receiver() as other, Receiver([answer(307, {"location": f"{other.url}/v1/traces"})]) as receiver:
        exporter = otel(receiver, metrics=False, logs=False)
        session = run(exporter, [started(), ended()])
        assert "redirects are refused" in session.exporter_queues[0].error
        assert session.ledger.get("lost_otel", "otel.traces") == 1
        assert other.seen == []


@pytest.mark.parametrize("to", ["http", "grpc"])
def test_an_absent_collector_costs_three_seconds_and_a_count(to, caplog, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer {SECRET}")
    caplog.set_level(logging.DEBUG)
    with socket.socket() as held:  # bound, not listening: refused at once
        held.bind(("127.0.0.1", 0))
        exporter = OtelExporter(to=to, endpoint=f"http://user:{SECRET}@127.0.0.1:{held.getsockname()[1]}/?key={SECRET}",
                                providers="own")  # fmt: skip
        source = ScriptedSource([started(), faulted(400), ended()])
        session = Session(sources=[source], exporters=[exporter], enrichers=[])
        session.start()
        session.wait(5)
        began = time.monotonic()
        session.stop()
        assert time.monotonic() - began < 4.5
    lost = {who: n for stage, who, n in session.ledger.losses() if stage == "lost_otel"}
    assert lost["otel.traces"] == 1
    assert lost["otel.logs"] == 4 + 100 + 2  # major faults, the sampled minor ones, start and exit
    assert lost["otel.metrics"] > 0
    assert "127.0.0.1" in session.exporter_queues[0].error
    assert SECRET not in caplog.text + session.exporter_queues[0].error


def test_a_collector_that_never_answers_costs_three_seconds():
    with Receiver([answer(wait=20.0)] * 50) as receiver:
        source = ScriptedSource([started(), faulted(400)])
        session = Session(sources=[source], exporters=[otel(receiver, events=1e9)], enrichers=[])
        session.start()
        session.wait(5)
        began = time.monotonic()
        session.stop()
        assert time.monotonic() - began < 4.5
    lost = "lost          401  records that the OpenTelemetry receiver did not get (otel.logs)"
    assert lost in [line for line, _ in session.ledger.sentences()]


@pytest.mark.parametrize("to", ["http", "grpc"])
def test_a_certificate_that_is_not_there_is_reported(to, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "ca.pem"))
    with pytest.raises(OutputError, match=r"ca.pem.*OTEL_EXPORTER_OTLP_CERTIFICATE"):
        OtelExporter(to=to, endpoint="https://127.0.0.1:1", providers="own").start(Context())


@pytest.mark.parametrize(
    "variable", ["EXPORTER_OTLP_PROTOCOL=http/json", "TRACES_EXPORTER=jaeger", "BLRP_MAX_QUEUE_SIZE=100"]
)
def test_values_that_cannot_be_are_reported(variable, monkeypatch):
    name, value = variable.split("=")
    monkeypatch.setenv(f"OTEL_{name}", value)
    with pytest.raises(UsageError, match=name.partition("_")[0]):
        OtelExporter(to="http" if value == "100" else "", providers="own").start(Context())


def test_a_disabled_sdk_sends_nothing(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with Receiver() as receiver:
        session = run(otel(receiver), [started(), faulted(), ended()])
        assert receiver.seen == []
        assert not session.ledger.losses()


@pytest.mark.parametrize("signal", ["metrics", "logs", "traces"])
def test_a_signal_is_switched_off_by_its_variable(signal, monkeypatch):
    monkeypatch.setenv(f"OTEL_{signal.upper()}_EXPORTER", "none")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=a%20b")
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        run(OtelExporter(providers="own"), [started(), faulted(20), ended()])
        assert {p for p, _, _ in receiver.seen} == {"/v1/metrics", "/v1/logs", "/v1/traces"} - {f"/v1/{signal}"}
        assert {(h["content-encoding"], h["x-token"]) for _, h, _ in receiver.seen} == {("gzip", "a b")}


def test_delta_counts_add_up_to_the_total(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    with Receiver() as receiver:
        exporter = otel(receiver, logs=False, spans=False, interval_s=0.1)
        session = Session(sources=[], exporters=[exporter], enrichers=[])
        session.start()
        for _ in range(3):
            exporter.export(faulted(100))
            exporter.tick()
            time.sleep(0.3)
        session.stop()
        values = [
            p.as_int
            for m in receiver.messages("/v1/metrics")
            for r in m.resource_metrics
            for s in r.scope_metrics
            for metric in s.metrics
            if metric.name == "wstrace.page_faults"
            for p in metric.sum.data_points
        ]
    assert sum(values) == 300
    assert len(values) >= 8


def test_a_full_queue_drops_by_count(monkeypatch):
    monkeypatch.setenv("OTEL_BLRP_MAX_QUEUE_SIZE", "100")
    monkeypatch.setenv("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "100")
    with Receiver([answer(wait=0.4)] * 5) as receiver:
        session = run(otel(receiver, metrics=False, spans=False, events=1e9), [faulted(2000)])
        arrived = len(logs(receiver))
    assert 0 < arrived < 2001
    assert arrived + session.ledger.get("lost_otel", "otel.logs") == 2000


@pytest.mark.parametrize(("sampler", "flags"), [("", "01"), ("always_off", "00"), ("parentbased_always_on", "01")])
def test_a_target_is_reported_what_the_sampler_decided(sampler, flags, monkeypatch):
    from wstrace_exporters.otel.propagation import TraceParent, reserve, take_reserved

    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    given = reserve()["TRACEPARENT"]
    assert given.endswith(f"-{flags}")
    reserved = take_reserved()
    assert reserved is not None
    assert TraceParent.parse(given) == reserved[0]
    for wrong in ("", "00-0-0-01", "ff-" + given[3:], given[:-1], "00-" + "0" * 32 + given[35:]):
        assert TraceParent.parse(wrong) is None
