"""A scripted OTLP/HTTP receiver for tests: keeps what it got, answers as it was set to."""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS = {
    "/v1/logs": ExportLogsServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
}


class Receiver:
    """Answers each request with the next of `answers`: (status, headers, body, seconds to wait); then 200 and b""."""

    def __init__(self, answers: list[tuple[int, dict[str, str], bytes, float]] | None = None) -> None:
        self.answers = answers or []
        self.seen = []
        self.times = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                encoding = self.headers.get("content-encoding")
                body = gzip.decompress(body) if encoding == "gzip" else body
                body = zlib.decompress(body) if encoding == "deflate" else body
                receiver.times.append(time.monotonic())
                receiver.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                status, headers, answer, wait = receiver.answers.pop(0) if receiver.answers else (200, {}, b"", 0.0)
                time.sleep(wait)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:  # a client that has gone away is no error here
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def messages(self, path: str) -> list[Any]:
        """The requests on a path, decoded."""
        return [REQUESTS[path].FromString(body) for at, _, body in self.seen if at == path]


def plain(attributes: Any) -> dict[str, Any]:
    """KeyValues of a message as name -> value."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in attributes}


def logs(receiver: Receiver) -> list[tuple[dict[str, Any], Any]]:
    """(resource attributes, LogRecord) of all."""
    return [
        (plain(r.resource.attributes), record)
        for m in receiver.messages("/v1/logs")
        for r in m.resource_logs
        for s in r.scope_logs
        for record in s.log_records
    ]


def spans(receiver: Receiver) -> list[tuple[dict[str, Any], Any]]:
    """(resource attributes, Span) of all."""
    return [
        (plain(r.resource.attributes), span)
        for m in receiver.messages("/v1/traces")
        for r in m.resource_spans
        for s in r.scope_spans
        for span in s.spans
    ]


def last_points(receiver: Receiver) -> dict[tuple[str, Any, tuple[tuple[str, Any], ...]], float]:
    """(metric, process.pid or role of the resource, attributes) -> the value last sent."""
    found = {}
    for message in receiver.messages("/v1/metrics"):
        for r in message.resource_metrics:
            about = plain(r.resource.attributes)
            who = about.get("process.pid") if about.get("wstrace.role") == "target" else about.get("wstrace.role")
            for scope in r.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.sum.data_points:
                        value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
                        found[metric.name, who, tuple(sorted(plain(point.attributes).items()))] = value
    return found
