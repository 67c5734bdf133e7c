"""Span ids that are reserved before their span exists."""

from __future__ import annotations

from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from wstrace_exporters.otel.propagation import TraceParent


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
