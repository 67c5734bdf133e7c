"""The format `.pb.gz`: a profile for `go tool pprof`, Pyroscope, Parca, Grafana and speedscope."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import Format, hookimpl


@hookimpl
def wstrace_formats() -> Sequence[Format]:
    """Returns the format of pprof."""
    return [
        Format("pprof", (".pb.gz",), "a profile for pprof, by whole stacks", "wstrace_exporters.pprof.writer:write")
    ]
