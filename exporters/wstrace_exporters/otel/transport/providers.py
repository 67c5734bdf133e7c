"""The providers that telemetry goes through: our own (`wstrace run`), or the application's global ones (embedded).

Both return the same three things for a resource: a meter, a logger and a tracer. Our own are the SDK's, one for each
resource; those of a signal share one batch processor, and all meters one periodic reader.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from wstrace.errors import OutputError, UsageError, missing
from wstrace.ledger import Ledger
from wstrace_exporters.otel import names
from wstrace_exporters.otel.transport.otlp import Answers, Delivery, otlp, quiet

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Tracer

#: The seconds that an exporter's close() may take when the collector is down, and what its user can do.
CLOSE_SECONDS = 3.0
_REMEDY = "is a collector listening there? OTEL_EXPORTER_OTLP_ENDPOINT says where it is"
#: resources in one request of metrics: receivers refuse very large ones
_RESOURCES = 16
#: signal -> the module of the SDK's console exporter, and its name
_CONSOLES = {"traces": ("trace", "ConsoleSpanExporter"), "logs": ("_logs", "ConsoleLogRecordExporter"),
             "metrics": ("metrics", "ConsoleMetricExporter")}  # fmt: skip

#: cumulative -> a function that returns one ResourceMetrics for each resource, each time it is called
MetricsOf = Callable[[bool], Callable[[], list[Any]]]


def version() -> str:
    """The version for the instrumentation scope."""
    from importlib.metadata import version

    return version("wstrace")


class GlobalProviders:
    """The application's own providers: they are used, but never set, flushed or shut down."""

    def meter(self, resource: Resource) -> Meter:
        """The global meter; the resource is the application's."""
        from opentelemetry.metrics import get_meter

        return get_meter(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def logger(self, resource: Resource) -> Logger:
        """The global logger."""
        from opentelemetry._logs import get_logger

        return get_logger(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def tracer(self, resource: Resource) -> Tracer:
        """The global tracer."""
        from opentelemetry.trace import get_tracer

        return get_tracer(names.SCOPE, version(), schema_url=names.SCHEMA_URL)


class OwnProviders:
    """Our own providers, with a thread per signal and the receivers that the OTEL_* variables name.

    Args:
        ledger: where losses are counted.
        to: "http", "grpc", "console" or "prometheus"; "" = as set by OTEL_*_EXPORTER.
        endpoint: takes precedence over OTEL_EXPORTER_OTLP_ENDPOINT.
        interval: seconds between two exports of metrics; 0 = OTEL_METRIC_EXPORT_INTERVAL.
        signals: the signals to send, out of metrics, logs and traces.
        metrics_of: makes a function that returns metrics that no meter has, as those of very many resources: a provider
            takes 30 KB and more.

    Attributes:
        scraped: whether Prometheus scrapes; then one provider serves all resources.

    Raises:
        Unavailable: a package is not installed, or cannot be loaded.
        OutputError: a port is taken, or a certificate is not there.
        UsageError: a variable or option has an unknown value.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        to: str,
        endpoint: str,
        interval: float,
        signals: Sequence[str],
        metrics_of: MetricsOf | None = None,
    ) -> None:
        self._ledger, self._to, self._endpoint, self._interval = ledger, to, endpoint, interval
        self._before = set(threading.enumerate())
        self._processors: dict[str, list[tuple[Any, Delivery]]] = {"traces": [], "logs": [], "metrics": []}
        self._metrics_of, self._meters = metrics_of, list[_Metrics]()
        self._registry: Any = None
        self._shared: Any = None
        self._unserve: Callable[[], None] = lambda: None
        self.scraped = "metrics" in signals and "prometheus" in self._destinations("metrics")
        for signal in signals:
            for place in self._destinations(signal):
                if place != "prometheus":
                    self._open(signal, place)
        if self.scraped:
            self._serve()

    def _destinations(self, signal: str) -> list[str]:
        if self._to in ("http", "grpc"):
            return ["otlp"]
        if self._to:
            return [self._to] if self._to != "prometheus" or signal == "metrics" else []
        return exporters(signal)

    def _open(self, signal: str, place: str) -> None:
        """Opens the way of a signal to a destination."""
        preference = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().upper()
        cumulative = signal == "metrics" and preference != "DELTA"
        options = {"preferred_temporality": _temporality(cumulative)} if signal == "metrics" else {}
        if place == "console":  # stderr, because stdout belongs to the target
            module, name = _CONSOLES[signal]
            made = getattr(importlib.import_module(f"opentelemetry.sdk.{module}.export"), name)
            exporter, answers = made(out=sys.stderr, **options), Answers()
        else:
            exporter, answers = otlp(signal, self._to, self._endpoint, **options)
        delivery = Delivery(signal, exporter, answers, self._ledger, replaced=cumulative)
        if signal == "metrics":
            others = self._metrics_of(cumulative) if self._metrics_of is not None else list
            self._meters.append(_Metrics(delivery, options["preferred_temporality"], others))
            return
        from wstrace_exporters.otel.transport import processors

        make = processors.CountedSpans if signal == "traces" else processors.CountedLogs
        try:
            self._processors[signal].append((make(delivery), delivery))
        except ValueError as error:  # as of a batch that is larger than the queue
            raise UsageError(f"{signal}: {error}", "see the OTEL_BSP_* and OTEL_BLRP_* variables") from None

    def meter(self, resource: Resource) -> Meter:
        """A meter of a provider of its own; the first provider's reader reads all others, too."""
        from opentelemetry.sdk.metrics import MeterProvider

        provider = self._shared
        if provider is None:
            readers = [metrics.reader() for metrics in self._meters] if self._readers else self._first_readers()
            if self.scraped:
                from opentelemetry.exporter.prometheus import PrometheusMetricReader

                readers.append(PrometheusMetricReader(registry=self._registry))
            provider = MeterProvider(readers, resource, shutdown_on_exit=False)
            if self.scraped:  # A scrape has one resource for all; labels distinguish the processes.
                self._shared = provider
        meter: Meter = provider.get_meter(names.SCOPE, version(), schema_url=names.SCHEMA_URL)
        return meter

    @property
    def _readers(self) -> list[tuple[Any, Delivery]]:
        return self._processors["metrics"]

    def _first_readers(self) -> list[Any]:
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        for metrics in self._meters:
            try:
                reader = PeriodicExportingMetricReader(metrics.exporter, self._interval * 1000 or None)
            except ValueError as error:
                raise UsageError(f"OTEL_METRIC_EXPORT_INTERVAL: {error}") from None
            self._readers.append((reader, metrics.delivery))
        return [reader for reader, _ in self._readers]

    def logger(self, resource: Resource) -> Logger:
        """A logger of a provider of its own."""
        from opentelemetry.sdk._logs import LoggerProvider

        provider = LoggerProvider(resource, shutdown_on_exit=False)
        for processor, _ in self._processors["logs"]:
            provider.add_log_record_processor(processor)
        return provider.get_logger(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def tracer(self, resource: Resource) -> Tracer:
        """A tracer of a provider of its own; its `id_generator` is a ReservedIdGenerator."""
        from opentelemetry.sdk.trace import TracerProvider

        from wstrace_exporters.otel.transport.processors import ReservedIdGenerator

        provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=ReservedIdGenerator())
        for processor, _ in self._processors["traces"]:
            provider.add_span_processor(processor)
        return provider.get_tracer(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def own_threads(self) -> frozenset[int]:
        """The system's ids of the SDK's threads that began here, because a tracer does not trace itself."""
        began = set(threading.enumerate()) - self._before
        return frozenset(one.native_id for one in began if one.native_id and one.name.startswith("Otel"))

    def close(self, until: float) -> None:
        """Delivers what is held, until that time (monotonic seconds); counts the rest as lost."""
        # Records end first, so that their losses are in the last export of the ledger's metrics.
        records = [*self._processors["traces"], *self._processors["logs"]]
        share = until - (until - time.monotonic()) / 4 if self._readers and records else until
        for group, end in ((records, share), (self._readers, until)):
            threads = [threading.Thread(target=_shut_down, args=one, daemon=True) for one in group]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
            for _, delivery in group:
                delivery.close()
        self._unserve()

    def finish(self, until: float) -> None:
        """Closes everything as close() does. Raises OutputError: at any time something was not delivered."""
        self.close(until)
        if self.lost:
            raise OutputError(f"{self.lost} records did not arrive ({self.error or 'refused'})", _REMEDY)

    def cancel(self) -> None:
        """Closes everything without sending anything."""
        for delivery in self._deliveries():
            delivery.close()
        self.close(time.monotonic())

    def _deliveries(self) -> list[Delivery]:
        return [delivery for group in self._processors.values() for _, delivery in group]

    def statistics(self) -> dict[str, int | float]:
        """The numbers of delivered and lost records and of failed exports of every signal, and of requests."""
        found: dict[str, int | float] = {}
        for one in self._deliveries():
            found |= {f"{one.signal}_delivered": one.delivered, f"{one.signal}_lost": one.lost}
            found[f"{one.signal}_failures"] = one.failures
        return {**found, "requests": sum(one.answers.requests for one in self._deliveries())}

    @property
    def error(self) -> str:
        """The last failure of any signal, or ""."""
        return next((f"{one.signal}: {one.error}" for one in self._deliveries() if one.error), "")

    @property
    def lost(self) -> int:
        """The number of records of all signals that were not delivered."""
        return sum(one.lost for one in self._deliveries())

    def _serve(self) -> None:
        """Opens the port that Prometheus scrapes. Raises Unavailable or OutputError."""
        try:
            importlib.import_module("opentelemetry.exporter.prometheus")
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            package = "opentelemetry-exporter-prometheus"
            raise missing(package, error, 'pip install "wstrace[prometheus]"', "Prometheus") from None
        # A separate registry: the default one would export the tracer's own process_* as if they were the target's.
        self._registry = CollectorRegistry(auto_describe=False)
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

        self._unserve = close


class _Metrics:
    """The way of metrics to a destination: what the first provider's reader exports, with all other providers'."""

    def __init__(self, delivery: Delivery, temporality: dict[type, Any], others: Callable[[], list[Any]]) -> None:
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricsData

        readers: list[InMemoryMetricReader] = []

        class Together(MetricExporter):
            def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> Any:
                found = list(metrics_data.resource_metrics)
                for reader in readers[:]:  # Others may be added meanwhile.
                    data = reader.get_metrics_data()
                    found.extend(data.resource_metrics if data is not None else ())
                found += others()
                delivery.given += sum(map(_points, found))
                for at in range(0, len(found), _RESOURCES):
                    some = found[at : at + _RESOURCES]
                    delivery.export(MetricsData(some), sum(map(_points, some)))

            def force_flush(self, timeout_millis: float = 10_000) -> bool:
                return True

            def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
                pass

        self.delivery, self.exporter = delivery, Together(preferred_temporality=temporality)
        self._temporality, self._known = temporality, readers

    def reader(self) -> Any:
        """A reader for a further provider, which is exported with the first one's."""
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        self._known.append(InMemoryMetricReader(preferred_temporality=self._temporality))
        return self._known[-1]


def _points(metrics: Any) -> int:
    return sum(len(metric.data.data_points) for scope in metrics.scope_metrics for metric in scope.metrics)


def _temporality(cumulative: bool) -> dict[type, Any]:
    from opentelemetry.sdk.metrics import Counter, Histogram, ObservableCounter
    from opentelemetry.sdk.metrics.export import AggregationTemporality

    way = AggregationTemporality.CUMULATIVE if cumulative else AggregationTemporality.DELTA
    return dict.fromkeys((Counter, Histogram, ObservableCounter), way)


def _shut_down(processor: Any, delivery: Delivery) -> None:
    delivery.closing = True
    with quiet():
        processor.shutdown()


def exporters(signal: str) -> list[str]:
    """The exporters in OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER or OTEL_LOGS_EXPORTER; ["otlp"] when unset.

    Raises:
        UsageError: a name that is not otlp, console, none, or for metrics prometheus.
    """
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    words = [word.strip().lower() for word in os.environ.get(variable, "").split(",") if word.strip()] or ["otlp"]
    known = ("otlp", "console", "none", *(("prometheus",) if signal == "metrics" else ()))
    for word in words:
        if word not in known:
            raise UsageError(f"{variable}={word!r} is unknown", f"use {', '.join(known)}")
    return [word for word in words if word != "none"]
