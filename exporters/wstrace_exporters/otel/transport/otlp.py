"""The SDK's exporters, with what they lack: answers are read, losses counted, and nothing that was sent is logged.

The SDK ignores `partial_success`, and logs addresses and answers, which may hold tokens. No error raised here contains
a header, token, query or answer of the other side.

Source: OTLP specification 1.9, "OTLP/HTTP Response"; OpenTelemetry specification, "OpenTelemetry Protocol Exporter".
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.sdk.metrics.export import MetricsData

from wstrace.errors import OutputError, UsageError, missing
from wstrace.ledger import Ledger
from wstrace_exporters.otel.names import LOST

#: signal -> the SDK's module and class, below a package for each protocol
_EXPORTERS = {"traces": ("trace_exporter", "OTLPSpanExporter"), "logs": ("_log_exporter", "OTLPLogExporter"),
              "metrics": ("metric_exporter", "OTLPMetricExporter")}  # fmt: skip
_PACKAGES = {"http/protobuf": "http", "grpc": "grpc"}
#: The bytes of an answer that are read; a real one has only a few.
MAX_ANSWER = 64 << 10
#: resources in one request of metrics: receivers refuse very large ones
_RESOURCES = 16


class Delivery:
    """Hands the batches of a processor over to an exporter of the SDK, and counts the records that did not arrive.

    Args:
        signal: its name in the ledger, after `otel.`.
        ledger: counts records that were refused, dropped or given up, as `lost_otel`.
        replaced: each export includes everything in the one before it, so only the last one can be lost.

    Attributes:
        exporter, processor: the SDK's.
        given: records that were handed to the processor. delivered, lost: of these.
        rejected, why: what it refused of the last export, and its error in words.
        error: of the last export that failed.
        closing: whether this export is the last one.
    """

    #: what the SDK's reader of metrics takes from its exporter
    _preferred_temporality = _preferred_aggregation = None

    def __init__(self, signal: str, ledger: Ledger, *, replaced: bool) -> None:
        self.signal, self._ledger, self._replaced = signal, ledger, replaced
        self.exporter: Any = None
        self.processor: Any = None
        self._pid, self._lock = os.getpid(), threading.Lock()
        self.given = self.delivered = self.lost = self.rejected = 0
        self.closing = self._closed = False
        self.error = self.why = ""

    def export(self, batch: Any, **_: Any) -> None:
        """Sends a batch; called by the SDK's thread."""
        if not isinstance(batch, MetricsData):
            self._send(batch, len(batch))
            return
        found = batch.resource_metrics
        self.given += sum(map(_points, found))
        for at in range(0, len(found), _RESOURCES):
            some = found[at : at + _RESOURCES]
            self._send(MetricsData(some), sum(map(_points, some)))

    def _send(self, batch: Any, n: int) -> None:
        """Sends n records; nothing in a forked child."""
        if self._closed or os.getpid() != self._pid:
            return
        self.rejected, self.why = 0, ""
        try:
            with quiet():
                failed = self.exporter.export(batch).name != "SUCCESS"
            error = self.why or "could not be sent"
        except Exception as raised:  # A record that cannot be encoded must not end the thread.
            failed, error = True, type(raised).__name__
        with self._lock:
            if self._closed:  # close() has counted it
                return
            refused = n if failed else min(self.rejected, n)
            self.delivered += n - refused
            if failed:
                self.error = error
            if self._replaced and not self.closing:
                self.given -= refused
            else:
                self._lose(refused)

    def end(self) -> None:
        """Sends what the processor holds, as the last export."""
        self.closing = True
        with quiet():
            self.processor.shutdown()

    def close(self) -> None:
        """Sends no more; what was given and did not arrive is counted as lost. Ends the exporter's retries."""
        with self._lock:
            if not self._closed:
                self._closed = True
                left = self.given - self.delivered - self.lost
                if left:
                    self.error = self.error or self.why or "did not answer in time"
                self._lose(left)
        with quiet(), contextlib.suppress(Exception):
            self.exporter.shutdown()

    def shutdown(self, **_: Any) -> None:
        """Does nothing: the processor calls it, and close() is ours."""

    def _lose(self, n: int) -> None:
        if n > 0:
            self.lost += n
            self._ledger.add(LOST, n, f"otel.{self.signal}")


def _points(metrics: Any) -> int:
    return sum(len(metric.data.data_points) for scope in metrics.scope_metrics for metric in scope.metrics)


def otlp(delivery: Delivery, to: str, url: str) -> Any:
    """The SDK's OTLP exporter of a signal, as the OTEL_EXPORTER_OTLP_* variables say.

    delivery: gets the answers of its receiver. to: "http" or "grpc"; takes precedence over the variables. url: a
    generic endpoint that takes precedence over the variables. Raises Unavailable: the package that the protocol needs
    is not installed, or cannot be loaded. UsageError: a variable has an unknown value. OutputError: a certificate is
    not there.
    """
    signal = delivery.signal
    protocol = {"http": "http/protobuf"}.get(to, to) or _variable(signal, "PROTOCOL") or "http/protobuf"
    if protocol not in _PACKAGES:
        raise UsageError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is not served", f"use {' or '.join(_PACKAGES)}")
    for name in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"):
        if (path := _variable(signal, name)) and not Path(path).is_file():
            raise OutputError(f"{path} is no file", f"OTEL_EXPORTER_OTLP_{name} names a PEM file")
    package, (module, name) = _PACKAGES[protocol], _EXPORTERS[signal]
    try:
        made = getattr(importlib.import_module(f"opentelemetry.exporter.otlp.proto.{package}.{module}"), name)
    except ImportError as error:
        install = 'pip install "wstrace[otlp-grpc]"' if package == "grpc" else "pip install wstrace"
        raise missing(f"opentelemetry-exporter-otlp-proto-{package}", error, install, f"OTLP over {package}") from None
    options = {}
    if package == "http":
        options = {"session": _Session(delivery)}
        url = url and f"{url.rstrip('/')}/v1/{signal}"
    for known in list(logging.root.manager.loggerDict):
        if known.startswith(("opentelemetry", "urllib3")):
            logging.getLogger(known).addFilter(_heard)
    try:
        with quiet():
            exporter = made(endpoint=url or None, **options)
    except Exception as error:
        raise UsageError(f"OTLP: {error}", "see the OTEL_EXPORTER_OTLP_* variables") from None
    if package == "grpc":
        _read_grpc(exporter, delivery)
    return exporter


def _variable(signal: str, name: str) -> str:
    own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", "").strip()
    return own or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()


class _Session(requests.Session):
    """Reads what a receiver answers, and keeps it from the SDK."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__()
        self._delivery = delivery

    def request(self, method: Any, url: Any, *words: Any, **options: Any) -> requests.Response:
        # Redirects are refused: a collector does not send them, and they would carry the headers elsewhere.
        # verify is passed each time, because requests lets REQUESTS_CA_BUNDLE override a session's own setting.
        options |= {"allow_redirects": False, "stream": True, "verify": options.get("verify", self.verify)}
        delivery, place = self._delivery, urlsplit(url).netloc.rpartition("@")[2]
        try:
            with super().request(method, url, *words, **options) as got:
                body = b"" if got.is_redirect else got.raw.read(MAX_ANSWER + 1, decode_content=True)
        except Exception as error:
            delivery.why = f"{place}: {type(error).__name__}"
            raise
        passed, code, why = requests.Response(), got.status_code, ""
        if not 200 <= code < 300:
            why = f"HTTP {code}" + ": redirects are refused" * (300 <= code < 400)
        elif (rejected := _rejected(body)) is None:
            why = "its answer is not OTLP"
        else:
            delivery.rejected += rejected
        passed.status_code = code if not why or code >= 400 else 400  # The SDK takes all below for a success.
        passed.headers["retry-after"] = got.headers.get("retry-after", "")
        delivery.why = f"{place}: {why}" if why else ""
        return passed


def _read_grpc(exporter: Any, delivery: Delivery) -> None:
    """Reads the answers of a gRPC exporter. It has no public place for that, and makes its stub anew at an outage."""
    make, place = exporter._stub, exporter._endpoint.rpartition("@")[2]

    class Stub:
        def __init__(self, channel: Any) -> None:
            self._send = make(channel).Export

        def Export(self, **options: Any) -> None:  # noqa: N802  the name of the generated stub
            try:
                answer = self._send(**options)
            except Exception as error:
                code = getattr(error, "code", None)
                delivery.why = f"{place}: gRPC {code().name if callable(code) else type(error).__name__}"
                raise
            delivery.why = ""
            delivery.rejected += _rejected(answer.SerializeToString()) or 0

    exporter._stub = Stub
    exporter._initialize_channel_and_stub()


def _rejected(body: bytes) -> int | None:
    """The count in the answer's `partial_success`; None if it is not an answer of OTLP.

    The answers of all signals have the same shape: field 1 = {field 1 = rejected count, field 2 = message}.
    """
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

    if len(body) > MAX_ANSWER:
        return None
    try:
        if body[:1] == b"{":  # Some receivers always answer in JSON.
            partial: Any = json.loads(body).get("partialSuccess") or {}
            return max(0, int(next((n for name, n in partial.items() if name.startswith("rejected")), 0)))
        return max(0, int(ExportLogsServiceResponse.FromString(body).partial_success.rejected_log_records))
    except (DecodeError, ValueError, TypeError, AttributeError):
        return None


_thread = threading.local()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context in which this thread's log records of OpenTelemetry and urllib3 are dropped: our own errors say it."""
    before, _thread.quiet = getattr(_thread, "quiet", False), True
    try:
        yield
    finally:
        _thread.quiet = before


def _heard(record: logging.LogRecord) -> bool:
    return not getattr(_thread, "quiet", False)
