"""Processors in the SDK's providers that put everything they receive into the queue of a BatchSender."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import SpanProcessor

from wstrace_exporters.otel.transport.batch_sender import BatchSender


class QueueingSpanProcessor(SpanProcessor):
    """Queues spans that have ended and are sampled."""

    def __init__(self, sender: BatchSender) -> None:
        self._sender = sender

    def on_end(self, span: Any) -> None:
        """Queues the span."""
        if span.context and span.context.trace_flags.sampled:
            self._sender.put(span)


class QueueingLogProcessor:
    """Queues log records. It is duck-typed, because the SDK's base class has been renamed more than once."""

    def __init__(self, sender: BatchSender) -> None:
        self._sender = sender

    def on_emit(self, log_record: Any) -> None:
        """Queues the record in the form that the SDK's exporters accept."""
        from opentelemetry.sdk import _logs

        readable = getattr(_logs, "ReadableLogRecord", None)
        if readable is not None:
            log_record = readable(
                log_record.log_record, log_record.resource, log_record.instrumentation_scope, log_record.limits
            )
        self._sender.put(log_record)

    def shutdown(self) -> None:
        """Does nothing, as the providers stop their senders themselves."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Does nothing, as the providers flush their senders themselves."""
        return True
