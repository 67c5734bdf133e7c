"""Where telemetry goes: pipelines of our own (`wstrace run`), or the application's global providers (embedded).

Both give the same three things for a process: a meter, a logger and a tracer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from wstrace.errors import OutputError
from wstrace.ledger import Ledger
from wstrace_otel import names
from wstrace_otel.ids import Ids
from wstrace_otel.transport import encode
from wstrace_otel.transport.courier import Courier, Outcome, Pace
from wstrace_otel.transport.endpoint import Endpoint, exporters
from wstrace_otel.transport.sender import Sender

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Tracer

SCOPE = (names.SCOPE, "", names.SCHEMA_URL)


class Backend(Protocol):
    """What an exporter needs of OpenTelemetry. Each resource is asked for once."""

    def meter(self, resource: Resource) -> Meter:
        """A meter whose metrics carry that resource."""

    def logger(self, resource: Resource) -> Logger:
        """A logger whose records carry that resource."""

    def tracer(self, resource: Resource) -> Tracer:
        """A tracer whose spans carry that resource."""

    def close(self, until: float) -> None:
        """Delivers what is held, until that time (monotonic seconds); counts the rest."""

    def statistics(self) -> dict[str, int | float]:
        """Counts of what was delivered and lost."""


def version() -> str:
    """The version in the instrumentation scope."""
    from importlib.metadata import version

    return version("wstrace")


class GlobalBackend:
    """The application's own providers: used, never set, flushed or shut down."""

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

    def close(self, until: float) -> None:
        """Nothing: the application flushes its providers itself."""

    def statistics(self) -> dict[str, int | float]:
        """Nothing is known of the application's pipelines."""
        return {}


class OwnBackend:
    """Pipelines of our own, one thread a signal, with the receivers that the OTEL_* variables name.

    Args:
        ledger: where losses are counted.
        to: "" = what OTEL_*_EXPORTER say; "http", "grpc", "console" or "prometheus" before them.
        endpoint: before OTEL_EXPORTER_OTLP_ENDPOINT.
        interval: seconds between two exports of metrics; 0 = OTEL_METRIC_EXPORT_INTERVAL.
        signals: which of metrics, logs, traces, profiles are wanted.

    Raises:
        OutputError: a package that is not installed, a port that is taken.
        UsageError: a variable or option with a value that is not known.
    """

    def __init__(self, ledger: Ledger, *, to: str, endpoint: str, interval: float, signals: Sequence[str]) -> None:
        self._ledger, self._to, self._endpoint = ledger, to, endpoint
        self._couriers: list[Courier] = []
        self._senders: list[Sender] = []
        self._closers: list[Callable[[], None]] = []
        self._providers: list[Any] = []
        self.metrics = encode.MetricSet(interval)
        self._spans = self._courier("traces", encode.spans, Pace.from_environment("OTEL_BSP"), signals)
        self._logs = self._courier("logs", encode.logs, Pace.from_environment("OTEL_BLRP"), signals)
        if "metrics" in signals:
            self._metrics()
        for courier in self._couriers:
            courier.start()

    @property
    def senders(self) -> Sequence[Sender]:
        """The connections."""
        return self._senders

    def destinations(self, signal: str) -> list[str]:
        """Where a signal goes: of otlp, console and prometheus, none or more."""
        if self._to in ("http", "grpc"):
            return ["otlp"]
        if self._to:
            return [self._to] if self._to != "prometheus" or signal == "metrics" else []
        return exporters(signal) if signal != "profiles" else ["otlp"]

    def sender(self, signal: str) -> Sender:
        """A new connection to the signal's endpoint, closed with the backend."""
        protocol = {"http": "http/protobuf", "grpc": "grpc"}.get(self._to, "")
        sender = Sender(Endpoint.from_environment(signal, url=self._endpoint, protocol=protocol))
        self._senders.append(sender)
        return sender

    def courier(self, signal: str, deliver: Callable[[Sequence[Any]], Outcome], pace: Pace, **options: Any) -> Courier:
        """A new queue and thread, stopped with the backend."""
        courier = Courier(signal, deliver, self._ledger, pace, **options)
        self._couriers.append(courier)
        return courier

    def _courier(self, signal: str, codec: encode.Codec, pace: Pace, signals: Sequence[str]) -> list[Courier]:
        """A courier for each destination of a signal."""
        if signal not in signals:
            return []
        return [self.courier(signal, self._delivery(signal, codec, where), pace) for where in self.destinations(signal)]

    def _delivery(self, signal: str, codec: encode.Codec, where: str) -> Callable[[Sequence[Any]], Outcome]:
        if where == "console":
            console = codec.console()
            return lambda items: encode.shown(console, codec, items)
        sender = self.sender(signal)
        codec.need()
        return lambda items: encode.send(sender, codec, items)

    def _metrics(self) -> None:
        for where in self.destinations("metrics"):
            if where == "prometheus":
                self._closers.append(self.metrics.serve())
                continue
            reader = self.metrics.reader()
            pace = Pace(1 << 20, 16, self.metrics.interval)
            deliver = self._delivery("metrics", encode.metrics, where)
            self.courier("metrics", deliver, pace, weigh=encode.points, pull=reader, renews=self.metrics.cumulative)

    def meter(self, resource: Resource) -> Meter:
        """A meter of a provider of its own."""
        return self.metrics.provider(resource).get_meter(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def logger(self, resource: Resource) -> Logger:
        """A logger of a provider of its own."""
        from opentelemetry.sdk._logs import LoggerProvider

        provider = LoggerProvider(resource, shutdown_on_exit=False)
        for courier in self._logs:
            provider.add_log_record_processor(encode.LogDoor(courier))  # type: ignore[arg-type]  # duck-typed
        self._providers.append(provider)
        return provider.get_logger(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def tracer(self, resource: Resource) -> Tracer:
        """A tracer of a provider of its own; its `id_generator` is an Ids."""
        from opentelemetry.sdk.trace import TracerProvider

        provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=Ids())
        for courier in self._spans:
            provider.add_span_processor(encode.SpanDoor(courier))
        self._providers.append(provider)
        return provider.get_tracer(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def own_threads(self) -> frozenset[int]:
        """The system's ids of the threads made here: a tracer does not trace itself."""
        return frozenset(c.thread.native_id for c in self._couriers if c.thread.native_id is not None)

    def flush(self) -> None:
        """Has everything that is queued sent now, without waiting for it."""
        for courier in self._couriers:
            courier.flush()

    def close(self, until: float) -> None:
        """Delivers what is queued, until that time (monotonic seconds); counts the rest as lost."""
        # couriers of records end first: what they lost is then in the last export of the ledger's metrics
        records = [courier for courier in self._couriers if courier.who != "metrics"]
        metrics = [courier for courier in self._couriers if courier.who == "metrics"]
        share = until - (until - time.monotonic()) / 4 if metrics and records else until
        for couriers, end in ((records, share), (metrics, until)):
            for courier in couriers:
                courier.stop()
            for courier in couriers:
                courier.join(end)
        for sender in self._senders:
            sender.close()
        for close in self._closers:
            close()

    def statistics(self) -> dict[str, int | float]:
        """Counts of every signal, requests and retries."""
        found: dict[str, int | float] = {}
        for courier in self._couriers:
            found.update(courier.statistics())
        found["requests"] = sum(sender.requests for sender in self._senders)
        found["retries"] = sum(sender.retries for sender in self._senders)
        return found

    @property
    def error(self) -> str:
        """The last failure of any signal, or ""."""
        failed = [f"{sender.endpoint.signal}: {sender.error}" for sender in self._senders if sender.error]
        failed += [f"{courier.who}: {courier.error}" for courier in self._couriers if courier.error]
        return failed[0] if failed else ""

    @property
    def lost(self) -> int:
        """Records of all signals that did not arrive."""
        return sum(courier.lost for courier in self._couriers)


def need(module: str, extra: str) -> Any:
    """A package that an extra brings. Raises OutputError with its pip line."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise OutputError(f"{module} is not installed", f'pip install "wstrace[{extra}]"') from None
