"""Exporter `otel`: sends page faults and working sets to OpenTelemetry, and puts them on an application's spans.

Its parts, each of which imports only those before it (tests/test_architecture.py enforces this):

* names, extra, clock, propagation, correlation, usage, ids: shared by all others.
* transport: batches, encoding, endpoints, retries.
* export: a trace as metrics, log events and spans. application: the faults of an application's own spans.
* experimental: every fault as a log record, and OTLP profiles.
* exporter, instrumentor, otel: the entry points. `wstrace.otel` is `wstrace_otel.otel`: FaultSpanProcessor counts the
  faults of every span, `span` opens one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wstrace.hookspecs import hookimpl

if TYPE_CHECKING:
    from wstrace.interfaces import Exporter


@hookimpl
def wstrace_exporters() -> Sequence[type[Exporter]]:
    """The exporter `otel`."""
    from wstrace_otel.exporter import OtelExporter

    return [OtelExporter]


@hookimpl
def wstrace_stages() -> Mapping[str, tuple[bool, str]]:
    """The ledger's stages for records that a backend did not receive."""
    from wstrace_otel.names import LOST

    return {LOST: (True, "records that the OpenTelemetry receiver did not get")}


@hookimpl
def wstrace_target_environment(exporters: Sequence[str]) -> Mapping[str, str]:
    """TRACEPARENT for the command that will be launched, so that its spans become children of its process span."""
    if "otel" not in exporters:
        return {}
    from wstrace_otel.extra import need_sdk
    from wstrace_otel.propagation import reserve

    need_sdk("the exporter otel")
    return reserve()
