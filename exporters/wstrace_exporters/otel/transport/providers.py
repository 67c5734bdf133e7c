"""The providers that telemetry goes through: our own (`wstrace run`), or the application's global ones (embedded).

Both return the same three things for a resource: a meter, a logger and a tracer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wstrace_exporters.otel import names

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Tracer


class Providers(Protocol):
    """What the exporter needs of OpenTelemetry. Each of the three is requested once per resource."""

    def meter(self, resource: Resource) -> Meter:
        """A meter whose metrics carry that resource."""

    def logger(self, resource: Resource) -> Logger:
        """A logger whose records carry that resource."""

    def tracer(self, resource: Resource) -> Tracer:
        """A tracer whose spans carry that resource."""

    def close(self, until: float) -> None:
        """Delivers what is held, until that time (monotonic seconds); counts the rest as lost."""

    def statistics(self) -> dict[str, int | float]:
        """The counts of delivered and lost records."""


def version() -> str:
    """The version for the instrumentation scope."""
    from importlib.metadata import version

    return version("wstrace")


class GlobalProviders:
    """The application's own providers: they are used, but never set, flushed or shut down."""

    def meter(self, resource: Resource) -> Meter:
        """The global meter; the resource is the application's."""
        from opentelemetry.metrics import get_meter

        return get_meter(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def logger(self, resource: Resource) -> Logger:
        """The global logger."""
        from opentelemetry._logs import get_logger

        return get_logger(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def tracer(self, resource: Resource) -> Tracer:
        """The global tracer."""
        from opentelemetry.trace import get_tracer

        return get_tracer(names.SCOPE, version(), schema_url=names.SCHEMA_URL)

    def close(self, until: float) -> None:
        """Does nothing, as the application flushes its providers itself."""

    def statistics(self) -> dict[str, int | float]:
        """Empty, as nothing is known of the application's pipelines."""
        return {}
