"""`wstrace.otel`: the part of the exporter that applications use."""

from __future__ import annotations

from wstrace_exporters.otel.extra import need_sdk

need_sdk("wstrace.otel")

from wstrace_exporters.otel.application.processor import FaultSpanProcessor  # noqa: E402  it imports the SDK
from wstrace_exporters.otel.application.span import span  # noqa: E402

__all__ = ["FaultSpanProcessor", "span"]
