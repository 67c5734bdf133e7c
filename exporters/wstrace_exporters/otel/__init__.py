"""Exporter `otel`: sends page faults and working sets to OpenTelemetry, and puts them on an application's spans.

Its parts, each of which imports only those before it (tests/test_architecture.py enforces this):

* names, propagation, spans, offloaded: shared by all others. `wstrace.span` is of `otel`.
* transport: the SDK's exporters and providers.
* export: a trace as metrics, log events and spans.
* exporter, by_container, instrumentor, otel: the entry points. `wstrace.otel` is
  `wstrace_exporters.otel.otel`, where FaultSpanProcessor counts the faults of every span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wstrace.hookspecs import Reference, hookimpl

if TYPE_CHECKING:
    from wstrace.interfaces import Enricher


@hookimpl
def wstrace_exporters() -> Sequence[Reference]:
    """The exporters `otel`, of processes, and `otel_containers`."""
    return [
        Reference("otel", "wstrace_exporters.otel.exporter:OtelExporter"),
        Reference("otel_containers", "wstrace_exporters.otel.by_container:OtelContainersExporter"),
    ]


@hookimpl
def wstrace_enrichers() -> Sequence[type[Enricher]]:
    """The enricher `spans`."""
    from wstrace_exporters.otel.spans import RecordedSpans

    return [RecordedSpans]


@hookimpl
def wstrace_stages() -> Mapping[str, tuple[bool, str]]:
    """The ledger's stages for records that a backend did not receive, and for spans that were not recorded."""
    from wstrace_exporters.otel.names import LOST, SPANS_LOST

    return {LOST: (True, "records that the OpenTelemetry receiver did not get"),
            SPANS_LOST: (False, "spans that ended faster than they were recorded")}  # fmt: skip


@hookimpl
def wstrace_target_environment(exporters: Sequence[str]) -> Mapping[str, str]:
    """TRACEPARENT for the command that will be launched, so that its spans become children of its process span."""
    if "otel" not in exporters:
        return {}
    from wstrace_exporters.otel.propagation import reserve

    return reserve()
