"""Reads perf.data of `perf record --call-graph dwarf`, and the stacks that `perf script` prints for the same samples.

Source: tools/perf/Documentation/perf.data-file-format.txt, include/uapi/linux/perf_event.h.
"""

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

#: registers of perf's dumps on x86-64, in the order in which they are written: ours come first but for the segments
_MASK = 0xFF0FFF


class Sample(NamedTuple):
    pid: int
    tid: int
    time: int
    ip: int
    registers: list[int]
    dump: bytes
    size: int


class Mapping(NamedTuple):
    pid: int
    start: int
    end: int
    offset: int
    device: tuple[int, int]
    ino: int
    protection: int
    name: str


def record(command: Sequence[str], folder: Path, *, event: str, period: int, dump: int = 16384) -> Path:
    """perf.data of a command, with the stack of one event out of this many."""
    path = folder / "perf.data"
    subprocess.run(
        ["perf", "record", "-q", "-e", event, "-c", str(period), "-m", "2048", "--call-graph", f"dwarf,{dump}",
         "-o", str(path), "--", *command],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    return path


def read(path: Path) -> tuple[list[Sample], list[Mapping]]:
    """The samples that have registers, and the mappings in the order of their times.

    The file holds the records of one CPU's ring behind those of another: a process that moved between CPUs has its
    mappings out of order there.
    """
    data = path.read_bytes()
    (attributes,) = struct.unpack_from("<Q", data, 24)
    start, size = struct.unpack_from("<QQ", data, 40)
    (kind,) = struct.unpack_from("<Q", data, attributes + 24)
    #: the fields of a record behind the time, where `sample_id_all` puts one: id, stream, CPU, identifier
    behind_time = 8 * (1 + sum(bool(kind & bit) for bit in (64, 512, 128, 1 << 16)))
    samples = []
    mappings = []
    at = start
    while at < start + size:
        record, _, length = struct.unpack_from("<IHH", data, at)
        if record == 10:
            pid, _, first, bytes_, offset, major, minor, ino, _, protection, _ = struct.unpack_from(
                "<IIQQQIIQQII", data, at + 8
            )
            name = data[at + 72 : at + length].split(b"\0")[0].decode()
            (time,) = struct.unpack_from("<Q", data, at + length - behind_time)
            new = Mapping(pid, first, first + bytes_, offset, (major, minor), ino, protection, name)
            mappings.append((time, new))
        elif record == 9 and (sample := _sample(data, at + 8, kind)) is not None:
            samples.append(sample)
        at += length or size
    mappings.sort(key=lambda one: one[0])
    return samples, [new for _, new in mappings]


def _sample(data: bytes, at: int, kind: int) -> Sample | None:
    at += 8 * bool(kind & 1 << 16)
    ip, pid, tid, time = struct.unpack_from("<QIIQ", data, at)
    at += 24 + 8 * sum(bool(kind & bit) for bit in (8, 64, 512, 128, 256))
    if kind & 32:
        at += 8 + 8 * struct.unpack_from("<Q", data, at)[0]
    (abi,) = struct.unpack_from("<Q", data, at)
    if not abi:
        return None
    count = _MASK.bit_count()
    registers = struct.unpack_from(f"<{count}Q", data, at + 8)
    at += 8 + 8 * count
    (size,) = struct.unpack_from("<Q", data, at)
    (real,) = struct.unpack_from("<Q", data, at + 8 + size) if size else (0,)
    return Sample(pid, tid, time, ip, [*registers[:9], *registers[-8:]], data[at + 8 : at + 8 + size], real)


def script(path: Path) -> dict[tuple[int, int], list[int]]:
    """(tid, time) -> the addresses that perf's own unwinder found, innermost first, without the kernel's."""
    text = subprocess.run(
        ["perf", "script", "-i", str(path), "-F", "pid,tid,time,ip", "--ns", "--no-inline", "--max-stack", "1024"],
        capture_output=True, text=True, check=True, timeout=300,
    ).stdout  # fmt: skip
    found = {}
    stack = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and "/" in words[0]:
            seconds, _, rest = words[1].rstrip(":").partition(".")
            stack = found.setdefault((int(words[0].partition("/")[2]), int(seconds) * 10**9 + int(rest)), [])
        elif words and int(words[0], 16) < 1 << 63:
            stack.append(int(words[0], 16))
    return found


def arrays(samples: Sequence[Sample]) -> dict[str, Any]:
    """registers u64 (n, 17), dump u64 (n, words), size u64 (n,)."""
    words = max((len(sample.dump) for sample in samples), default=0) // 8
    dump = np.zeros((len(samples), words), "<u8")
    for row, sample in enumerate(samples):
        dump[row, : len(sample.dump) // 8] = np.frombuffer(sample.dump, "<u8")
    registers = np.array([sample.registers for sample in samples], "<u8").reshape(-1, 17)
    return {"registers": registers, "dump": dump, "size": np.array([sample.size for sample in samples], "<u8")}
