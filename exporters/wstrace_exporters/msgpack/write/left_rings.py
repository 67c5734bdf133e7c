"""Rings that a recorder which was killed has left on the disk: nobody needs them once another one begins.

A recorder has the lock of a part of its ring at any time, as it opens the next one before it ends the one before; the
system frees the lock of a process that is gone, in whatever namespace it was. So a ring without a locked part has no
recorder. Each part says in its header of which ring it is: recordings, which have the same parts by other names, and
whatever else is called so, stay.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from wstrace.errors import TraceFileError
from wstrace.output_file import remove
from wstrace.output_rights import belongs_to_us
from wstrace_exporters.msgpack.format.frames import unpack_header
from wstrace_exporters.msgpack.format.layout import HEADER, FrameError
from wstrace_exporters.msgpack.format.osfile import is_being_written
from wstrace_exporters.msgpack.format.part_names import name_and_number
from wstrace_exporters.msgpack.read.local_input import LocalInput
from wstrace_exporters.msgpack.read.scan import frame_at


def remove_left(stem: str) -> None:
    """Removes the rings of recordings of this stem that no recorder writes any more; those of other users stay.

    Args:
        stem: the path of the rings, without `.ring.wst` or `.ring-NAME.wst`.
    """
    for paths in _rings(stem).values():
        # A recorder that began another part between the first listing and the look at the lock is seen by the second.
        if not any(map(is_being_written, paths)) and paths in _rings(stem).values():
            for path in paths:
                with contextlib.suppress(OSError):
                    remove(path)


def _rings(stem: str) -> dict[str, list[str]]:
    """The parts of each ring by the name of its first one, the latest part first, as the present one is locked."""
    folder, name = os.path.split(stem)
    pattern = re.compile(re.escape(name) + r"\.ring(-.+)?\.wst")
    found: dict[str, list[tuple[int, str]]] = {}
    with contextlib.suppress(OSError):
        for path in map(str, Path(folder).iterdir()):
            first, number = name_and_number(os.path.basename(path))
            if pattern.fullmatch(first) and belongs_to_us(path) and _ring_of(path) == first:
                found.setdefault(first, []).append((number, path))
    return {first: [path for _, path in sorted(parts, reverse=True)] for first, parts in found.items()}


def _ring_of(path: str) -> str:
    """Of which ring a file is a part, "" = none."""
    try:
        source = LocalInput(path)
        try:
            frame = frame_at(source, 0, None)
            return unpack_header(frame.body).ring if frame is not None and frame.kind == HEADER else ""
        finally:
            source.close()
    except (TraceFileError, FrameError):
        return ""
