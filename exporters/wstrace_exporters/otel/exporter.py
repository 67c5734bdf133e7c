"""The exporter `otel`: sends metrics, events and spans of the traced processes to OpenTelemetry."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from wstrace.batch import Batch
from wstrace.errors import OutputError, UsageError
from wstrace.interfaces import Context, Exporter
from wstrace_exporters.otel import names
from wstrace_exporters.otel.export import resource
from wstrace_exporters.otel.export.metrics import KernelCounts, ProcessInstruments, TracerInstruments
from wstrace_exporters.otel.export.processes import Process, Processes, memory
from wstrace_exporters.otel.export.sampling import Sampler, TokenBucket
from wstrace_exporters.otel.transport.providers import CLOSE_SECONDS
from wstrace_exporters.otel.usage import thread_faults

if TYPE_CHECKING:  # The SDK is imported only when the exporter starts, because every command line loads this class.
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
    streams: ClassVar[frozenset[str] | None] = frozenset({"page_fault", "process", "resident", "written"})

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
        self._to, self._endpoint, self._providers_wanted = to, endpoint, providers
        wanted = {"metrics": metrics, "logs": logs, "traces": spans}
        self._signals = [signal for signal, on in wanted.items() if on]
        self._interval, self._arguments, self._pids = interval_s, arguments, pids
        self._modules, self._limit = modules, processes
        self._sampler = Sampler(TokenBucket(events))
        self._disabled = False
        self._own: OwnProviders | None = None
        self._reported: dict[tuple[str, str], int] = {}
        self.faults = 0

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, context: Context) -> None:
        """Opens the pipelines. Raises OutputError or UsageError, before the target runs."""
        from wstrace_exporters.otel.export.embedded import embedded
        from wstrace_exporters.otel.export.lifecycle import Lifecycle
        from wstrace_exporters.otel.transport.providers import GlobalProviders

        if len(hosts := context.info.hosts) > 1:
            raise OutputError(
                f"otel cannot tell equal pids of several hosts apart, and this trace is of {', '.join(hosts)}",
                "replay the trace of each host by itself",
            )
        self._context = context
        self._disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        self._clock = context.info.clock
        self._global = self._uses_global(context)
        scraped = not self._global and self._scraped()
        limit, modules = (0 if self._global else self._limit), self._modules
        if scraped:  # One resource for all: their series share the 2,000 that an instrument may have.
            self._pids, modules = True, max(1, min(modules, 1800 // (4 * max(1, limit))))
        self._processes = Processes(context.strings, limit=limit, modules=modules)
        self._processes.roots = tuple(target.pid for target in context.targets) or context.info.targets
        self._kernel = KernelCounts(self._counted, self._processes.take_kernel)
        if self._disabled:
            return
        self._providers = GlobalProviders() if self._global else self._open(context)
        self._life = Lifecycle(
            context,
            self._processes,
            self._clock,
            self._providers,
            own=not self._global,
            events="logs" in self._signals,
            spans="traces" in self._signals,
            meter=self._meter,
            arguments=self._arguments,
        )
        self._events = self._life.events
        if self._global:
            embedded.add(self._processes, context.ledger)
        for pid in self._processes.roots:
            self._life.root(pid)

    def _uses_global(self, context: Context) -> bool:
        if self._providers_wanted != "auto":
            return self._providers_wanted == "global"
        from opentelemetry.metrics import get_meter_provider
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import get_tracer_provider

        if self._to or self._endpoint:
            return False
        metered = isinstance(get_meter_provider(), MeterProvider)
        traced = isinstance(get_tracer_provider(), TracerProvider)
        return metered or traced or any(target.pid == os.getpid() for target in context.targets)

    def _scraped(self) -> bool:
        from wstrace_exporters.otel.transport.providers import exporters

        return "metrics" in self._signals and (
            self._to == "prometheus" or (not self._to and "prometheus" in exporters("metrics"))
        )

    def _open(self, context: Context) -> OwnProviders:
        from wstrace_exporters.otel.transport.providers import OwnProviders

        own = self._own = OwnProviders(
            context.ledger, to=self._to, endpoint=self._endpoint, interval=self._interval, signals=self._signals
        )
        if "metrics" in self._signals:
            TracerInstruments(own.meter(resource.of_tracer()), context.ledger.rows, own_usage=True)
        for thread in own.own_threads():
            context.register_own_thread(thread)
        return own

    def export(self, batch: Batch) -> None:
        """Counts a batch by columns, and sends the rows that become events or records."""
        stream = batch.schema.name
        if not self._disabled:
            self._life.latest_ns = max(self._life.latest_ns, batch.window[1])
        if stream == "page_fault":
            self._take_faults(batch)
        elif stream == "process":
            if not self._disabled:
                self._life.take(batch)
        elif batch.snapshot is not None:
            process = self._processes.get(batch.snapshot.pid)
            (process.add_resident if stream == "resident" else process.add_written)(batch)

    def _take_faults(self, batch: Batch) -> None:
        self.faults += len(batch)
        self._processes.add_faults(batch)
        if "pid" in batch and not thread_faults.exact:
            thread_faults.add(batch.take(batch["pid"] == os.getpid()))
        if self._disabled:
            return
        self._life.admit()
        if "logs" in self._signals:
            for rows, weights in self._sampler.choose(batch):
                self._events.faults(rows, weights, self._processes.get)

    def _meter(self, process: Process, others: int) -> None:
        """Registers a process's metrics; `others` processes have theirs already."""
        own = self._own
        if own is None or "metrics" not in self._signals or (own.scraped and others):
            return  # When scraped, one provider serves all, and its instruments read every process.
        live = self._context.live
        ProcessInstruments(
            own.meter(self._life.resource_of(process.pid)),
            (lambda: self._processes) if own.scraped else (lambda: [process]),
            kernel=self._kernel,
            memory_of=lambda p: memory(p.pid) if live and p.pid and not p.ended_ns else None,
            label=self._label if self._pids else lambda process: {},
        )

    def _label(self, process: Process) -> dict[str, Any]:
        return {names.PROCESS_PID: process.pid, names.PROCESS_NAME: resource.clean(process.name) or names.OTHER}

    def _counted(self) -> tuple[int, int]:
        """(minor, major) by the kernel: as counted by the source, else as the system accounts them to the targets."""
        ledger, usage = self._context.ledger, self._context.info.usage
        minor, major = (ledger.get("counted", kind) for kind in (names.MINOR, names.MAJOR))
        if minor or major:
            return minor, major
        return usage.minor or 0, usage.major or 0

    # -- by time and at the end --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Registers metrics of new processes and reports losses."""
        if self._disabled:
            return
        self._life.settle()
        self._report_losses()

    def _report_losses(self) -> None:
        """Sends an event for each stage of the ledger that has lost more since the last call."""
        if "logs" not in self._signals:
            return
        for stage, who, count in self._context.ledger.losses():
            more = count - self._reported.get((stage, who), 0)
            # A loss on our own way out is a metric: an event about it would be lost on the same way.
            if more > 0 and stage != names.LOST:
                self._reported[stage, who] = count
                first = next(iter(self._processes), None)
                if first is not None:
                    self._events.lost(first, stage, who, more, self._life.now_ns())

    def close(self) -> None:
        """Ends all spans and sends the last counts, within 3 s; what is not delivered by then is counted as lost.

        Raises:
            OutputError: at any time of the trace something was not delivered.
        """
        if self._disabled:
            return
        until = time.monotonic() + CLOSE_SECONDS
        self._life.end_all()
        if "logs" in self._signals:
            for rows, weights in self._sampler.rest():
                self._events.faults(rows, weights, self._processes.get)
        self._report_losses()
        self._kernel.now()
        if self._own is not None:
            self._own.finish(until)
        else:
            from wstrace_exporters.otel.export.embedded import embedded

            embedded.end(self._processes, self._context.ledger)

    def cancel(self) -> None:
        """Closes the pipelines without sending anything, as nothing was recorded."""
        if self._own is not None:
            self._own.cancel()

    def after_fork_in_child(self) -> None:
        """In a forked child: sends nothing, as nothing was counted here."""
        self._disabled = True
        self._processes.forget()

    def statistics(self) -> Mapping[str, int | float]:
        """The numbers of faults, events and process spans, and the delivered and lost records of every signal."""
        found: dict[str, int | float] = {"faults": self.faults}
        if not self._disabled and hasattr(self, "_life"):
            found.update(events=self._events.emitted, process_spans=self._life.spans.ended)
            found.update(self._own.statistics() if self._own is not None else {})
        return found

    @property
    def error(self) -> str:
        """The last failed delivery, or ""."""
        return self._own.error if self._own is not None else ""
