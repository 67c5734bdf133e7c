"""Passes a trace context into a launched target: reads TRACEPARENT from our environment, sets it in the target's.

The context of a process span must exist before its process does. `reserve()` issues it and remembers it; the span
that the exporter later opens for the root process uses it.

It is parsed and written here, not by the API's TraceContextTextMapPropagator: importing that before the launch makes
the launcher 2.3 MB larger (API 1.45 on CPython 3.11), and a launcher's memory counts in the peak of what it forks.

Source: W3C Trace Context level 2, `traceparent`: version 00, 32 hex trace id, 16 hex parent id, 2 hex flags.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # reserve() runs before the target is launched, and must not make the launcher larger.
    from opentelemetry.context import Context

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


def new_id(n_bytes: int) -> int:
    """A random id of n bytes, never 0. It comes from os.urandom, as `secrets` loads OpenSSL: 3 ms of every start."""
    return int.from_bytes(os.urandom(n_bytes), "big") | 1


@dataclass(frozen=True, slots=True)
class TraceParent:
    """A position in a trace: the ids of trace and span, and the flags (bit 0 = sampled)."""

    trace_id: int
    span_id: int
    flags: int = 1

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"

    @classmethod
    def parse(cls, text: str) -> TraceParent | None:
        """Parses a `traceparent`; None for anything else."""
        match = _TRACEPARENT.fullmatch(text.strip().lower())
        if match is None or int(match[1], 16) == 0 or int(match[2], 16) == 0:
            return None
        return cls(int(match[1], 16), int(match[2], 16), int(match[3], 16) & 1)


#: The place of the root process's span, and of its parent (None: the span starts a trace)
_reserved: tuple[TraceParent, TraceParent | None] | None = None


def parent() -> TraceParent | None:
    """The parent of the root process's span: TRACEPARENT in our own environment."""
    return TraceParent.parse(os.environ.get("TRACEPARENT", ""))


def reserve() -> dict[str, str]:
    """The environment for launching a target; it names the target's span, which is opened later."""
    global _reserved
    above = parent()
    trace_id = above.trace_id if above else new_id(16)
    flags = int(_sampled(above, trace_id))
    own = TraceParent(trace_id, new_id(8), flags)
    _reserved = own, above
    return {"TRACEPARENT": str(own)}


def context_of(place: TraceParent | None) -> Context:
    """The context in which a new span becomes a child of `place`; an empty one for None."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if place is None:
        return Context()
    above = SpanContext(place.trace_id, place.span_id, is_remote=True, trace_flags=TraceFlags(place.flags))
    return set_span_in_context(NonRecordingSpan(above), Context())


def _sampled(above: TraceParent | None, trace_id: int) -> bool:
    """The decision of OTEL_TRACES_SAMPLER. It depends only on parent and trace id, so the span gets the same one."""
    if os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() in ("", "parentbased_always_on"):
        return above is None or bool(above.flags)
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import Decision

    sampler = TracerProvider(shutdown_on_exit=False).sampler
    return sampler.should_sample(context_of(above), trace_id, "").decision is Decision.RECORD_AND_SAMPLE


def take_reserved() -> tuple[TraceParent, TraceParent | None] | None:
    """The last reservation, which is returned only once."""
    global _reserved
    taken, _reserved = _reserved, None
    return taken
