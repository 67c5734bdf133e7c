"""The exporter against a scripted receiver: what hostile, broken and absent ones cost."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from otel_scripted import SECRET, ended, faulted, otel, run, started
from receiver import Receiver

from wstrace.analysis import headline
from wstrace.errors import OutputError
from wstrace.session import Session
from wstrace.testing import ScriptedSource
from wstrace_exporters.otel.exporter import OtelExporter
from wstrace_exporters.otel.transport.connection import Connection
from wstrace_exporters.otel.transport.endpoint import Endpoint


def send(receiver: Receiver, timeout: float = 5.0) -> tuple[Any, Connection]:
    sender = Connection(Endpoint.from_environment("logs", {"OTEL_EXPORTER_OTLP_TIMEOUT": str(timeout),
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
    told = "lost          301  records that the OpenTelemetry receiver did not get (otel.logs)"
    assert told in [line for line, _ in headline.losses(session.ledger)]


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
                                providers="own")  # fmt: skip
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
    assert lost["otel.logs"] == exporter.statistics()["events"]
    assert lost["otel.metrics"] > 0
    assert "127.0.0.1" in exporter.error
    said = exporter.error + caplog.text + repr(session.statistics()) + session.exporter_queues[0].error
    said += repr([sender.endpoint for sender in exporter._own.connections])
    assert SECRET not in said


def test_a_collector_that_never_answers_costs_three_seconds() -> None:
    with Receiver([(200, {}, b"", 20.0)] * 50) as receiver:
        session = Session(
            sources=[ScriptedSource([started(), faulted(400)])], exporters=[otel(receiver, events=1e9)], enrichers=[]
        )
        session.start()
        session.wait(5)
        began = time.monotonic()
        session.stop()
        assert time.monotonic() - began < 4.5
        assert session.ledger.get("lost_otel", "otel.logs") == 401


def test_tls_without_trust_is_told_and_not_retried() -> None:
    with Receiver() as receiver:  # speaks plain HTTP
        url = receiver.url.replace("http:", "https:")
        sender = Connection(Endpoint.from_environment("logs", {}, url=url))
        outcome = sender.send(b"")
        sender.close()
    assert "SSLError" in outcome.error
    assert sender.requests == 1


def test_a_certificate_that_is_not_there_is_told(tmp_path: Path) -> None:
    variables = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.pem"), "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with pytest.raises(OutputError, match=r"ca.pem.*OTEL_EXPORTER_OTLP_CERTIFICATE"):
        Connection(Endpoint.from_environment("logs", variables, url="https://127.0.0.1:1"))
