"""`wstrace.otel`: what an application uses of the exporter."""

from __future__ import annotations

from wstrace_otel.application.processor import FaultSpanProcessor
from wstrace_otel.application.span import span

__all__ = ["FaultSpanProcessor", "span"]
