"""The destination of a signal: reads all OTEL_EXPORTER_OTLP_* variables as specified, the signal's own first.

Source: OpenTelemetry specification, "OpenTelemetry Protocol Exporter"; timeouts are seconds, as in the Python SDK.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from wstrace.errors import UsageError

#: signal -> path below a generic HTTP endpoint; gRPC method.
PATHS = {
    "traces": ("v1/traces", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
    "metrics": ("v1/metrics", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"),
    "logs": ("v1/logs", "/opentelemetry.proto.collector.logs.v1.LogsService/Export"),
}
PROTOCOLS = ("http/protobuf", "grpc")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OTLP endpoint of one signal. Headers and url may contain secrets, so only `place` is ever shown.

    compression: "gzip", "deflate" or "none"; certificate, client_key, client_certificate: paths of PEM files or "".
    """

    signal: str
    protocol: str = "http/protobuf"
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    compression: str = "none"
    certificate: str = ""
    client_key: str = ""
    client_certificate: str = ""
    insecure: bool = False

    @property
    def place(self) -> str:
        """host:port, the part of the address that may be shown."""
        parts = urlsplit(self.url if "://" in self.url else f"//{self.url}")
        return parts.netloc.rpartition("@")[2]

    @property
    def method(self) -> str:
        """The gRPC method for the signal."""
        return PATHS[self.signal][1]

    @classmethod
    def from_environment(
        cls, signal: str, environ: Mapping[str, str] = os.environ, *, url: str = "", protocol: str = ""
    ) -> Endpoint:
        """The endpoint set by OTEL_EXPORTER_OTLP_SIGNAL_* and OTEL_EXPORTER_OTLP_*.

        Args:
            signal: traces, metrics or logs.
            environ: the environment.
            url: a generic endpoint that takes precedence over the variables.
            protocol: "http/protobuf" or "grpc"; takes precedence over the variables.

        Raises:
            UsageError: a protocol, timeout or compression that does not exist.
        """

        def variable(name: str, default: str = "") -> str:
            own = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", "").strip()
            return own or environ.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip() or default

        protocol = protocol or variable("PROTOCOL", PROTOCOLS[0])
        if protocol not in PROTOCOLS:
            raise UsageError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is not served", f"use {' or '.join(PROTOCOLS)}")
        compression = variable("COMPRESSION", "none").lower()
        if compression not in ("none", "gzip", "deflate"):
            raise UsageError(f"OTEL_EXPORTER_OTLP_COMPRESSION={compression!r} is unknown", "use gzip, deflate or none")
        try:
            timeout = float(variable("TIMEOUT", "10"))
        except ValueError:
            raise UsageError("OTEL_EXPORTER_OTLP_TIMEOUT is not a number of seconds") from None
        own_url = "" if url else environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "").strip()
        generic = url or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
        if protocol == "grpc":
            address = own_url or generic or "http://localhost:4317"
        else:
            address = own_url or f"{(generic or 'http://localhost:4318').rstrip('/')}/{PATHS[signal][0]}"
        return cls(
            signal,
            protocol,
            address,
            _headers(variable("HEADERS")),
            timeout,
            compression,
            variable("CERTIFICATE"),
            variable("CLIENT_KEY"),
            variable("CLIENT_CERTIFICATE"),
            _insecure(address, variable("INSECURE")),
        )


def _insecure(address: str, variable: str) -> bool:
    scheme = address.partition("://")[0].lower() if "://" in address else ""
    return scheme == "http" or (scheme != "https" and variable.lower() == "true")


def _headers(text: str) -> dict[str, str]:
    """Parses `a=b,c=d%20e` in the W3C Baggage format; names become lower case, malformed pairs are left out.

    opentelemetry.util.re.parse_env_headers is not used: it logs what it cannot parse, and that may be a token.
    """
    found = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if equals and name.strip():
            found[unquote(name).strip().lower()] = unquote(value).strip()
    return found


def exporters(signal: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The exporters in OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER or OTEL_LOGS_EXPORTER; ["otlp"] when unset.

    Raises:
        UsageError: a name that is not otlp, console, none, or for metrics prometheus.
    """
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    words = [word.strip().lower() for word in environ.get(variable, "").split(",") if word.strip()] or ["otlp"]
    aliases = {"otlp_proto_http": "otlp", "otlp_proto_grpc": "otlp", "logging": "console"}
    known = ("otlp", "console", "none", *(("prometheus",) if signal == "metrics" else ()))
    found = [aliases.get(word, word) for word in words]
    for word in found:
        if word not in known:
            raise UsageError(f"{variable}={word!r} is unknown", f"use {', '.join(known)}")
    return [word for word in found if word != "none"]
