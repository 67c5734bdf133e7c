"""The trace file: exporter `msgpack`, source `replay`, `wstrace.open_trace`, and the commands on files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wstrace.hookspecs import hookimpl
from wstrace.interfaces import Command, Exporter, Source


@hookimpl
def wstrace_exporters() -> Sequence[type[Exporter]]:
    """The exporter `msgpack`."""
    from wstrace_msgpack.write.exporter import MsgpackExporter

    return [MsgpackExporter]


@hookimpl
def wstrace_sources() -> Sequence[type[Source]]:
    """The source `replay`."""
    from wstrace_msgpack.read.replay import Replay

    return [Replay]


@hookimpl
def wstrace_stages() -> Mapping[str, tuple[bool, str]]:
    """What was found wrong with a file that is replayed."""
    return {
        "file_lost_bytes": (True, "bytes of the trace file that belong to no whole frame"),
        "file_lost_frames": (True, "frames that are missing in the trace file"),
        "file_bad_frames": (True, "frames of the trace file whose content is not of its format"),
    }


@hookimpl
def wstrace_commands() -> Sequence[Command]:
    """The words on trace files."""
    return [
        Command("info", "what a trace file holds, and whether it is whole", "wstrace_msgpack.commands.info:info"),
        Command("recover", "write a clean file of a cut or damaged one", "wstrace_msgpack.commands.recover:recover"),
        Command("convert", "a trace as Parquet, CSV, JSON lines or Arrow", "wstrace_msgpack.commands.convert:convert"),
        Command("query", "ask a trace in SQL", "wstrace_msgpack.commands.query:query"),
        Command("merge", "several traces, of parts or hosts, as one", "wstrace_msgpack.commands.merge:merge"),
        Command("replay", "feed a trace file to exporters", "wstrace_msgpack.commands.replay:replay"),
    ]


@hookimpl
def wstrace_api() -> Mapping[str, str]:
    """`wstrace.open_trace`."""
    return {"open_trace": "wstrace_msgpack.read.trace:open_trace"}
