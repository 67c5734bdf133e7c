"""Our own providers and what they need: queues, threads and connections to the receivers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from wstrace.ledger import Ledger
from wstrace_exporters.otel import names
from wstrace_exporters.otel.ids import ReservedIdGenerator
from wstrace_exporters.otel.transport import encode
from wstrace_exporters.otel.transport.batch_sender import BatchLimits, BatchSender, Outcome
from wstrace_exporters.otel.transport.connection import Connection
from wstrace_exporters.otel.transport.endpoint import Endpoint, exporters
from wstrace_exporters.otel.transport.meters import MeterProviders, MetricsOf
from wstrace_exporters.otel.transport.providers import version
from wstrace_exporters.otel.transport.queueing import QueueingLogProcessor, QueueingSpanProcessor

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Tracer


class OwnProviders:
    """Our own providers, with a queue and a thread per signal and the receivers that the OTEL_* variables name.

    Args:
        ledger: where losses are counted.
        to: "http", "grpc", "console" or "prometheus"; "" = as set by OTEL_*_EXPORTER.
        endpoint: takes precedence over OTEL_EXPORTER_OTLP_ENDPOINT.
        interval: seconds between two exports of metrics; 0 = OTEL_METRIC_EXPORT_INTERVAL.
        signals: the signals to send, out of metrics, logs and traces.
        metrics_of: makes a function that returns metrics beside those of meters; see MeterProviders.

    Raises:
        Unavailable: a package is not installed, or cannot be loaded.
        OutputError: a port is taken.
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
        self._ledger, self._to, self._endpoint = ledger, to, endpoint
        self._senders: list[BatchSender] = []
        self._connections: list[Connection] = []
        self._closers: list[Callable[[], None]] = []
        self.metrics = MeterProviders(interval, metrics_of)
        spans, logs = BatchLimits.from_environment("OTEL_BSP"), BatchLimits.from_environment("OTEL_BLRP")
        self._span_senders = self._senders_of("traces", encode.spans, spans) if "traces" in signals else []
        self._log_senders = self._senders_of("logs", encode.logs, logs) if "logs" in signals else []
        if "metrics" in signals:
            self._start_metrics()
        for sender in self._senders:
            sender.start()

    @property
    def connections(self) -> Sequence[Connection]:
        """The connections to all receivers."""
        return self._connections

    def destinations(self, signal: str) -> list[str]:
        """The destinations of a signal: any of otlp, console and prometheus."""
        if self._to in ("http", "grpc"):
            return ["otlp"]
        if self._to:
            return [self._to] if self._to != "prometheus" or signal == "metrics" else []
        return exporters(signal)

    def connection(self, signal: str) -> Connection:
        """A new connection to the signal's endpoint; it is closed with the providers."""
        protocol = {"http": "http/protobuf", "grpc": "grpc"}.get(self._to, "")
        connection = Connection(Endpoint.from_environment(signal, url=self._endpoint, protocol=protocol))
        self._connections.append(connection)
        return connection

    def sender(
        self, signal: str, deliver: Callable[[Sequence[Any]], Outcome], limits: BatchLimits, **options: Any
    ) -> BatchSender:
        """A new queue and thread, not yet started; they stop with the providers. Options are those of BatchSender."""
        sender = BatchSender(signal, deliver, self._ledger, limits, **options)
        self._senders.append(sender)
        return sender

    def _senders_of(self, signal: str, codec: encode.Codec, limits: BatchLimits) -> list[BatchSender]:
        """A sender for each destination of a signal."""
        places = self.destinations(signal)
        return [self.sender(signal, self._delivery(signal, codec, place), limits) for place in places]

    def _delivery(self, signal: str, codec: encode.Codec, place: str) -> Callable[[Sequence[Any]], Outcome]:
        if place == "console":
            console = codec.console()
            return lambda items: encode.print_items(console, codec, items)
        connection = self.connection(signal)
        codec.load()
        return lambda items: encode.send(connection, codec, items)

    def _start_metrics(self) -> None:
        for place in self.destinations("metrics"):
            if place == "prometheus":
                self._closers.append(self.metrics.serve())
                continue
            self.sender(
                "metrics",
                self._delivery("metrics", encode.metrics, place),
                BatchLimits(1 << 20, 16, self.metrics.interval),
                records_in=encode.points,
                collect=self.metrics.reader(),
                cumulative=self.metrics.cumulative,
            )

    def meter(self, resource: Resource) -> Meter:
        """A meter of a provider of its own."""
        return self.metrics.provider(resource).get_meter(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def logger(self, resource: Resource) -> Logger:
        """A logger of a provider of its own."""
        from opentelemetry.sdk._logs import LoggerProvider

        provider = LoggerProvider(resource, shutdown_on_exit=False)
        for sender in self._log_senders:
            provider.add_log_record_processor(QueueingLogProcessor(sender))  # type: ignore[arg-type]  # duck-typed
        return provider.get_logger(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def tracer(self, resource: Resource) -> Tracer:
        """A tracer of a provider of its own; its `id_generator` is a ReservedIdGenerator."""
        from opentelemetry.sdk.trace import TracerProvider

        provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=ReservedIdGenerator())
        for sender in self._span_senders:
            provider.add_span_processor(QueueingSpanProcessor(sender))
        return provider.get_tracer(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def own_threads(self) -> frozenset[int]:
        """The system's ids of the threads created here, because a tracer does not trace itself."""
        return frozenset(s.thread.native_id for s in self._senders if s.thread.native_id is not None)

    def flush(self) -> None:
        """Starts sending everything that is queued, without waiting for it."""
        for sender in self._senders:
            sender.flush()

    def close(self, until: float) -> None:
        """Delivers what is queued, until that time (monotonic seconds); counts the rest as lost."""
        # The senders of records end first, so that their losses are in the last export of the ledger's metrics.
        records = [sender for sender in self._senders if sender.signal != "metrics"]
        metrics = [sender for sender in self._senders if sender.signal == "metrics"]
        share = until - (until - time.monotonic()) / 4 if metrics and records else until
        for senders, end in ((records, share), (metrics, until)):
            for sender in senders:
                sender.stop()
            for sender in senders:
                sender.join(end)
        for connection in self._connections:
            connection.close()
        for close in self._closers:
            close()

    def statistics(self) -> dict[str, int | float]:
        """The counts of every signal, requests and retries."""
        found: dict[str, int | float] = {}
        for sender in self._senders:
            found.update(sender.statistics())
        found["requests"] = sum(connection.requests for connection in self._connections)
        found["retries"] = sum(connection.retries for connection in self._connections)
        return found

    @property
    def error(self) -> str:
        """The last failure of any signal, or ""."""
        failed = [f"{c.endpoint.signal}: {c.error}" for c in self._connections if c.error]
        failed += [f"{sender.signal}: {sender.error}" for sender in self._senders if sender.error]
        return failed[0] if failed else ""

    @property
    def lost(self) -> int:
        """The number of records of all signals that were not delivered."""
        return sum(sender.lost for sender in self._senders)
