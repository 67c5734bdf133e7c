"""The exporter against a scripted receiver: what arrives, and what hostile, broken and absent receivers cost."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from wstrace.batch import Batch
from wstrace.errors import OutputError, UsageError
from wstrace.interfaces import Context
from wstrace.schema import PAGE_FAULT, PROCESS
from wstrace.session import Session
from wstrace.testing import ExporterContract, ScriptedSource, batch_of
from wstrace_otel.endpoint import Endpoint
from wstrace_otel.exporter import OtelExporter
from wstrace_otel.sender import Sender

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
from receiver import Receiver, last_points, logs, plain, spans

SECRET = "hunter2-very-secret-token"
NOW = time.monotonic_ns()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [n for n in os.environ if n.startswith("OTEL_")] + ["TRACEPARENT"]:
        monkeypatch.delenv(name, raising=False)


def started(pid: int = 4711, name: str = "/usr/bin/demo") -> Batch:
    return batch_of(PROCESS, time_ns=[NOW], pid=[pid], ppid=[1], tid=[pid], event=[1], name=[name], code=[0])


def ended(pid: int = 4711, code: int = 3) -> Batch:
    return batch_of(PROCESS, time_ns=[NOW + 10**9], pid=[pid], ppid=[1], tid=[pid], event=[4], name=[""], code=[code])


def faulted(n: int = 1000, pid: int = 4711, file: str = "/lib/libc.so.6", major_every: int = 100) -> Batch:
    return batch_of(
        PAGE_FAULT, time_ns=[NOW + i for i in range(n)], pid=pid, tid=pid + 1, pc=0x400123,
        va=[0xFFFF_8000_0000_0000 + 4096 * i for i in range(n)], flags=[int(i % major_every == 0) for i in range(n)],
        file=[file if i % 4 else "[heap]" for i in range(n)], pc_file="/usr/bin/demo",
        kind=[1 if i % 4 else 3 for i in range(n)],
    )  # fmt: skip


def run(exporter: OtelExporter | str, batches: list[Batch]) -> Session:
    session = Session(sources=[ScriptedSource(batches)], exporters=[exporter], enrichers=[], record=False)
    session.start()
    session.wait(10)
    session.stop()
    return session


def otel(receiver: Receiver, **options: Any) -> OtelExporter:
    return OtelExporter(to="http", endpoint=receiver.url, providers="own", **options)


def test_metrics_events_and_the_process_span_say_what_the_batches_hold() -> None:
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


def test_the_resource_takes_the_environment_and_never_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,process.pid=1")
    with Receiver() as receiver:
        session = Session(sources=[ScriptedSource([started(), faulted(10)])], exporters=[otel(receiver)], enrichers=[])
        session.facts["command"] = ["/usr/bin/demo", "--password", SECRET]
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


def test_one_resource_a_process_and_other_past_the_bound() -> None:
    batches = [b for pid in range(100, 110) for b in (started(pid, f"p{pid}"), faulted(20, pid))]
    with Receiver() as receiver:
        run(otel(receiver, processes=4), batches)
        points = last_points(receiver)
    by_process: dict[Any, float] = {}
    for (metric, who, _), value in points.items():
        if metric == "wstrace.page_faults":
            by_process[who] = by_process.get(who, 0) + value
    assert by_process == {100: 20, 101: 20, 102: 20, 103: 20, "other": 120}


def test_a_launched_target_is_told_of_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    from wstrace.interfaces import Target
    from wstrace_otel import wstrace_target_environment

    class Demo(Target):
        pid, name, launched = 4711, "demo", True
        resume = close = wait = signal = usage = lambda self, *a: None  # type: ignore[assignment]

    monkeypatch.setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    assert wstrace_target_environment(["console"]) == {}
    told = wstrace_target_environment(["otel"])["TRACEPARENT"].split("-")
    with Receiver() as receiver:
        exporter = otel(receiver)
        exporter.start(Context(targets=(Demo(),)))
        exporter.export(started(4712, "child"))
        child = batch_of(PROCESS, time_ns=[NOW], pid=[4713], ppid=[4711], tid=[4713], event=[2], name=["kid"], code=[0])
        exporter.export(child)
        exporter.close()
        found = {span.name: span for _, span in spans(receiver)}
    assert told[1] == "0af7651916cd43dd8448eb211c80319c"
    assert found["demo"].trace_id.hex() == told[1]
    assert found["demo"].span_id.hex() == told[2]
    assert found["demo"].parent_span_id.hex() == "b7ad6b7169203331"
    assert found["kid"].parent_span_id == found["demo"].span_id


@pytest.mark.parametrize("mode", ["aggregate", "bulk"])
def test_hostile_names_arrive_harmless(mode: str) -> None:
    evil = "/tmp/\x1b[31m\n" + "a" * 70_000
    strings_evil = faulted(8, file="/b\udcff\x00d" + "x" * 60_000)
    with Receiver() as receiver:
        session = run(otel(receiver, mode=mode), [started(name=evil[:5000]), strings_evil])
        records = logs(receiver)
    assert not session.ledger.losses()
    files = {plain(r.attributes).get("file.path") for _, r in records if r.event_name == "wstrace.page_fault"}
    assert any(f and f.startswith("/b\\xff\\x00d") for f in files)
    for about, record in records:
        for value in (*about.values(), *plain(record.attributes).values()):
            assert not isinstance(value, str) or (len(value) <= 4096 and value.isprintable())


# -- bulk ------------------------------------------------------------------------------------------------------


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


def test_bulk_bodies_stay_below_the_limit_and_lose_nothing() -> None:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.sdk.resources import Resource

    from wstrace_otel.bulk import Encoder

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

    from wstrace_otel.correlation import windows

    windows.forget()
    tid, at = threading.get_native_id(), time.monotonic_ns()
    outer = windows.open(0xABC, 0x1)
    inner = windows.open(0xABC, 0x2)
    windows.close(inner)
    windows.close(outer)
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


class TestContract(ExporterContract):
    def make(self) -> OtelExporter:
        return OtelExporter(to="console", providers="own", profiles=False)


def test_a_session_that_cannot_start_sends_nothing() -> None:
    class Broken(ScriptedSource):
        def start(self, context: Context) -> None:
            raise UsageError("broken")

    with Receiver() as receiver:
        session = Session(sources=[Broken()], exporters=[otel(receiver)], enrichers=[])
        with pytest.raises(UsageError):
            session.start()
        assert logs(receiver) == spans(receiver) == []


# -- receivers that fail -----------------------------------------------------------------------------------------


def send(receiver: Receiver, timeout: float = 5.0) -> tuple[Any, Sender]:
    sender = Sender(Endpoint.from_environment("logs", {"OTEL_EXPORTER_OTLP_TIMEOUT": str(timeout),
                                                       "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {SECRET}"},
                                              url=receiver.url))  # fmt: skip
    try:
        return sender.send(b""), sender
    finally:
        sender.close()


def test_retry_after_is_waited_for_and_the_record_arrives() -> None:
    with Receiver([(503, {"retry-after": "1"}, b"", 0.0)]) as receiver:
        outcome, sender = send(receiver)
        assert (outcome.error, sender.retries) == ("", 1)
        assert receiver.times[1] - receiver.times[0] >= 0.95


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_may_pass_is_tried_again(status: int) -> None:
    with Receiver([(status, {"retry-after": "0"}, b"", 0.0)] * 2) as receiver:
        outcome, _ = send(receiver)
        assert (outcome.error, len(receiver.seen)) == ("", 3)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 500, 501])
def test_what_will_not_pass_is_tried_once_and_told(status: int) -> None:
    with Receiver([(status, {"retry-after": "0"}, SECRET.encode(), 0.0)]) as receiver:
        outcome, _ = send(receiver)
        assert f"HTTP {status}" in outcome.error
        assert len(receiver.seen) == 1
        assert SECRET not in outcome.error


def test_a_redirect_is_refused_and_its_target_never_asked() -> None:
    with Receiver() as other, Receiver([(307, {"location": f"{other.url}/v1/logs"}, b"", 0.0)]) as receiver:
        outcome, _ = send(receiver)
        assert "redirects are refused" in outcome.error
        assert other.seen == []


@pytest.mark.parametrize("answer", [b"<html>log in first</html>", b"\xff" * 100, b"{]", b"\x0a\x7f"])
def test_an_answer_that_is_no_otlp_is_no_delivery(answer: bytes) -> None:
    with Receiver([(200, {}, answer, 0.0)]) as receiver:
        assert "not OTLP" in send(receiver)[0].error


def test_an_endless_answer_is_not_read() -> None:
    with Receiver([(200, {}, b"x" * (8 << 20), 0.0)]) as receiver:
        assert "not OTLP" in send(receiver)[0].error


def test_partial_success_is_counted() -> None:
    answer = ExportLogsServiceResponse()
    answer.partial_success.rejected_log_records = 7
    with Receiver(
        [(200, {}, answer.SerializeToString(), 0.0), (200, {}, b'{"partialSuccess":{"rejectedSpans":"2"}}', 0.0)]
    ) as r:
        assert send(r)[0].rejected == 7
        assert send(r)[0].rejected == 2


def test_records_that_a_receiver_refused_are_in_the_ledger() -> None:
    with Receiver([(400, {}, b"", 0.0)] * 50) as receiver:
        session = run(otel(receiver, metrics=False, spans=False, events=1e9), [started(), faulted(300)])
        assert session.ledger.losses() == [("lost_otel", "otel.logs", 301)]


def test_a_slow_receiver_ends_at_the_timeout() -> None:
    with Receiver([(200, {}, b"", 3.0)]) as receiver:
        began = time.monotonic()
        outcome, _ = send(receiver, timeout=0.5)
        assert time.monotonic() - began < 2.5
        assert "Timeout" in outcome.error


def test_an_absent_collector_costs_three_seconds_and_a_count(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer {SECRET}")
    caplog.set_level(logging.DEBUG)
    with socket.socket() as held:  # bound, not listening: refused at once
        held.bind(("127.0.0.1", 0))
        exporter = OtelExporter(to="http", endpoint=f"http://user:{SECRET}@127.0.0.1:{held.getsockname()[1]}/?key={SECRET}",
                                providers="own", profiles=True)  # fmt: skip
        session = Session(
            sources=[ScriptedSource([started(), faulted(400), ended()])], exporters=[exporter], enrichers=[]
        )
        session.start()
        session.wait(5)
        began = time.monotonic()
        session.stop()
        assert time.monotonic() - began < 4.5
    lost = {who: n for stage, who, n in session.ledger.losses() if stage == "lost_otel"}
    assert lost["otel.traces"] == 1
    assert lost["otel.profiles"] == 400
    assert lost["otel.logs"] == exporter.statistics()["events"]
    assert lost["otel.metrics"] > 0
    assert "127.0.0.1" in exporter.error
    said = exporter.error + caplog.text + repr(session.statistics()) + session.lanes[0].error
    said += repr([sender.endpoint for sender in exporter._own.senders])  # type: ignore[union-attr]
    assert SECRET not in said


def test_a_collector_that_never_answers_costs_three_seconds() -> None:
    with Receiver([(200, {}, b"", 20.0)] * 50) as receiver:
        session = Session(
            sources=[ScriptedSource([started(), faulted(400)])], exporters=[otel(receiver, mode="bulk")], enrichers=[]
        )
        session.start()
        session.wait(5)
        began = time.monotonic()
        session.stop()
        assert time.monotonic() - began < 4.5
        assert session.ledger.get("lost_otel", "otel.bulk") == 400


def test_tls_without_trust_is_told_and_not_retried() -> None:
    with Receiver() as receiver:  # speaks plain HTTP
        url = receiver.url.replace("http:", "https:")
        sender = Sender(Endpoint.from_environment("logs", {}, url=url))
        outcome = sender.send(b"")
        sender.close()
    assert "SSLError" in outcome.error
    assert sender.requests == 1


def test_a_certificate_that_is_not_there_is_told(tmp_path: Path) -> None:
    variables = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.pem"), "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with pytest.raises(OutputError, match=r"ca.pem.*OTEL_EXPORTER_OTLP_CERTIFICATE"):
        Sender(Endpoint.from_environment("logs", variables, url="https://127.0.0.1:1"))


# -- variables -----------------------------------------------------------------------------------------------------


def test_endpoints_are_read_as_the_specification_says() -> None:
    def url(signal: str, **variables: str) -> str:
        return Endpoint.from_environment(signal, {f"OTEL_EXPORTER_OTLP_{k}": v for k, v in variables.items()}).url

    assert url("logs") == "http://localhost:4318/v1/logs"
    assert url("logs", ENDPOINT="http://c:1/base/") == "http://c:1/base/v1/logs"
    assert url("logs", ENDPOINT="http://c:1", LOGS_ENDPOINT="http://d:2/here") == "http://d:2/here"
    assert url("profiles") == "http://localhost:4318/v1development/profiles"
    assert url("traces", PROTOCOL="grpc") == "http://localhost:4317"
    both = Endpoint.from_environment(
        "logs",
        {
            "OTEL_EXPORTER_OTLP_HEADERS": "a=b",
            "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "c=d%2C,x",
            "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "2.5",
        },
    )
    assert (dict(both.headers), both.timeout) == ({"c": "d,"}, 2.5)
    assert "d," not in repr(both)


@pytest.mark.parametrize("variable", ["PROTOCOL=http/json", "COMPRESSION=zip", "TIMEOUT=soon"])
def test_values_that_are_unknown_are_told(variable: str) -> None:
    name, value = variable.split("=")
    with pytest.raises(UsageError, match=name):
        Endpoint.from_environment("logs", {f"OTEL_EXPORTER_OTLP_{name}": value})


def test_a_disabled_sdk_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with Receiver() as receiver:
        session = run(otel(receiver, profiles=True), [started(), faulted(), ended()])
        assert receiver.seen == []
        assert not session.ledger.losses()


@pytest.mark.parametrize(
    ("signal", "path"), [("metrics", "/v1/metrics"), ("logs", "/v1/logs"), ("traces", "/v1/traces")]
)
def test_a_signal_is_switched_off_by_its_variable(signal: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"OTEL_{signal.upper()}_EXPORTER", "none")
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        run(OtelExporter(providers="own"), [started(), faulted(20), ended()])
        assert {p for p, _, _ in receiver.seen} == {"/v1/metrics", "/v1/logs", "/v1/traces"} - {path}


def test_delta_counts_add_up_to_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    with Receiver() as receiver:
        exporter = otel(receiver, logs=False, spans=False)
        session = Session(sources=[], exporters=[exporter], enrichers=[])
        session.start()
        for _ in range(3):
            exporter.export(faulted(100))
            exporter.tick()
            exporter.flush(1.0)
            time.sleep(0.2)
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


def test_a_full_queue_drops_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BLRP_MAX_QUEUE_SIZE", "100")
    with Receiver([(200, {}, b"", 0.4)] * 5) as receiver:
        session = run(otel(receiver, metrics=False, spans=False, events=1e9), [faulted(2000)])
        arrived = len(logs(receiver))
    assert 0 < arrived < 2001
    assert arrived + session.ledger.get("lost_otel", "otel.logs") == 2000


@pytest.mark.parametrize(("sampler", "flags"), [("", "01"), ("always_off", "00"), ("parentbased_always_on", "01")])
def test_a_target_is_told_what_the_sampler_decided(sampler: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from wstrace_otel.propagation import TraceParent, reserve, take_reserved

    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    given = reserve()["TRACEPARENT"]
    assert given.endswith(f"-{flags}")
    reserved = take_reserved()
    assert reserved is not None
    assert TraceParent.parse(given) == reserved.own
    for wrong in ("", "00-0-0-01", "ff-" + given[3:], given[:-1], "00-" + "0" * 32 + given[35:]):
        assert TraceParent.parse(wrong) is None
