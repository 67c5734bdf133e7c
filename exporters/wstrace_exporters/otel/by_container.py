"""The exporter `otel_containers`: page faults as metrics, each container or pod a Resource; for a whole node."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

from wstrace.batch import Batch
from wstrace.errors import OutputError, UsageError
from wstrace.interfaces import Context, Exporter

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

    name = "otel_containers"
    streams = frozenset({"page_fault"})
    _containers: Containers
    _own: OwnProviders | None = None

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

    def start(self, context: Context) -> None:
        """Opens the pipeline. Raises OutputError or UsageError."""
        from wstrace_exporters.otel.export.containers import Containers
        from wstrace_exporters.otel.export.metrics import Collection, Row, tracer_row
        from wstrace_exporters.otel.transport.providers import OwnProviders

        containers = self._containers = Containers(context.strings, limit=self._limit, modules=self._modules)
        tracer = tracer_row(context.ledger)

        def rows() -> Iterator[Row]:
            yield from ((row.resource, row.began_ns, row.values()) for row in containers)
            yield tracer()

        self._own = OwnProviders(context, partial(Collection, rows), to=self._to, endpoint=self._endpoint,
                                 interval=self._interval, signals=["metrics"])  # fmt: skip
        if self._own.scraped:
            self._own.cancel()
            raise OutputError(
                "otel_containers sends OTLP: a scrape has one resource for all containers",
                "leave prometheus out of OTEL_METRICS_EXPORTER, and let a Collector be scraped",
            )

    def export(self, batch: Batch) -> None:
        """Counts a batch by columns."""
        self._containers.add(batch)

    def close(self) -> None:
        """Sends the last counts, within 3 s. Raises OutputError: at any time something was not delivered."""
        if self._own is not None:
            self._own.close()

    def cancel(self) -> None:
        """Closes the pipeline without sending anything."""
        if self._own is not None:
            self._own.cancel()
