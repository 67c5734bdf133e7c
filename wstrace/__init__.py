"""wstrace: the tracer for process working sets. The public API; everything is imported on first use."""

# Not even __future__ or typing is imported here: `python -m wstrace` has the working directory on sys.path until
# __main__ drops it, and a hostile typing.py there would run with the tracer's privilege. What the names are to a type
# checker is in __init__.pyi; a test compares the two.

#: public name -> the module of this wheel that has it, or that it is (`otel`)
_API = {
    "Batch": "wstrace.batch",
    "Batches": "wstrace.table",
    "Context": "wstrace.interfaces",
    "Dictionary": "wstrace.batch",
    "Enricher": "wstrace.interfaces",
    "Exporter": "wstrace.interfaces",
    "Format": "wstrace.hookspecs",
    "Ledger": "wstrace.ledger",
    "Level": "wstrace.trace_info",
    "MemoryWatch": "wstrace_plugins.write_watch.write_watch",
    "Reference": "wstrace.hookspecs",
    "Resolver": "wstrace.interfaces",
    "Session": "wstrace.session",
    "Source": "wstrace.interfaces",
    "Trace": "wstrace.trace",
    "TraceFileError": "wstrace.errors",
    "TraceFileNotFound": "wstrace.errors",
    "TraceInfo": "wstrace.trace_info",
    "Unavailable": "wstrace.errors",
    "WriteWatch": "wstrace_plugins.write_watch.write_watch",
    "WstraceError": "wstrace.errors",
    "delta": "wstrace_plugins.working_set.delta",
    "empty_working_set": "wstrace_plugins.working_set.empty",
    "hookimpl": "wstrace.hookspecs",
    "mapped_file": "wstrace_plugins.mapped_files",
    "open_trace": "wstrace_exporters.msgpack.read.trace",
    "otel": "wstrace_exporters.otel.otel",
    "span": "wstrace_exporters.otel.otel",
    "working_set": "wstrace_plugins.working_set.working_set",
}

__all__ = ["__version__", *_API]


def __getattr__(name: str) -> object:
    """Imports a public name on first use."""
    import importlib

    if name == "__version__":
        from wstrace.entry_points import entry_points

        found = next((one.version for one in entry_points("wstrace") if one.distribution == "wstrace"), "")
        globals()[name] = found  # read once: it is in the installed package's description
        return found
    if name not in _API:
        raise AttributeError(f"module 'wstrace' has no attribute {name!r}")
    module = importlib.import_module(_API[name])
    value = getattr(module, name, module)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
