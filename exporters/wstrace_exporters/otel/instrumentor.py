"""`opentelemetry-instrument python app.py`: wstrace as an instrumentation, without a dependency on contrib.

It adds FaultSpanProcessor to the provider, and process.paging.faults to the global meter. Both read the kernel's own
counters: they need no privilege and no session, and are right in every forked worker. The class has the methods of
contrib's BaseInstrumentor but does not derive from it: that would save four lines, for a beta package that requires one
exact version of the semantic conventions. An error here would end all other instrumentations, so none is raised.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from wstrace_exporters.otel.otel import FaultSpanProcessor

log = logging.getLogger("wstrace")


class WstraceInstrumentor:
    """The entry point `wstrace` of the group `opentelemetry_instrumentor`.

    It is disabled by OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=wstrace (by the loader) and by OTEL_SDK_DISABLED=true.
    """

    _processor: ClassVar[FaultSpanProcessor | None] = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Empty: it applies whatever is installed."""
        return ()

    def instrument(self, **kwargs: Any) -> None:
        """Counts the faults of every span and of the process from now on. Idempotent; never raises.

        kwargs: `tracer_provider` replaces the global one; others are ignored.
        """
        try:
            off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
            if WstraceInstrumentor._processor is None and not off:
                WstraceInstrumentor._processor = _instrument(kwargs.get("tracer_provider"))
        except Exception:
            log.warning("wstrace cannot instrument this application", exc_info=True)

    def uninstrument(self, **kwargs: Any) -> None:
        """Counts no further span; OpenTelemetry can remove neither a processor nor an instrument. Never raises."""
        processor, WstraceInstrumentor._processor = WstraceInstrumentor._processor, None
        if processor is not None:
            processor.shutdown()


def _instrument(provider: Any) -> FaultSpanProcessor:
    from opentelemetry.trace import get_tracer_provider

    from wstrace_exporters.otel.export.metrics import embedded
    from wstrace_exporters.otel.otel import FaultSpanProcessor

    embedded.register()
    processor = FaultSpanProcessor()
    if hasattr(provider := provider or get_tracer_provider(), "add_span_processor"):  # not without an SDK
        provider.add_span_processor(processor)
    return processor
