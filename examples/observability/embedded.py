"""How much memory does a step of my program bring in? Spans with page faults, on the terminal.

    pip install wstrace
    python examples/observability/embedded.py

Nothing is traced by wstrace here and no privilege is needed: the kernel counts the faults of each thread.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import wstrace


def line(span: ReadableSpan) -> str:
    """One line a span."""
    found = {key.removeprefix("wstrace.faults."): value for key, value in (span.attributes or {}).items()}
    return "{name:9} {minor:>6} minor {major:>3} major {bytes:>10} bytes, {quality}\n".format(name=span.name, **found)


def main() -> None:
    """Three steps, a span each."""
    provider = TracerProvider()
    provider.add_span_processor(wstrace.otel.FaultSpanProcessor())
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("example")

    with tracer.start_as_current_span("import"):
        import decimal  # noqa: F401
    with tracer.start_as_current_span("allocate"):
        block = bytearray(16 << 20)
    with tracer.start_as_current_span("reuse"):
        for at in range(0, len(block), 4096):
            block[at] = 1


if __name__ == "__main__":
    main()
