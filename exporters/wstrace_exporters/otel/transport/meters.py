"""Meter providers, one per resource, that are read together or scraped by Prometheus."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wstrace.errors import OutputError, missing

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

#: cumulative -> a function that returns one ResourceMetrics for each resource, each time it is called
MetricsOf = Callable[[bool], Callable[[], list[Any]]]


class MeterProviders:
    """Meter providers, one per resource, that are read together: none has a thread or a connection of its own.

    Args:
        interval: seconds between two exports; 0 = OTEL_METRIC_EXPORT_INTERVAL (ms), else a minute.
        metrics_of: returns metrics that no meter has, as those of very many resources: a provider takes 30 KB and more.
    """

    def __init__(self, interval: float, metrics_of: MetricsOf | None = None) -> None:
        self._metrics_of = metrics_of
        text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
        self.interval = interval or (float(text) / 1000 if text.replace(".", "", 1).isdigit() else 60.0) or 60.0
        preference = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().upper()
        self.cumulative = preference != "DELTA"
        self.scraped = False
        self._readers: list[list[Any]] = []
        self._registry: Any = None
        self._shared: Any = None

    def provider(self, resource: Resource) -> MeterProvider:
        """A provider whose metrics carry that resource; every reader that exists by now reads it.

        When Prometheus scrapes, one provider serves all resources.
        """
        from opentelemetry.sdk.metrics import MeterProvider

        if self._shared is not None:
            shared: MeterProvider = self._shared
            return shared
        readers = [self._reader() for _ in self._readers]
        for known, reader in zip(self._readers, readers, strict=True):
            known.append(reader)
        scrapers = [self._scraper()] if self.scraped else []
        provider = MeterProvider([*readers, *scrapers], resource, shutdown_on_exit=False)
        if self.scraped:  # A scrape has one resource for all; labels distinguish the processes.
            self._shared = provider
        return provider

    def reader(self) -> Callable[[], list[Any]]:
        """A function that reads all providers and returns one ResourceMetrics for each."""
        readers: list[Any] = []
        self._readers.append(readers)
        others = self._metrics_of(self.cumulative) if self._metrics_of is not None else list

        def read() -> list[Any]:
            found: list[Any] = []
            for reader in readers[:]:  # Others may be added meanwhile.
                data = reader.get_metrics_data()
                found.extend(data.resource_metrics if data is not None else ())
            return [*found, *others()]

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
        except TypeError:  # Older exporters know only the default registry, so what they registered there is moved.
            from prometheus_client import REGISTRY

            reader = PrometheusMetricReader()
            REGISTRY.unregister(reader._collector)
            self._registry.register(reader._collector)
            return reader

    def serve(self) -> Callable[[], None]:
        """Opens the port that Prometheus scrapes; returns the function that closes it.

        Raises:
            OutputError: the port is taken.
            Unavailable: the packages are not installed, or cannot be loaded.
        """
        try:
            importlib.import_module("opentelemetry.exporter.prometheus")
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            package = "opentelemetry-exporter-prometheus"
            raise missing(package, error, 'pip install "wstrace[prometheus]"', "Prometheus") from None
        # A separate registry: the default one would export the tracer's own process_* as if they were the target's.
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
