"""Exporter `otel`: page faults and working sets in an OpenTelemetry backend, and on the spans of an application.

`wstrace.otel` is this module: FaultSpanProcessor counts the faults of every span, `span` opens one that is counted.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wstrace.hookspecs import hookimpl
from wstrace.interfaces import Exporter

if TYPE_CHECKING:
    from wstrace_otel.processor import FaultSpanProcessor
    from wstrace_otel.spans import span

__all__ = ["FaultSpanProcessor", "span"]

_LAZY = {"FaultSpanProcessor": "wstrace_otel.processor", "span": "wstrace_otel.spans"}


@hookimpl
def wstrace_exporters() -> Sequence[type[Exporter]]:
    """The exporter `otel`."""
    from wstrace_otel.exporter import OtelExporter

    return [OtelExporter]


@hookimpl
def wstrace_api() -> Mapping[str, str]:
    """`wstrace.span` and `wstrace.otel`."""
    return {"span": "wstrace_otel.spans:span", "otel": "wstrace_otel"}


@hookimpl
def wstrace_target_environment(exporters: Sequence[str]) -> Mapping[str, str]:
    """TRACEPARENT for the command that is about to be launched: its spans become children of its process span."""
    if "otel" not in exporters:
        return {}
    from wstrace_otel.propagation import reserve

    return reserve()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'wstrace.otel' has no attribute {name!r}")
