"""From the SDK's spans, log records and metrics to bytes of OTLP, or to text on the console.

Encoding is the SDK's; sending is ours (sender.py), so that its answers are read and its time is bounded.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import SpanProcessor

from wstrace.errors import OutputError
from wstrace_otel.transport.courier import Courier, Outcome
from wstrace_otel.transport.sender import Sender

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

_COMMON = "opentelemetry.exporter.otlp.proto.common"


@dataclass(frozen=True, slots=True)
class Codec:
    """How items of a signal become bytes: the SDK's encoder, and its exporter to the console (its names over time)."""

    module: str
    function: str
    show: str
    wrap: Callable[[Sequence[Any]], Any] = list

    def need(self) -> Any:
        """The encoder. Raises OutputError with the pip line when it is not installed."""
        try:
            return getattr(importlib.import_module(f"{_COMMON}.{self.module}"), self.function)
        except ImportError:
            raise OutputError("OTLP needs a package that is not installed", 'pip install "wstrace[otlp]"') from None

    def bytes(self, items: Sequence[Any]) -> bytes:
        """The items as the body of an OTLP request."""
        return bytes(self.need()(self.wrap(items)).SerializeToString())

    def console(self) -> Any:
        """The SDK's exporter that prints to stderr: stdout belongs to the target."""
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


def send(sender: Sender, codec: Codec, items: Sequence[Any]) -> Outcome:
    """Sends items, in halves where a request would be larger than receivers take."""
    payload = codec.bytes(items)
    if len(payload) <= sender.max_bytes:
        return sender.send(payload)
    if len(items) == 1:
        return Outcome(error="a single record is larger than a request may be")
    half = len(items) // 2
    first, second = send(sender, codec, items[:half]), send(sender, codec, items[half:])
    if bool(first.error) != bool(second.error):  # half of it arrived: only the other half is lost
        lost = half if first.error else len(items) - half
        return Outcome(rejected=lost + first.rejected + second.rejected)
    return Outcome(first.rejected + second.rejected, first.error or second.error)


def shown(console: Any, codec: Codec, items: Sequence[Any]) -> Outcome:
    """Prints items to stderr."""
    console.export(codec.wrap(items))
    return Outcome()


class SpanDoor(SpanProcessor):
    """Hands ended spans that are sampled to a courier."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier

    def on_end(self, span: Any) -> None:
        """Queues it."""
        if span.context and span.context.trace_flags.sampled:
            self._courier.put(span)


class LogDoor:
    """Hands log records to a courier. Duck-typed: the name of the SDK's base class has changed more than once."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier

    def on_emit(self, log_record: Any) -> None:
        """Queues it, in the form that the SDK's exporters take."""
        from opentelemetry.sdk import _logs

        readable = getattr(_logs, "ReadableLogRecord", None)
        if readable is not None:
            log_record = readable(
                log_record.log_record, log_record.resource, log_record.instrumentation_scope, log_record.limits
            )
        self._courier.put(log_record)

    def shutdown(self) -> None:
        """The courier is stopped by its backend."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """The courier is flushed by its backend."""
        return True


def points(resource_metrics: Any) -> int:
    """The data points that an item of metrics holds."""
    return sum(len(m.data.data_points) for scope in resource_metrics.scope_metrics for m in scope.metrics)


class MetricSet:
    """Meter providers, one a resource, that are read together: no thread and no connection for each.

    Args:
        interval: seconds between two exports; 0 = OTEL_METRIC_EXPORT_INTERVAL (ms), else a minute.
    """

    def __init__(self, interval: float) -> None:
        text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
        self.interval = interval or (float(text) / 1000 if text.replace(".", "", 1).isdigit() else 60.0) or 60.0
        preference = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().upper()
        self.cumulative = preference != "DELTA"
        self.scraped = False
        self._readers: list[list[Any]] = []
        self._registry: Any = None
        self._shared: Any = None

    def provider(self, resource: Resource) -> MeterProvider:
        """A provider whose metrics carry that resource, read by every reader made before; one for all when scraped."""
        from opentelemetry.sdk.metrics import MeterProvider

        if self._shared is not None:
            shared: MeterProvider = self._shared
            return shared
        readers = [self._reader() for _ in self._readers]
        for known, reader in zip(self._readers, readers, strict=True):
            known.append(reader)
        scrapers = [self._scraper()] if self.scraped else []
        provider = MeterProvider([*readers, *scrapers], resource, shutdown_on_exit=False)
        if self.scraped:  # a scrape has one resource for all; processes are told apart by labels there
            self._shared = provider
        return provider

    def reader(self) -> Callable[[], list[Any]]:
        """A call that reads all providers: a ResourceMetrics each."""
        readers: list[Any] = []
        self._readers.append(readers)

        def read() -> list[Any]:
            found: list[Any] = []
            for reader in readers[:]:  # more may come meanwhile
                data = reader.get_metrics_data()
                found.extend(data.resource_metrics if data is not None else ())
            return found

        return read

    def _reader(self) -> Any:
        from opentelemetry.sdk.metrics import Counter, Histogram, ObservableCounter
        from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

        kinds: tuple[type, ...] = () if self.cumulative else (Counter, Histogram, ObservableCounter)
        return InMemoryMetricReader(preferred_temporality=dict.fromkeys(kinds, AggregationTemporality.DELTA))

    def _scraper(self) -> Any:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader

        try:
            return PrometheusMetricReader(registry=self._registry)
        except TypeError:  # an exporter of old knows but the default registry: move what it registered there
            from prometheus_client import REGISTRY

            reader = PrometheusMetricReader()
            REGISTRY.unregister(reader._collector)
            self._registry.register(reader._collector)
            return reader

    def serve(self) -> Callable[[], None]:
        """Opens the port that Prometheus scrapes; gives what closes it.

        Raises:
            OutputError: the port is taken, or the packages are not installed.
        """
        try:
            importlib.import_module("opentelemetry.exporter.prometheus")
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise OutputError("Prometheus needs packages that are not installed",
                              'pip install "wstrace[prometheus]"') from None  # fmt: skip
        # a registry of its own: the default one would tell the tracer's process_* as if they were the target's
        self._registry = CollectorRegistry(auto_describe=False)
        self.scraped = True
        host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "").strip() or "127.0.0.1"
        port = os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "").strip() or "9464"
        try:
            server, thread = start_http_server(int(port), host, registry=self._registry)
        except (OSError, ValueError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise OutputError(f"cannot serve metrics on {host}:{port}: {why}",
                              "set OTEL_EXPORTER_PROMETHEUS_PORT to a free one") from None  # fmt: skip

        def close() -> None:
            with contextlib.suppress(Exception):
                server.shutdown()
                server.server_close()
                thread.join(1.0)

        return close
