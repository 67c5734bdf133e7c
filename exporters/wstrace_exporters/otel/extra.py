"""OpenTelemetry's API and SDK come with the extra `otel`, because nothing else in wstrace needs them."""

from __future__ import annotations

import importlib

from wstrace.errors import missing

#: The command that installs them; in double quotes, because a Windows command line knows no others.
INSTALL = 'pip install "wstrace[otel]"'


def need_sdk(who: str) -> None:
    """Returns if OpenTelemetry's API and SDK can be imported.

    Args:
        who: the feature that needs them, as the user calls it.

    Raises:
        Unavailable: they are not installed, or cannot be loaded.
    """
    try:
        importlib.import_module("opentelemetry.sdk.version")
    except ImportError as error:
        raise missing("opentelemetry-sdk", error, INSTALL, who) from None
