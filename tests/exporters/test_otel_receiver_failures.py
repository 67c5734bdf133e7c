"""The exporter against a scripted receiver: what hostile, broken and absent ones cost, and what the variables set."""

import logging
import socket
import time

import pytest
from kit.otel_scripted import SECRET, ended, faulted, otel, run, started
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from receiver import Receiver, logs

from wstrace.errors import OutputError, UsageError
from wstrace.interfaces import Context
from wstrace.session import Session
from wstrace.testing import ScriptedSource
from wstrace_exporters.otel.exporter import OtelExporter

Answer = tuple[int, dict[str, str], bytes, float]
NOW = {"retry-after": "0"}
PARTIAL = ExportTraceServiceResponse()
PARTIAL.partial_success.rejected_spans = 1


def answer(status: int = 200, headers: dict[str, str] | None = None, body: bytes = b"", wait: float = 0.0) -> Answer:
    return status, headers or {}, body, wait


#: what a receiver answers -> (the least requests, spans lost, what the error says)
BAD: dict[str, tuple[list[Answer], int, int, str]] = {
    **{f"status {n}": ([answer(n, NOW)] * 2, 3, 0, "") for n in (429, 502, 503, 504)},
    "retry-after": ([answer(503, {"retry-after": "1"})], 2, 0, ""),
    **{f"status {n}": ([answer(n, NOW, SECRET.encode())], 1, 1, f"HTTP {n}") for n in (400, 401, 403, 404, 413, 500)},
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
    assert shown in exporter.error
    assert SECRET not in exporter.error


def test_a_redirect_is_refused_and_its_target_never_requested():
    with Receiver() as other, Receiver([answer(307, {"location": f"{other.url}/v1/traces"})]) as receiver:
        exporter = otel(receiver, metrics=False, logs=False)
        session = run(exporter, [started(), ended()])
        assert "redirects are refused" in exporter.error
        assert session.ledger.get("lost_otel", "otel.traces") == 1
        assert other.seen == []


def test_records_that_a_receiver_refused_are_in_the_ledger():
    with Receiver([answer(400)] * 50) as receiver:
        session = run(otel(receiver, metrics=False, spans=False, events=1e9), [started(), faulted(300)])
        assert session.ledger.losses() == [("lost_otel", "otel.logs", 301)]
    shown = "lost          301  records that the OpenTelemetry receiver did not get (otel.logs)"
    assert shown in [line for line, _ in session.ledger.sentences()]


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
    assert "127.0.0.1" in exporter.error
    assert SECRET not in exporter.error + caplog.text + session.exporter_queues[0].error


def test_a_collector_that_never_answers_costs_three_seconds():
    with Receiver([answer(wait=20.0)] * 50) as receiver:
        source = ScriptedSource([started(), faulted(400)])
        session = Session(sources=[source], exporters=[otel(receiver, events=1e9)], enrichers=[])
        session.start()
        session.wait(5)
        began = time.monotonic()
        session.stop()
        assert time.monotonic() - began < 4.5
        assert session.ledger.get("lost_otel", "otel.logs") == 401


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
