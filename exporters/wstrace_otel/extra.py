"""OpenTelemetry's API and SDK come with the extra `otel`: nothing else of wstrace needs them."""

from __future__ import annotations

import importlib

from wstrace.errors import Unavailable

#: what installs them; double quotes, since those of a Windows command line are
INSTALL = 'pip install "wstrace[otel]"'


def need_sdk(who: str) -> None:
    """Returns when OpenTelemetry's API and SDK can be imported.

    Args:
        who: what needs them, as the user calls it.

    Raises:
        Unavailable: they are not installed.
    """
    try:
        importlib.import_module("opentelemetry.sdk.version")
    except ImportError:
        raise Unavailable(f"{who} needs OpenTelemetry, which is not installed", INSTALL) from None
