"""`wstrace.otel`: the part of the exporter that applications use."""

from __future__ import annotations

from wstrace_exporters.otel.application.processor import FaultSpanProcessor
from wstrace_exporters.otel.application.span import span

__all__ = ["FaultSpanProcessor", "span"]
