"""`opentelemetry-instrument python app.py`: wstrace as an instrumentation, without a dependency on contrib.

It puts FaultSpanProcessor before the processors that export, and process.paging.faults on the global meter. Both read
the kernel's own counters: they need no privilege and no session, and are right in every forked worker. The class has
the methods of contrib's BaseInstrumentor but does not derive from it: that would save four lines, for a beta package
that requires one exact version of the semantic conventions. An error here would end all other instrumentations, so none
is raised.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from typing import Any

log = logging.getLogger("wstrace")


class WstraceInstrumentor:
    """The entry point `wstrace` of the group `opentelemetry_instrumentor`.

    It is disabled by OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=wstrace (by the loader) and by OTEL_SDK_DISABLED=true.
    """

    _undo: Any = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Empty: it applies whatever is installed."""
        return ()

    def instrument(self, **kwargs: Any) -> None:
        """Counts the faults of every span and of the process from now on. Idempotent; never raises.

        Args:
            kwargs: `tracer_provider` replaces the global one; others are ignored.
        """
        try:
            if WstraceInstrumentor._undo is None and not _disabled():
                WstraceInstrumentor._undo = _instrument(kwargs.get("tracer_provider"))
        except Exception:
            log.warning("wstrace cannot instrument this application", exc_info=True)

    def uninstrument(self, **kwargs: Any) -> None:
        """Removes the processor. The instruments stay, because OpenTelemetry cannot remove one. Never raises."""
        try:
            undo, WstraceInstrumentor._undo = WstraceInstrumentor._undo, None
            if undo is not None:
                undo()
        except Exception:
            log.warning("wstrace cannot be taken out of this application", exc_info=True)


def _disabled() -> bool:
    """The SDK's own switch. It must be checked here, because a loader calls us in any case."""
    names = os.environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "").replace(" ", "").split(",")
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or "wstrace" in names or "*" in names


def _instrument(provider: Any) -> Any:
    from opentelemetry.sdk.trace import SynchronousMultiSpanProcessor
    from opentelemetry.trace import get_tracer_provider

    from wstrace_exporters.otel.application.processor import FaultSpanProcessor
    from wstrace_exporters.otel.export.metrics import embedded

    embedded.register()
    # The SDK has no public way to wrap an existing processor, and one that is added beside it cannot change spans.
    # Tracers hold this object, so its tuple is replaced in place; if it is missing, nothing is done.
    multi = getattr(provider or get_tracer_provider(), "_active_span_processor", None)
    known = getattr(multi, "_span_processors", None)
    if multi is None or not isinstance(known, tuple) or not known:
        return lambda: None
    inner = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]  # the SDK leaves it unannotated
    for processor in known:
        inner.add_span_processor(processor)
    wrapped = FaultSpanProcessor(inner)
    multi._span_processors = (wrapped,)

    def undo() -> None:
        multi._span_processors = tuple(
            inner for p in multi._span_processors for inner in (known if p is wrapped else (p,))
        )

    return undo
