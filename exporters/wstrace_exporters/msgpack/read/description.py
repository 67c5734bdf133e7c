"""The description of a recorded trace as a TraceInfo, made of the header, the clock marks and the facts marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wstrace.clock import ClockAnchor
from wstrace.trace_info import TraceInfo
from wstrace_exporters.msgpack.format.frames import Header

#: A larger time or offset is not plausible and is ignored.
_LARGEST = 1 << 62


def trace_info(
    header: Header, facts: Mapping[str, Any], marks: Sequence[Mapping[str, Any]], first_ns: int
) -> TraceInfo:
    """The TraceInfo of a recorded trace.

    header: the header of its first part. facts: the content of its last facts mark; {} when the file has none. marks:
    all of its marks, of which the clock marks are used. first_ns: the time of its first row, 0 = none: it began then,
    unless a clock mark says when.
    """
    info = TraceInfo.from_dict(facts)
    clocks = [mark for mark in marks if mark.get("m") == "clock" and _is_time(mark.get("monotonic"))]
    begin_ns = int(clocks[0]["monotonic"]) if clocks else first_ns if _is_time(first_ns) else 0
    first = begin_ns, begin_ns + _offset(header, begin_ns)
    later = [(mark["monotonic"], mark["realtime"]) for mark in clocks if _is_time(mark.get("realtime"))]
    name = header.clock.get("name")
    info.clock = ClockAnchor(
        [first, *(mark for mark in later if mark[0] > begin_ns)], name if type(name) is str else ""
    )
    info.command = info.command or list(header.command)
    info.started_ns = info.started_ns if info.started_ns and _is_time(info.started_ns) else begin_ns
    info.page_size = header.page_size
    info.host, info.boot_id, info.created_ns = header.host, header.boot_id, header.created_ns
    return info


def hosts_of(marks: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of the hosts of a merged trace, one per boot; () for a trace of one."""
    hosts = next((mark.get("hosts") for mark in marks if mark.get("m") == "hosts"), None)
    return tuple(name for name in hosts if isinstance(name, str)) if isinstance(hosts, list) else ()


def is_writers_loss(mark: Mapping[str, Any]) -> bool:
    """Whether a mark counts records that its writer could not write."""
    return mark.get("m") == "lost" and mark.get("by") == "writer"


def _offset(header: Header, begin_ns: int) -> int:
    """Nanoseconds from the records' clock to the wall clock when the trace began."""
    offset = header.clock.get("realtime_offset_ns")
    if type(offset) is int and abs(offset) < _LARGEST:
        return offset
    return header.created_ns - begin_ns if header.created_ns and _is_time(header.created_ns) else 0


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST
