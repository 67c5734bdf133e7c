"""Turns the SDK's spans, log records and metrics into bytes of OTLP, or into text on the console.

The SDK encodes; we send (connection.py), so that answers are read and the time is bounded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wstrace.errors import missing
from wstrace_exporters.otel.transport.batch_sender import Outcome
from wstrace_exporters.otel.transport.connection import Connection

_COMMON = "opentelemetry.exporter.otlp.proto.common"


@dataclass(frozen=True, slots=True)
class Codec:
    """Encodes the items of a signal: the SDK's encoder, and its console exporter (under the names it has had)."""

    module: str
    function: str
    show: str
    wrap: Callable[[Sequence[Any]], Any] = list

    def load(self) -> Any:
        """Returns the encoder. Raises Unavailable with the pip command when it is not installed."""
        try:
            return getattr(importlib.import_module(f"{_COMMON}.{self.module}"), self.function)
        except ImportError as error:
            package = "opentelemetry-exporter-otlp-proto-common"
            raise missing(package, error, 'pip install "wstrace[otel]"', "OTLP") from None

    def bytes(self, items: Sequence[Any]) -> bytes:
        """The items as the body of an OTLP request."""
        return bytes(self.load()(self.wrap(items)).SerializeToString())

    def console(self) -> Any:
        """The SDK's console exporter, printing to stderr because stdout belongs to the target."""
        import sys

        module, _, known = self.show.partition(":")
        found = importlib.import_module(module)
        name = next(name for name in known.split("|") if hasattr(found, name))
        return getattr(found, name)(out=sys.stderr)


def _metrics_data(items: Sequence[Any]) -> Any:
    from opentelemetry.sdk.metrics.export import MetricsData

    return MetricsData(list(items))


spans = Codec("trace_encoder", "encode_spans", "opentelemetry.sdk.trace.export:ConsoleSpanExporter")
logs = Codec(
    "_log_encoder", "encode_logs", "opentelemetry.sdk._logs.export:ConsoleLogRecordExporter|ConsoleLogExporter"
)
metrics = Codec(
    "metrics_encoder", "encode_metrics", "opentelemetry.sdk.metrics.export:ConsoleMetricExporter", _metrics_data
)


def send(connection: Connection, codec: Codec, items: Sequence[Any]) -> Outcome:
    """Sends items; a request that is larger than receivers accept is split in halves."""
    payload = codec.bytes(items)
    if len(payload) <= connection.max_bytes:
        return connection.send(payload)
    if len(items) == 1:
        return Outcome(error="a single record is larger than a request may be")
    half = len(items) // 2
    first, second = send(connection, codec, items[:half]), send(connection, codec, items[half:])
    if bool(first.error) != bool(second.error):  # One half arrived, so only the other half is lost.
        lost = half if first.error else len(items) - half
        return Outcome(rejected=lost + first.rejected + second.rejected)
    return Outcome(first.rejected + second.rejected, first.error or second.error)


def print_items(console: Any, codec: Codec, items: Sequence[Any]) -> Outcome:
    """Prints items to stderr."""
    console.export(codec.wrap(items))
    return Outcome()


def points(resource_metrics: Any) -> int:
    """The number of data points in an item of metrics."""
    return sum(len(m.data.data_points) for scope in resource_metrics.scope_metrics for m in scope.metrics)
