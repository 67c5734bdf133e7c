"""The trace file: exporters `msgpack`, `flight_recorder`, source `replay`, `wstrace.open_trace`, commands on files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wstrace.hookspecs import Reference, hookimpl


@hookimpl
def wstrace_exporters() -> Sequence[Reference]:
    """The exporters `msgpack` and `flight_recorder`."""
    return [
        Reference("msgpack", "wstrace_exporters.msgpack.write.exporter:MsgpackExporter", takes_output=True),
        Reference("flight_recorder", "wstrace_exporters.msgpack.write.flight_recorder:FlightRecorder"),
    ]


@hookimpl
def wstrace_sources() -> Sequence[Reference]:
    """The source `replay`."""
    return [Reference("replay", "wstrace_exporters.msgpack.read.replay:Replay")]


@hookimpl
def wstrace_stages() -> Mapping[str, tuple[bool, str]]:
    """What was found wrong with a file that is replayed."""
    return {
        "file_lost_bytes": (True, "bytes of the trace file that belong to no whole frame"),
        "file_lost_frames": (True, "frames that are missing in the trace file"),
        "file_bad_frames": (True, "frames of the trace file whose content is not of its format"),
        "file_lost_records": (True, "records that were written to a trace file and cannot be read"),
        "file_cut": (True, "trace files without their end, with an unknown number of records"),
    }
