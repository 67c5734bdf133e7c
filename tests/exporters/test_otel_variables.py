"""The OTEL_ variables: endpoints, signals, temporality, queues and the sampler."""

from __future__ import annotations

import time

import pytest
from otel_scripted import ended, faulted, otel, run, started
from receiver import Receiver, logs

from wstrace.errors import UsageError
from wstrace.session import Session
from wstrace_exporters.otel.exporter import OtelExporter
from wstrace_exporters.otel.transport.endpoint import Endpoint


def test_endpoints_are_read_as_the_specification_says() -> None:
    def url(signal: str, **variables: str) -> str:
        return Endpoint.from_environment(signal, {f"OTEL_EXPORTER_OTLP_{k}": v for k, v in variables.items()}).url

    assert url("logs") == "http://localhost:4318/v1/logs"
    assert url("logs", ENDPOINT="http://c:1/base/") == "http://c:1/base/v1/logs"
    assert url("logs", ENDPOINT="http://c:1", LOGS_ENDPOINT="http://d:2/here") == "http://d:2/here"
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
        session = run(otel(receiver), [started(), faulted(), ended()])
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
    from wstrace_exporters.otel.propagation import TraceParent, reserve, take_reserved

    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    given = reserve()["TRACEPARENT"]
    assert given.endswith(f"-{flags}")
    reserved = take_reserved()
    assert reserved is not None
    assert TraceParent.parse(given) == reserved.own
    for wrong in ("", "00-0-0-01", "ff-" + given[3:], given[:-1], "00-" + "0" * 32 + given[35:]):
        assert TraceParent.parse(wrong) is None
