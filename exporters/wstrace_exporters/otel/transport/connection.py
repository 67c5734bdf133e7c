"""Sends the OTLP bytes of any signal over HTTP or gRPC: with retries where they help, bounded in time, with a result.

The SDK's own exporters are not used, because they do not read `partial_success`, and their time limits do not hold
while a collector is down. No error raised here contains a header, token, query or answer of the other side.

Source: OTLP specification 1.9, "OTLP/HTTP Response", "OTLP/gRPC Throttling" and "Failures".
"""

from __future__ import annotations

import contextlib
import gzip
import http
import json
import logging
import random
import threading
import time
import zlib
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

from wstrace.errors import OutputError, UsageError, missing
from wstrace_exporters.otel.transport.batch_sender import Outcome
from wstrace_exporters.otel.transport.endpoint import Endpoint

RETRYABLE = frozenset({429, 502, 503, 504})
RETRYABLE_GRPC = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "OUT_OF_RANGE",
                            "UNAVAILABLE", "DATA_LOSS"})  # fmt: skip
#: The bytes of an answer that are read; a real one has only a few.
MAX_ANSWER = 64 << 10
#: The bytes of a request before compression; receivers refuse larger ones by default (gRPC: 4 MiB; Collector over
#: HTTP: 20 MiB).
MAX_REQUEST = {"grpc": 3 << 20, "http/protobuf": 16 << 20}


class Connection:
    """A connection to an endpoint. One thread calls send(); close() from any other aborts its waiting.

    Raises:
        Unavailable: the package that the protocol needs is not installed, or cannot be loaded.
        OutputError: a certificate cannot be read.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.closed = threading.Event()
        self.requests = self.retries = 0
        self.error = ""  # The error of the last request, "" when it was accepted.
        make = _http if endpoint.protocol == "http/protobuf" else _grpc
        self._post: Callable[[bytes, float], Outcome]
        self._post, self._close = make(endpoint)

    @property
    def max_bytes(self) -> int:
        """The maximum size in bytes of one payload before compression."""
        return MAX_REQUEST[self.endpoint.protocol]

    def send(self, payload: bytes) -> Outcome:
        """Delivers a payload within the endpoint's timeout, retries included."""
        until = time.monotonic() + self.endpoint.timeout
        backoff = 0.5
        while True:
            self.requests += 1
            outcome = self._post(payload, max(0.1, until - time.monotonic()))
            self.error = outcome.error
            if not outcome.retryable or self.closed.is_set():
                return outcome
            # Random jitter of up to a half: many tracers that lost one collector must not return at the same moment.
            wait = backoff * random.uniform(0.5, 1.0) if outcome.retry_after is None else outcome.retry_after  # noqa: S311
            if time.monotonic() + wait >= until or self.closed.wait(wait):
                return outcome
            self.retries += 1
            backoff = min(backoff * 2, 5.0)

    def close(self) -> None:
        """Ends the waiting of send() and closes the connection."""
        self.closed.set()
        with contextlib.suppress(Exception):
            self._close()


def _http(endpoint: Endpoint) -> tuple[Callable[[bytes, float], Outcome], Callable[[], None]]:
    try:
        import requests
    except ImportError as error:
        raise missing("requests", error, 'pip install "wstrace[otel]"', "OTLP over HTTP") from None
    logging.getLogger("urllib3.connectionpool").addFilter(_not_ours)
    session = requests.Session()
    # Passed with each request, because requests lets REQUESTS_CA_BUNDLE override a session's own setting.
    verify: bool | str = endpoint.certificate or True
    if endpoint.client_certificate:
        key = endpoint.client_key
        session.cert = (endpoint.client_certificate, key) if key else endpoint.client_certificate
    compress = {"gzip": lambda data: gzip.compress(data, 1), "deflate": zlib.compress}.get(endpoint.compression)
    headers = {"user-agent": "wstrace", **endpoint.headers, "content-type": "application/x-protobuf"}
    if compress:
        headers["content-encoding"] = endpoint.compression

    def post(payload: bytes, timeout: float) -> Outcome:
        data = compress(payload) if compress else payload
        try:
            # Redirects are refused: a collector does not send them, and they would carry the headers elsewhere.
            with session.post(
                endpoint.url,
                data=data,
                headers=headers,
                timeout=timeout,
                verify=verify,
                allow_redirects=False,
                stream=True,
            ) as answer:
                body = b"" if answer.is_redirect else answer.raw.read(MAX_ANSWER + 1, decode_content=True)
                return _judge(endpoint, answer.status_code, body, answer.headers.get("retry-after", ""))
        except (requests.exceptions.SSLError, requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema,
                requests.exceptions.MissingSchema, requests.exceptions.InvalidHeader) as error:  # fmt: skip
            return Outcome(error=f"{endpoint.place}: {_reason(error)}")
        except Exception as error:  # Whatever a socket, a proxy or a decoder raises is one failed request.
            return Outcome(error=f"{endpoint.place}: {_reason(error)}", retryable=True)

    return post, session.close


def _not_ours(record: logging.LogRecord) -> bool:
    """False for our threads' records: urllib3 logs the whole path of a request, including tokens in its query."""
    return not (record.threadName or "").startswith("wstrace-otel")


def _judge(endpoint: Endpoint, status: int, body: bytes, retry_after: str) -> Outcome:
    if 200 <= status < 300:
        rejected = _rejected(body)
        if rejected is None:
            return Outcome(error=f"{endpoint.place}: its answer is not OTLP")
        return Outcome(rejected)
    if 300 <= status < 400:
        return Outcome(error=f"{endpoint.place}: HTTP {status}: redirects are refused")
    with contextlib.suppress(ValueError):
        return Outcome(
            error=f"{endpoint.place}: HTTP {status} {http.HTTPStatus(status).phrase}",
            retry_after=_seconds(retry_after),
            retryable=status in RETRYABLE,
        )
    return Outcome(error=f"{endpoint.place}: HTTP {status}")


def _grpc(endpoint: Endpoint) -> tuple[Callable[[bytes, float], Outcome], Callable[[], None]]:
    try:
        import grpc
    except ImportError as error:
        raise missing("grpcio", error, 'pip install "wstrace[otlp-grpc]"', "OTLP over gRPC") from None
    if endpoint.compression == "deflate":
        raise UsageError("OTLP over gRPC is compressed with gzip or not at all", "OTEL_EXPORTER_OTLP_COMPRESSION=gzip")
    compression = grpc.Compression.Gzip if endpoint.compression == "gzip" else grpc.Compression.NoCompression
    options = [("grpc.max_receive_message_length", MAX_ANSWER), ("grpc.enable_retries", 0)]
    if endpoint.insecure:
        channel = grpc.insecure_channel(endpoint.place, options, compression)
    else:
        paths = (endpoint.certificate, endpoint.client_key, endpoint.client_certificate)
        credentials = grpc.ssl_channel_credentials(*(_read(path) for path in paths))
        channel = grpc.secure_channel(endpoint.place, credentials, options, compression)
    export = channel.unary_unary(endpoint.method, request_serializer=None, response_deserializer=None)
    metadata = tuple(endpoint.headers.items())

    def post(payload: bytes, timeout: float) -> Outcome:
        try:
            rejected = _rejected(export(payload, timeout=timeout, metadata=metadata))
        except grpc.RpcError as error:
            code = error.code().name
            return Outcome(error=f"{endpoint.place}: gRPC {code}", retryable=code in RETRYABLE_GRPC)
        except ValueError:
            return Outcome(error=f"{endpoint.place}: the connection is closed")
        return Outcome(error=f"{endpoint.place}: its answer is not OTLP") if rejected is None else Outcome(rejected)

    return post, channel.close


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
            return int(next((n for name, n in partial.items() if name.startswith("rejected")), 0))
        return None
    try:
        rejected = ExportLogsServiceResponse.FromString(body).partial_success.rejected_log_records
    except DecodeError:
        return None
    return max(0, int(rejected))


def _seconds(retry_after: str) -> float | None:
    """The seconds in a Retry-After header, which holds a number or a date (RFC 9110, 10.2.3)."""
    try:
        return max(0.0, float(int(retry_after)))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (TypeError, ValueError):
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


def _read(path: str) -> bytes | None:
    if not path:
        return None
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(1 << 20)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}", "OTEL_EXPORTER_OTLP_CERTIFICATE names a PEM file") from None
