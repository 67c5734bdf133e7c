"""wstrace: the tracer for process working sets. The public API; everything is imported on first use."""

# Not even __future__ or typing is imported here: `python -m wstrace` has the working directory on sys.path until
# __main__ drops it, and a hostile typing.py there would run with the tracer's privilege.

_OWN = {
    "Batch": "wstrace.batch",
    "Command": "wstrace.interfaces",
    "Context": "wstrace.interfaces",
    "Dictionary": "wstrace.batch",
    "Enricher": "wstrace.interfaces",
    "Exporter": "wstrace.interfaces",
    "Format": "wstrace.interfaces",
    "Ledger": "wstrace.ledger",
    "Level": "wstrace.interfaces",
    "Resolver": "wstrace.interfaces",
    "Session": "wstrace.session",
    "Source": "wstrace.interfaces",
    "Trace": "wstrace.trace",
    "TraceFileError": "wstrace.errors",
    "Unavailable": "wstrace.errors",
    "WstraceError": "wstrace.errors",
    "hookimpl": "wstrace.hookspecs",
}

__all__ = ["__version__", *sorted(_OWN)]


def __getattr__(name: str) -> object:
    """Imports a public name on first use; names of plugins (`open_trace`, `working_set` ...) come through a hook."""
    import importlib

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
    return sorted({*globals(), *_OWN})
