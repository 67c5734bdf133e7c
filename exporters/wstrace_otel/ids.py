"""Span ids that were given out before the span exists."""

from __future__ import annotations

from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from wstrace_otel.propagation import TraceParent


class ReservedIdGenerator(IdGenerator):
    """Random ids, but those of `next` for the next span: how a span gets the ids that were given out before."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.next: TraceParent | None = None

    def generate_trace_id(self) -> int:
        """The next trace's id."""
        return self.next.trace_id if self.next else self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        """The next span's id; a reserved one only once."""
        taken, self.next = self.next, None
        return taken.span_id if taken else self._random.generate_span_id()
