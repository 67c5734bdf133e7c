"""Which requests bring memory in? A small ASGI service whose request spans carry their page faults.

    pip install wstrace uvicorn
    otelcol --config=examples/observability/collector.yaml
    uvicorn --app-dir examples/observability service:app
    curl localhost:8000/8             # touches 8 MiB of fresh memory

Each request is worked on in a thread of its own, so that its count is exact; in the event loop, where requests take
turns on one thread, the count would be labelled `thread_window`.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import wstrace

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

tracer = trace.get_tracer("example.service")


def set_up() -> None:
    """Spans over OTLP, each with its faults; the OTEL_* variables say where to."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider = TracerProvider()
    provider.add_span_processor(wstrace.otel.FaultSpanProcessor())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def work(mib: int) -> dict[str, Any]:
    """What a request does: brings in so many MiB."""
    with tracer.start_as_current_span("work", attributes={"example.mib": mib}):
        block = bytearray(mib << 20)
        return {"mib": len(block) >> 20}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI: GET /N."""
    if scope["type"] == "lifespan":
        while True:
            event = (await receive())["type"]
            if event == "lifespan.startup":
                set_up()
            else:
                trace.get_tracer_provider().shutdown()  # type: ignore[attr-defined]
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return
    with tracer.start_as_current_span(f"{scope['method']} /", kind=trace.SpanKind.SERVER) as span:
        word = scope["path"].strip("/")
        mib = min(int(word), 1024) if word.isdigit() else 1
        context = contextvars.copy_context()
        answer = await asyncio.get_running_loop().run_in_executor(None, context.run, work, mib)
        span.set_attribute("http.response.status_code", 200)
    body = json.dumps(answer).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})
