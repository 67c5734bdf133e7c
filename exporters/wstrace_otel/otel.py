"""`wstrace.otel`: what an application uses of the exporter."""

from __future__ import annotations

from wstrace_otel.processor import FaultSpanProcessor
from wstrace_otel.spans import span

__all__ = ["FaultSpanProcessor", "span"]
