"""The SDK's providers, processors and readers through which telemetry leaves (`wstrace run`), bounded in time.

Embedded in an application its global providers are used instead: they are never set, flushed or shut down.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, ConsoleLogRecordExporter
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator

from wstrace.errors import OutputError, UsageError, missing
from wstrace.interfaces import Context
from wstrace_exporters.otel import names
from wstrace_exporters.otel.propagation import TraceParent
from wstrace_exporters.otel.transport.otlp import Delivery, otlp, quiet

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Tracer

#: The seconds that an exporter's close() may take when the collector is down, and what its user can do.
_CLOSE_SECONDS = 3.0
_REMEDY = "is a collector listening there? OTEL_EXPORTER_OTLP_ENDPOINT says where it is"
_CONSOLES = {"traces": ConsoleSpanExporter, "logs": ConsoleLogRecordExporter, "metrics": ConsoleMetricExporter}


def scope(provider: Any, kind: str) -> Any:
    """The tracer, meter or logger of a provider of the SDK or of the application."""
    return getattr(provider, f"get_{kind}")(names.SCOPE, version("wstrace"), schema_url=names.SCHEMA_URL)


class _Place(IdGenerator):
    """Gives a span the ids that were reserved for it."""

    def __init__(self, place: TraceParent) -> None:
        self._place = place

    def generate_trace_id(self) -> int:
        """Of the span that begins a trace."""
        return self._place.trace_id

    def generate_span_id(self) -> int:
        """Of the span."""
        return self._place.span_id


class OwnProviders:
    """Our own way out, with a thread per signal and the receivers that the OTEL_* variables name.

    Args:
        context: of the session: losses are counted in its ledger, and the SDK's threads are no target.
        metrics: makes what a reader collects, cumulative or not: a function that returns MetricsData each time.
        to: "http", "grpc", "console" or "prometheus"; "" = as set by OTEL_*_EXPORTER.
        endpoint: takes precedence over OTEL_EXPORTER_OTLP_ENDPOINT.
        interval: seconds between two exports of metrics; 0 = OTEL_METRIC_EXPORT_INTERVAL.
        signals: the signals to send, out of metrics, logs and traces.

    Attributes:
        scraped: whether Prometheus scrapes; then labels have to distinguish the resources.

    Raises:
        Unavailable: a package is not installed, or cannot be loaded.
        OutputError: a port is taken, or a certificate is not there.
        UsageError: a variable or option has an unknown value.
    """

    def __init__(
        self,
        context: Context,
        metrics: Callable[[bool], Any],
        *,
        to: str,
        endpoint: str,
        interval: float,
        signals: Sequence[str],
    ) -> None:
        self._ledger, self._metrics, self._to, self._endpoint = context.ledger, metrics, to, endpoint
        self._interval, before = interval, set(threading.enumerate())
        self._deliveries: list[Delivery] = []
        self._served: Any = None
        self.scraped = False
        for signal in signals:
            for destination in self._destinations(signal):
                if destination == "prometheus":
                    self.scraped = True
                else:
                    self._open(signal, destination)
        if self.scraped:
            self._serve()
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith("Otel"):
                context.register_own_thread(thread.native_id)

    def _destinations(self, signal: str) -> list[str]:
        """Where a signal goes to: otlp, console, prometheus. Raises UsageError for another name in its variable."""
        if self._to == "prometheus":
            return ["prometheus"] if signal == "metrics" else []
        if self._to:
            return [self._to if self._to == "console" else "otlp"]
        variable = f"OTEL_{signal.upper()}_EXPORTER"
        words = [word.strip().lower() for word in os.environ.get(variable, "").split(",") if word.strip()] or ["otlp"]
        known = ("otlp", "console", "none", *(("prometheus",) if signal == "metrics" else ()))
        for word in words:
            if word not in known:
                raise UsageError(f"{variable}={word!r} is unknown", f"use {', '.join(known)}")
        return [word for word in words if word != "none"]

    def _open(self, signal: str, destination: str) -> None:
        """Opens the way of a signal to a destination."""
        preference = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().upper()
        cumulative = signal == "metrics" and preference != "DELTA"
        delivery = Delivery(signal, self._ledger, replaced=cumulative)
        if destination == "console":  # stderr, because stdout belongs to the target
            delivery.exporter = _CONSOLES[signal](out=sys.stderr)
        else:
            delivery.exporter = otlp(delivery, self._to, self._endpoint)
        processor: Any
        try:
            if signal == "metrics":
                processor = PeriodicExportingMetricReader(cast(Any, delivery), self._interval * 1000 or None)
                processor._set_collect_callback(self._metrics(cumulative))
            else:
                made: Any = BatchSpanProcessor if signal == "traces" else BatchLogRecordProcessor
                processor = made(delivery)  # which has the methods of an exporter
        except ValueError as error:  # as of a batch that is larger than the queue
            raise UsageError(
                f"{signal}: {error}", "see the OTEL_BSP_*, OTEL_BLRP_* and OTEL_METRIC_EXPORT_INTERVAL variables"
            ) from None
        delivery.processor = processor
        self._deliveries.append(delivery)

    def logger(self, resource: Resource) -> Logger:
        """A logger of a provider of its own."""
        provider = LoggerProvider(resource, shutdown_on_exit=False)
        for delivery in self._of("logs"):
            provider.add_log_record_processor(delivery.processor)
        return cast("Logger", scope(provider, "logger"))

    def tracer(self, resource: Resource, place: TraceParent) -> Tracer:
        """A tracer of a provider of its own, for one span that has these ids."""
        provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=_Place(place))
        for delivery in self._of("traces"):
            provider.add_span_processor(delivery.processor)
        return cast("Tracer", scope(provider, "tracer"))

    @contextlib.contextmanager
    def counted(self, signal: str) -> Iterator[None]:
        """In it one record is handed to the signal's queues; where one is full, the SDK drops its oldest."""
        for delivery in self._of(signal):
            delivery.given += 1
        with quiet():
            yield

    def _of(self, *signals: str) -> list[Delivery]:
        return [one for one in self._deliveries if one.signal in signals]

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Delivers what is held, within that time; counts the rest as lost.

        Raises OutputError: at any time something was not delivered.
        """
        until = time.monotonic() + seconds
        # Records end first, so that their losses are in the last export of the ledger's metrics.
        records, readers = self._of("traces", "logs"), self._of("metrics")
        for group, end in ((records, until - seconds / 4 if readers else until), (readers, until)):
            threads = [threading.Thread(target=one.end, daemon=True) for one in group]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
            for delivery in group:
                delivery.close()
        if self._served is not None:
            server, thread = self._served
            with contextlib.suppress(Exception):
                server.shutdown()
                server.server_close()
                thread.join(1.0)
        if (lost := sum(one.lost for one in self._deliveries)) and seconds:
            raise OutputError(f"{lost} records did not arrive ({self.error or 'refused'})", _REMEDY)

    def cancel(self) -> None:
        """Closes everything without sending anything."""
        for delivery in self._deliveries:
            delivery.close()
        self.close(0)

    @property
    def error(self) -> str:
        """The last failure of any signal, or ""."""
        return next((f"{one.signal}: {one.error}" for one in self._deliveries if one.error), "")

    def _serve(self) -> None:
        """Opens the port that Prometheus scrapes. Raises Unavailable or OutputError."""
        try:
            reader = importlib.import_module("opentelemetry.exporter.prometheus").PrometheusMetricReader
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            package = "opentelemetry-exporter-prometheus"
            raise missing(package, error, 'pip install "wstrace[prometheus]"', "Prometheus") from None
        # A separate registry: the default one would export the tracer's own process_* as if they were the target's.
        registry = CollectorRegistry(auto_describe=False)
        reader(registry=registry)._set_collect_callback(self._metrics(True))
        host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "").strip() or "127.0.0.1"
        port = os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "").strip() or "9464"
        try:
            server, thread = start_http_server(int(port), host, registry=registry)
        except (OSError, ValueError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise OutputError(f"cannot serve metrics on {host}:{port}: {why}",
                              "set OTEL_EXPORTER_PROMETHEUS_PORT to a free one") from None  # fmt: skip

        self._served = server, thread
