"""The exporter `otel_containers`: page faults as metrics, each container or pod a Resource; for a whole node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from wstrace.batch import Batch
from wstrace.errors import OutputError, UsageError
from wstrace.interfaces import Context, Exporter
from wstrace_exporters.otel.transport.providers import CLOSE_SECONDS

if TYPE_CHECKING:  # The SDK is imported only when the exporter starts, because every command line loads this class.
    from wstrace_exporters.otel.export.containers import Containers
    from wstrace_exporters.otel.transport.providers import OwnProviders


class OtelContainersExporter(Exporter):
    """Sends the page faults of each container to OpenTelemetry; honours all OTEL_* variables.

    Args:
        to: the destination: OTLP over http or grpc, or the console; "" = as set by OTEL_METRICS_EXPORTER and
            OTEL_EXPORTER_OTLP_PROTOCOL.
        endpoint: a collector's address; takes precedence over OTEL_EXPORTER_OTLP_ENDPOINT.
        interval_s: seconds between two exports; 0 = OTEL_METRIC_EXPORT_INTERVAL.
        containers: containers with a Resource of their own; the rest is `other`.
        modules: files with a series of their own, per container; the rest is `other`.
    """

    name: ClassVar[str] = "otel_containers"
    streams: ClassVar[frozenset[str] | None] = frozenset({"page_fault"})

    def __init__(
        self,
        *,
        to: Literal["", "http", "grpc", "console"] = "",
        endpoint: str = "",
        interval_s: float = 0.0,
        containers: int = 1000,
        modules: int = 10,
    ) -> None:
        if containers < 1 or modules < 1:
            raise UsageError("otel_containers: containers and modules must be at least 1")
        self._to, self._endpoint, self._interval = to, endpoint, interval_s
        self._limit, self._modules = containers, modules
        self._containers: Containers | None = None
        self._own: OwnProviders | None = None

    def start(self, context: Context) -> None:
        """Opens the pipeline. Raises OutputError or UsageError."""
        from wstrace_exporters.otel.export import resource
        from wstrace_exporters.otel.export.containers import Containers
        from wstrace_exporters.otel.export.metrics import TracerInstruments
        from wstrace_exporters.otel.transport.providers import OwnProviders

        self._containers = Containers(context.strings, limit=self._limit, modules=self._modules)
        self._own = OwnProviders(
            context.ledger,
            to=self._to,
            endpoint=self._endpoint,
            interval=self._interval,
            signals=["metrics"],
            metrics_of=self._containers.collector,
        )
        if self._own.scraped:
            self._own.cancel()
            raise OutputError(
                "otel_containers sends OTLP: a scrape has one resource for all containers",
                "leave prometheus out of OTEL_METRICS_EXPORTER, and let a Collector be scraped",
            )
        TracerInstruments(self._own.meter(resource.of_tracer()), context.ledger.rows, own_usage=True)
        for thread in self._own.own_threads():
            context.register_own_thread(thread)

    def export(self, batch: Batch) -> None:
        """Counts a batch by columns."""
        if self._containers is not None:
            self._containers.add(batch)

    def close(self) -> None:
        """Sends the last counts, within 3 s. Raises OutputError: at any time something was not delivered."""
        if self._own is not None:
            self._own.finish(time.monotonic() + CLOSE_SECONDS)

    def cancel(self) -> None:
        """Closes the pipeline without sending anything."""
        if self._own is not None:
            self._own.cancel()

    def statistics(self) -> Mapping[str, int | float]:
        """The containers with a Resource, and the counts of the pipeline."""
        found: dict[str, int | float] = {"containers": len(self._containers) if self._containers is not None else 0}
        return {**found, **(self._own.statistics() if self._own is not None else {})}
