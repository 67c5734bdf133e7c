"""The SDK's batch processors, which count what they are given, and span ids that are reserved before their span."""

from __future__ import annotations

from typing import Any, cast

from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from wstrace_exporters.otel.propagation import TraceParent
from wstrace_exporters.otel.transport.otlp import Delivery, quiet


class CountedSpans(BatchSpanProcessor):
    """Queues sampled spans that have ended; the SDK drops the oldest where the queue is full."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(cast(Any, delivery))  # it has the methods of an exporter
        self._delivery = delivery

    def on_end(self, span: Any) -> None:
        """Queues the span."""
        if span.context and span.context.trace_flags.sampled:
            self._delivery.given += 1
        with quiet():
            super().on_end(span)


class CountedLogs(BatchLogRecordProcessor):
    """Queues log records; the SDK drops the oldest where the queue is full."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(cast(Any, delivery))  # it has the methods of an exporter
        self._delivery = delivery

    def on_emit(self, log_record: Any) -> None:
        """Queues the record."""
        self._delivery.given += 1
        with quiet():
            super().on_emit(log_record)


class ReservedIdGenerator(IdGenerator):
    """Generates random ids, except that the next span gets the ids in `next`, which were reserved for it."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.next: TraceParent | None = None

    def generate_trace_id(self) -> int:
        """The id of the next trace."""
        return self.next.trace_id if self.next else self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        """The id of the next span; a reserved one is used only once."""
        taken, self.next = self.next, None
        return taken.span_id if taken else self._random.generate_span_id()
