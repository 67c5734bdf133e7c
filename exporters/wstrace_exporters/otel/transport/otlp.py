"""The SDK's exporters, with what they lack: answers are read, losses counted, and nothing that was sent is logged.

The SDK ignores `partial_success`, and logs addresses and answers, which may hold tokens. No error raised here contains
a header, token, query or answer of the other side.

Source: OTLP specification 1.9, "OTLP/HTTP Response"; OpenTelemetry specification, "OpenTelemetry Protocol Exporter".
"""

from __future__ import annotations

import contextlib
import http
import importlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wstrace.errors import OutputError, UsageError, missing
from wstrace.ledger import Ledger
from wstrace_exporters.otel.names import LOST

#: signal -> the SDK's module and class, below a package for each protocol
_EXPORTERS = {"traces": ("trace_exporter", "OTLPSpanExporter"), "logs": ("_log_exporter", "OTLPLogExporter"),
              "metrics": ("metric_exporter", "OTLPMetricExporter")}  # fmt: skip
_PACKAGES = {"http/protobuf": "http", "grpc": "grpc"}
#: The bytes of an answer that are read; a real one has only a few.
MAX_ANSWER = 64 << 10


@dataclass
class Answers:
    """What the receiver of an exporter answered: requests so far, and of the last export the refused and the error."""

    requests: int = 0
    rejected: int = 0
    error: str = ""


class Delivery:
    """Hands the batches of a processor over to an exporter of the SDK, and counts the records that did not arrive.

    Args:
        signal: its name in the ledger, after `otel.`.
        exporter: the SDK's.
        answers: of its receiver.
        ledger: counts records that were refused, dropped or given up, as `lost_otel`.
        replaced: each export includes everything in the one before it, so only the last one can be lost.

    Attributes:
        given: records that were handed to the processor. delivered, lost: of these. failures: exports that failed.
        closing: whether this export is the last one.
    """

    def __init__(self, signal: str, exporter: Any, answers: Answers, ledger: Ledger, *, replaced: bool = False) -> None:
        self.signal, self.answers, self._exporter, self._ledger = signal, answers, exporter, ledger
        self._replaced, self._pid, self._lock = replaced, os.getpid(), threading.Lock()
        self.given = self.delivered = self.lost = self.failures = 0
        self.closing = self._closed = False
        self.error = ""

    def export(self, batch: Any, n: int | None = None) -> None:
        """Sends a batch of n records; called by the SDK's thread. Sends nothing in a forked child."""
        if self._closed or os.getpid() != self._pid:
            return
        n = len(batch) if n is None else n
        self.answers.rejected, self.answers.error = 0, ""
        try:
            with quiet():
                failed = self._exporter.export(batch).name != "SUCCESS"
            error = self.answers.error or "could not be sent"
        except Exception as raised:  # A record that cannot be encoded must not end the thread.
            failed, error = True, type(raised).__name__
        with self._lock:
            if self._closed:  # close() has counted it
                return
            refused = n if failed else min(self.answers.rejected, n)
            self.delivered += n - refused
            if failed:
                self.failures, self.error = self.failures + 1, error
            if self._replaced and not self.closing:
                self.given -= refused
            else:
                self._lose(refused)

    def close(self) -> None:
        """Sends no more; what was given and did not arrive is counted as lost. Ends the exporter's retries."""
        with self._lock:
            if not self._closed:
                self._closed = True
                left = self.given - self.delivered - self.lost
                if left:
                    self.error = self.error or self.answers.error or "did not answer in time"
                self._lose(left)
        with quiet(), contextlib.suppress(Exception):
            self._exporter.shutdown()

    def shutdown(self) -> None:
        """Does nothing: the processor calls it, and close() is ours."""

    def _lose(self, n: int) -> None:
        if n > 0:
            self.lost += n
            self._ledger.add(LOST, n, f"otel.{self.signal}")


# -- the SDK's exporters ---------------------------------------------------------------------------------------------


def otlp(signal: str, to: str, url: str, **options: Any) -> tuple[Any, Answers]:
    """The SDK's OTLP exporter of a signal, as the OTEL_EXPORTER_OTLP_* variables say, and the answers that it gets.

    Args:
        signal: traces, metrics or logs.
        to: "http" or "grpc"; takes precedence over the variables.
        url: a generic endpoint that takes precedence over the variables.
        options: further arguments of the SDK's class.

    Raises:
        Unavailable: the package that the protocol needs is not installed, or cannot be loaded.
        UsageError: a variable has an unknown value. OutputError: a certificate is not there.
    """
    protocol = {"http": "http/protobuf"}.get(to, to) or _variable(signal, "PROTOCOL") or "http/protobuf"
    if protocol not in _PACKAGES:
        raise UsageError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is not served", f"use {' or '.join(_PACKAGES)}")
    compression = _variable(signal, "COMPRESSION").lower()
    if compression not in ("", "none", "gzip", "deflate"):
        raise UsageError(f"OTEL_EXPORTER_OTLP_COMPRESSION={compression!r} is unknown", "use gzip, deflate or none")
    try:
        float(_variable(signal, "TIMEOUT") or 10)
    except ValueError:
        raise UsageError("OTEL_EXPORTER_OTLP_TIMEOUT is not a number of seconds") from None
    for name in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"):
        if (path := _variable(signal, name)) and not Path(path).is_file():
            raise OutputError(f"{path} is no file", f"OTEL_EXPORTER_OTLP_{name} names a PEM file")
    package, (module, name), answers = _PACKAGES[protocol], _EXPORTERS[signal], Answers()
    try:
        made = getattr(importlib.import_module(f"opentelemetry.exporter.otlp.proto.{package}.{module}"), name)
    except ImportError as error:
        install = 'pip install "wstrace[otlp-grpc]"' if package == "grpc" else "pip install wstrace"
        raise missing(f"opentelemetry-exporter-otlp-proto-{package}", error, install, f"OTLP over {package}") from None
    if package == "http":
        options |= {"session": _session(answers)}
        url = url and f"{url.rstrip('/')}/v1/{signal}"
    _silence()
    try:
        with quiet():
            exporter = made(endpoint=url or None, **options)
    except Exception as error:
        raise UsageError(f"OTLP: {error}", "see the OTEL_EXPORTER_OTLP_* variables") from None
    if package == "grpc":
        _read_grpc(exporter, answers)
    return exporter, answers


def _variable(signal: str, name: str) -> str:
    own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", "").strip()
    return own or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()


def _session(answers: Answers) -> Any:
    """A requests.Session that reads what a receiver answers, and keeps it from the SDK."""
    import requests

    class Session(requests.Session):
        def request(self, method: Any, url: Any, *words: Any, **options: Any) -> requests.Response:
            # Redirects are refused: a collector does not send them, and they would carry the headers elsewhere.
            # verify is passed each time, because requests lets REQUESTS_CA_BUNDLE override a session's own setting.
            options |= {"allow_redirects": False, "stream": True, "verify": options.get("verify", self.verify)}
            place = urlsplit(url).netloc.rpartition("@")[2]
            answers.requests += 1
            try:
                with super().request(method, url, *words, **options) as got:
                    body = b"" if got.is_redirect else got.raw.read(MAX_ANSWER + 1, decode_content=True)
            except Exception as error:
                answers.error = f"{place}: {_reason(error)}"
                raise
            passed = requests.Response()
            passed.status_code, passed.headers["retry-after"] = got.status_code, got.headers.get("retry-after", "")
            why = _status(got.status_code)
            if not why and (rejected := _rejected(body)) is not None:
                answers.rejected += rejected
            elif not why:
                why, passed.status_code = "its answer is not OTLP", 400
            elif got.status_code < 400:  # The SDK would take it for a success.
                passed.status_code = 400
            answers.error = f"{place}: {why}" if why else ""
            return passed

    return Session()


def _status(code: int) -> str:
    """Why a status is no success, "" = it is one."""
    if 200 <= code < 300:
        return ""
    if 300 <= code < 400:
        return f"HTTP {code}: redirects are refused"
    with contextlib.suppress(ValueError):
        return f"HTTP {code} {http.HTTPStatus(code).phrase}"
    return f"HTTP {code}"


def _read_grpc(exporter: Any, answers: Answers) -> None:
    """Reads the answers of a gRPC exporter. It has no public place for that, and makes its stub anew at an outage."""
    make, place = exporter._stub, exporter._endpoint.rpartition("@")[2]

    class Stub:
        def __init__(self, channel: Any) -> None:
            self._send = make(channel).Export

        def Export(self, **options: Any) -> None:  # noqa: N802  the name of the generated stub
            answers.requests += 1
            try:
                answer = self._send(**options)
            except Exception as error:
                code = getattr(error, "code", None)
                answers.error = f"{place}: gRPC {code().name if callable(code) else type(error).__name__}"
                raise
            answers.error, rejected = "", _rejected(answer.SerializeToString())
            answers.rejected += rejected or 0

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
    if body[:1] == b"{":  # Some receivers always answer in JSON.
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            partial: Any = json.loads(body).get("partialSuccess") or {}
            return max(0, int(next((n for name, n in partial.items() if name.startswith("rejected")), 0)))
        return None
    try:
        return max(0, int(ExportLogsServiceResponse.FromString(body).partial_success.rejected_log_records))
    except DecodeError:
        return None


def _reason(error: BaseException) -> str:
    """The reason without any of the data sent: the names of the errors' classes and the system's own words."""
    words = [type(error).__name__]
    deepest: Any = error
    for _ in range(8):
        inner = deepest.__cause__ or deepest.__context__ or getattr(deepest, "reason", None)
        if not isinstance(inner, BaseException):
            break
        deepest = inner
    if isinstance(deepest, OSError) and deepest.strerror:
        words.append(deepest.strerror)
    elif deepest is not error:
        words.append(type(deepest).__name__)
    return ": ".join(words)


# -- what the SDK logs -----------------------------------------------------------------------------------------------

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


def _silence() -> None:
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith(("opentelemetry", "urllib3")) and isinstance(logger, logging.Logger):
            logger.addFilter(_heard)
