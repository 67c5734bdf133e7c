"""The list of a start: byte ranges of files in order of first touch, as lines of JSON.

The first line is `["wstrace-example-prefetch", 1]`; each other one is `[path, size, mtime_ns, offset, length]`. Nothing
in a list is trusted: a line of another form is refused, with its number.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wstrace.errors import UsageError

if TYPE_CHECKING:
    from wstrace.trace import Trace

HEADER = ["wstrace-example-prefetch", 1]
MOST_BYTES = 64 << 20
#: What the kernel maps around a fault without another fault (its default for fault_around_bytes).
AROUND = 64 << 10


class Range(NamedTuple):
    """`length` bytes of a file from `offset` on; size and mtime_ns tell whether the file is still the same."""

    path: str
    size: int
    mtime_ns: int
    offset: int
    length: int


def made(trace: Trace) -> tuple[list[Range], int]:
    """The ranges of the files that a trace's processes touched, in order of first touch.

    Returns:
        (the ranges, the number of files that are gone, or changed since the trace ended).
    """
    first: dict[tuple[str, int], int] = {}  # (path, number of the part of AROUND bytes) -> when it was first touched
    maps = {}
    for batch in trace.batches("mapping"):
        for number, start, offset, file in zip(*(batch[c] for c in ("id", "start", "offset", "file")), strict=True):
            maps[int(number)] = int(start), int(offset), batch.strings[int(file)]
    for batch in trace.batches("page_fault", ("time_ns", "va", "mapping")):
        if not {"time_ns", "va", "mapping"} <= set(batch):
            continue
        for mapping in np.unique(batch["mapping"]).tolist():
            start, offset, path = maps.get(mapping, (0, 0, ""))
            if not path.startswith("/"):
                continue
            its = batch["mapping"] == mapping
            parts = (batch["va"][its].astype(np.int64) - start + offset) // AROUND
            for part, at in zip(parts.tolist(), batch["time_ns"][its].tolist(), strict=True):
                first[path, part] = min(at, first.get((path, part), at))
    ended_ns = trace.info.clock.wall(trace.info.ended_ns) if trace.info.ended_ns else None
    files = {path: _as_it_is(path, ended_ns) for path in {path for path, _ in first}}
    found: list[Range] = []
    for path, part in sorted(first, key=lambda key: (first[key], key)):
        file, offset = files[path], part * AROUND
        if file is not None and 0 <= offset < file[0]:
            found.append(Range(path, *file, offset, min(AROUND, file[0] - offset)))
    return _joined(found), sum(file is None for file in files.values())


def _as_it_is(path: str, ended_ns: int | None) -> tuple[int, int] | None:
    """(size, mtime_ns) of a regular file that did not change since that time; None = it is not there as it was."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None
    same = stat.S_ISREG(status.st_mode) and (ended_ns is None or status.st_mtime_ns <= ended_ns)
    return (status.st_size, status.st_mtime_ns) if same else None


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """The ranges, where one that goes on behind the one before it is part of that."""
    found: list[Range] = []
    for one in ranges:
        last = found[-1] if found else None
        if last is not None and last.path == one.path and last.offset + last.length == one.offset:
            found[-1] = last._replace(length=last.length + one.length)
        else:
            found.append(one)
    return found


def encoded(ranges: Iterable[Range]) -> Iterator[bytes]:
    """The lines of a list, header first."""
    for line in (HEADER, *ranges):
        yield json.dumps(line).encode() + b"\n"


def read(path: str) -> list[Range]:
    """The ranges of the list in a file. Raises UsageError: it cannot be read, or a line of it is no range."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the list {path}: {error.strerror}") from None
    if len(text) > MOST_BYTES:
        raise UsageError(f"{path} is longer than {MOST_BYTES >> 20} MiB: no prefetch list")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            one = None
        if number == 1 and one != HEADER:
            break
        if number > 1:
            found.append(_checked(one, path, number))
    else:
        if text:
            return found
    raise UsageError(f"{path} is no prefetch list of version 1", "make it anew: wstrace prefetch x.wst -o FILE")


def _checked(one: object, name: str, number: int) -> Range:
    """The range of a line. Raises UsageError."""
    if isinstance(one, list) and [type(field) for field in one] == [str, int, int, int, int]:
        found = Range(*one)
        inside = found.offset >= 0 and found.length > 0 and found.offset + found.length <= found.size < 1 << 63
        if inside and found.path.startswith("/") and "\0" not in found.path:
            return found
    raise UsageError(f"{name} is no prefetch list: line {number} is not [path, size, mtime_ns, offset, length]")
