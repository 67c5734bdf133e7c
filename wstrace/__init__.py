"""wstrace: the tracer for process working sets. The public API; everything is imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

_OWN = {
    "Session": "wstrace.session",
    "Batch": "wstrace.batch",
    "Dictionary": "wstrace.batch",
    "Ledger": "wstrace.ledger",
    "Source": "wstrace.interfaces",
    "Enricher": "wstrace.interfaces",
    "Resolver": "wstrace.interfaces",
    "Exporter": "wstrace.interfaces",
    "Context": "wstrace.interfaces",
    "Level": "wstrace.interfaces",
    "Command": "wstrace.interfaces",
    "hookimpl": "wstrace.hookspecs",
    "WstraceError": "wstrace.errors",
    "Unavailable": "wstrace.errors",
    "TraceFileError": "wstrace.errors",
}

__all__ = [*sorted(_OWN), "__version__"]


def __getattr__(name: str) -> Any:
    """Imports a public name on first use; names of plugins (`open_trace`, `working_set` ...) come through a hook."""
    if name == "__version__":
        from importlib.metadata import version

        return version("wstrace")
    if name.startswith("_"):
        raise AttributeError(f"module 'wstrace' has no attribute {name!r}")
    if name in _OWN:
        value = getattr(importlib.import_module(_OWN[name]), name)
    else:
        from wstrace.plugins import api_name

        value = api_name(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_OWN]
