"""The exporter `otel`: sends metrics, events and spans of the traced processes to OpenTelemetry."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

from wstrace.batch import Batch
from wstrace.errors import OutputError, UsageError
from wstrace.interfaces import Context, Exporter
from wstrace_exporters.otel import names
from wstrace_exporters.otel.export.processes import Processes, Values, clean, memory
from wstrace_exporters.otel.export.sampling import Sampler

if TYPE_CHECKING:  # The SDK is imported only when the exporter starts, because every command line loads this class.
    from wstrace_exporters.otel.export.lifecycle import Lifecycle
    from wstrace_exporters.otel.export.metrics import Row
    from wstrace_exporters.otel.transport.providers import OwnProviders


class OtelExporter(Exporter):
    """Sends page faults and working sets to OpenTelemetry; honours all OTEL_* variables.

    Args:
        to: the destination: OTLP over http or grpc, the console, a port that prometheus scrapes; "" = as set by
            OTEL_METRICS_EXPORTER, OTEL_LOGS_EXPORTER, OTEL_TRACES_EXPORTER and OTEL_EXPORTER_OTLP_PROTOCOL.
        endpoint: a collector's address; takes precedence over OTEL_EXPORTER_OTLP_ENDPOINT.
        metrics: send metrics.
        logs: send events.
        spans: send a span for each traced process.
        events: minor faults that become events, per second; all major ones do.
        interval_s: seconds between two exports of metrics; 0 = OTEL_METRIC_EXPORT_INTERVAL.
        modules: files with a series of their own, per process; the rest is `other`.
        processes: processes with a resource of their own; the rest is `other`.
        pids: put process.pid on every point; with prometheus it is always there.
        arguments: send the command's arguments; they may contain secrets.
        providers: own = pipelines of wstrace's own; global = those of the application, which are never set; auto =
            global where the application has set some up or traces itself.
    """

    name = "otel"
    streams = frozenset({"page_fault", "process", "resident", "written"})

    def __init__(
        self,
        *,
        to: Literal["", "http", "grpc", "console", "prometheus"] = "",
        endpoint: str = "",
        metrics: bool = True,
        logs: bool = True,
        spans: bool = True,
        events: float = 100.0,
        interval_s: float = 0.0,
        modules: int = 20,
        processes: int = 64,
        pids: bool = False,
        arguments: bool = False,
        providers: Literal["auto", "own", "global"] = "auto",
    ) -> None:
        if modules < 1 or processes < 0 or events < 0:
            raise UsageError("otel: modules must be at least 1, processes and events at least 0")
        self._to, self._endpoint, self._providers = to, endpoint, providers
        wanted = {"metrics": metrics, "logs": logs, "traces": spans}
        self._signals = [signal for signal, on in wanted.items() if on]
        self._interval, self._arguments, self._pids = interval_s, arguments, pids
        self._modules, self._limit = modules, processes
        self._sampler = Sampler(events)
        self._life: Lifecycle | None = None  # None: nothing is sent
        self._own: OwnProviders | None = None
        self._reported: Counter[tuple[str, str]] = Counter()

    def start(self, context: Context) -> None:
        """Opens the pipelines. Raises OutputError or UsageError, before the target runs."""
        from wstrace_exporters.otel.export.lifecycle import Lifecycle
        from wstrace_exporters.otel.export.metrics import Collection, embedded, tracer_row
        from wstrace_exporters.otel.transport.providers import OwnProviders

        if len(hosts := context.info.hosts) > 1:
            raise OutputError(
                f"otel cannot tell equal pids of several hosts apart, and this trace is of {', '.join(hosts)}",
                "replay the trace of each host by itself",
            )
        self._context = context
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return
        is_global = self._uses_global(context)
        roots = tuple(target.pid for target in context.targets) or context.info.targets
        # with the application's own telemetry its children are all in one row
        limit = len(roots) if is_global else self._limit
        self._processes = Processes(context.strings, limit=limit, modules=self._modules)
        self._processes.roots = roots
        if is_global:
            embedded.begin(self._values)
        else:
            rows = partial(self._rows, time.time_ns(), tracer_row(context.ledger))
            self._own = OwnProviders(
                context,
                partial(Collection, rows),
                to=self._to,
                endpoint=self._endpoint,
                interval=self._interval,
                signals=self._signals,
            )
        logs, spans = "logs" in self._signals, "traces" in self._signals
        self._life = Lifecycle(context, self._processes, self._own, events=logs, spans=spans, arguments=self._arguments)

    def _uses_global(self, context: Context) -> bool:
        if self._providers != "auto":
            return self._providers == "global"
        from opentelemetry.metrics import get_meter_provider
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import get_tracer_provider

        if self._to or self._endpoint:
            return False
        metered = isinstance(get_meter_provider(), MeterProvider)
        traced = isinstance(get_tracer_provider(), TracerProvider)
        return metered or traced or any(target.pid == os.getpid() for target in context.targets)

    def export(self, batch: Batch) -> None:
        """Counts a batch by columns, and sends the rows that become events or records."""
        life, stream = self._life, batch.schema.name
        if life is None:
            return
        life.latest_ns = max(life.latest_ns, batch.window[1])
        if stream == "page_fault":
            self._processes.add_faults(batch)
            life.admit()
            for rows, weights in self._sampler.choose(batch) if "logs" in self._signals else ():
                life.faults(rows, weights)
        elif stream == "process":
            life.take(batch)
        elif batch.snapshot is not None:
            process = self._processes.get(batch.snapshot.pid)
            (process.add_resident if stream == "resident" else process.add_written)(batch)

    def _rows(self, began: int, tracer: Callable[[], Row]) -> Iterator[Row]:
        """The metrics of each process, and of the tracer; all in one for a scrape, which knows one resource."""
        self._take_kernel()
        scraped = self._own is not None and self._own.scraped
        together: Values = Counter()
        resource, tracer_began, of_tracer = tracer()
        for process in self._processes:
            if process.resource is None:
                continue
            values = process.values()
            if self._context.live and process.pid and not process.ended_ns:
                values.update(memory(process.pid))
            if self._pids or scraped:
                name = clean(process.name) or names.OTHER
                label = (names.PROCESS_PID, process.pid), (names.PROCESS_NAME, name)
                values = Counter({(metric, (*attributes, *label)): n for (metric, attributes), n in values.items()})
            if scraped:
                resource = process.resource
                together.update(values)
            else:
                yield process.resource, began, values
        together.update(of_tracer)
        yield resource, tracer_began, together

    def _values(self) -> Values:
        """The metrics of all processes together, for an application's own meter."""
        from wstrace_exporters.otel.export.metrics import of_ledger

        self._take_kernel()
        found = of_ledger(self._context.ledger)
        for process in self._processes:
            found.update(process.values())
        return found

    def _take_kernel(self) -> None:
        """(minor, major) by the kernel: as counted by the source, else as the system accounts them to the targets."""
        ledger, usage = self._context.ledger, self._context.info.usage
        minor, major = (ledger.get("counted", kind) for kind in (names.MINOR, names.MAJOR))
        if not minor and not major:
            minor, major = usage.minor or 0, usage.major or 0
        self._processes.take_kernel(minor, major)

    def tick(self) -> None:
        """Ends processes, and reports losses."""
        if self._life is not None:
            self._life.settle()
            self._report_losses(self._life)

    def _report_losses(self, life: Lifecycle) -> None:
        """Sends an event for each stage of the ledger that has lost more since the last call."""
        first = next(iter(self._processes), None)
        if first is None or "logs" not in self._signals:
            return
        for stage, who, count in self._context.ledger.losses():
            more = count - self._reported[stage, who]
            # A loss on our own way out is a metric: an event about it would be lost on the same way.
            if more > 0 and stage != names.LOST:
                self._reported[stage, who] = count
                life.lost(first, stage, who, more, life.now_ns())

    def close(self) -> None:
        """Ends all spans and sends the last counts, within 3 s; what is not delivered by then is counted as lost.

        Raises OutputError: at any time of the trace something was not delivered.
        """
        life = self._life
        if life is None:
            return
        life.end_all()
        for rows, weights in self._sampler.rest() if "logs" in self._signals else ():
            life.faults(rows, weights)
        self._report_losses(life)
        if self._own is not None:
            self._own.close()
        else:
            from wstrace_exporters.otel.export.metrics import embedded

            embedded.end(self._values)

    def cancel(self) -> None:
        """Closes the pipelines without sending anything, as nothing was recorded."""
        if self._own is not None:
            self._own.cancel()

    def after_fork_in_child(self) -> None:
        """In a forked child: sends nothing, as nothing was counted here."""
        self._life = None
