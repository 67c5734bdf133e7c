"""Records of perf_event's side band, packed by hand, and what a SideBand makes of them."""

import struct
from typing import Any

from wstrace.batch import Dictionary
from wstrace_plugins.page_faults.linux.side_band import SideBand


def lost(count: int, time_ns: int) -> bytes:
    return struct.pack("<IHHQQIIQ", 2, 0, 40, 99, count, 7, 8, time_ns)


def record(kind: int, misc: int, body: bytes, time_ns: int, pid: int = 7) -> bytes:
    body += b"\0" * (-len(body) % 8)
    return struct.pack("<IHH", kind, misc, 24 + len(body)) + body + struct.pack("<IIQ", pid, pid, time_ns)


def comm(name: bytes, time_ns: int, *, pid: int = 7, tid: int | None = None, executed: bool = False) -> bytes:
    return record(3, executed << 13, struct.pack("<II", pid, pid if tid is None else tid) + name + b"\0", time_ns)


def task(kind: int, time_ns: int, pid: int, tid: int, ppid: int) -> bytes:
    return record(kind, 0, struct.pack("<IIIIQ", pid, ppid, tid, ppid, time_ns), time_ns)


def mmap2(start: int, size: int, name: bytes, time_ns: int, *, pid: int = 7, prot: int = 3, flags: int = 2) -> bytes:
    body = struct.pack("<II QQQ II QQ II", pid, pid, start, size, 0x2000, 8, 1, 42, 0, prot, flags) + name + b"\0"
    return record(10, 0, body, time_ns)


def band(*raw: bytes, watermark: int = 10**9, children: bool = True, **tracepoints: Any) -> tuple[Any, ...]:
    strings = Dictionary()
    side = SideBand(strings, children=children, exit_code={7: 3}.get, **tracepoints)
    for ring in raw:
        side.take(ring)
    rows = given(side, watermark)
    return side, strings, rows["process"], rows["address_space"]


def given(side: SideBand, watermark: int) -> dict[str, list[tuple[Any, ...]]]:
    """The rows that a SideBand gives, by stream."""
    rows = {"process": [], "address_space": [], "content_loss": []}
    for batch in side.give(watermark, "test"):
        columns = [batch[c.name].tolist() for c in batch.schema.columns]
        rows[batch.schema.name] += zip(*columns, strict=True)
    return rows


def syscall(number: int, time_ns: int, *arguments: int, tid: int = 7, pid: int = 7) -> bytes:
    """The record of a tracepoint of a system call: its entry with arguments, or its exit with the result."""
    raw = struct.pack("<HBBiii", number, 0, 0, tid, 25, 0) + struct.pack(f"<{len(arguments)}Q", *arguments)
    raw += b"\0" * (-(len(raw) + 4) % 8)
    body = struct.pack("<IIQI", pid, tid, time_ns, len(raw)) + raw
    return struct.pack("<IHH", 9, 2, 8 + len(body)) + body


def new_task(number: int, time_ns: int, flags: int, *, tid: int = 7, pid: int = 7) -> bytes:
    """The record of the tracepoint task_newtask."""
    raw = struct.pack("<HBBii16s4xQh6x", number, 0, 0, tid, 11, b"child", flags, 0)
    raw += b"\0" * (-(len(raw) + 4) % 8)
    body = struct.pack("<IIQI", pid, tid, time_ns, len(raw)) + raw
    return struct.pack("<IHH", 9, 2, 8 + len(body)) + body
