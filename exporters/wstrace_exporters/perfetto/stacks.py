"""The frames of stacks as rows of Perfetto's tables: functions, mappings, frames."""

from __future__ import annotations

import numpy as np

from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import Label
from wstrace.analysis.frames import Frame, to_the_root
from wstrace.protobuf import data, number
from wstrace.text import printable
from wstrace_exporters.perfetto.packets import BUILD_IDS, FRAMES, FUNCTIONS, LONGEST, MAPPINGS, PATHS, Packets

#: Frames of a stack, from the innermost one: what Perfetto draws of a deeper one is cut there.
DEEPEST = 512


class Stacks:
    """Gives the frames of stacks out as rows.

    Args:
        packets: whose tables they are. told: the composition.
    """

    def __init__(self, packets: Packets, told: Composition) -> None:
        self._packets = packets
        self._mappings, self._strings = told.inputs.names.symbolizer.mappings, told.strings
        self._stacks: dict[Label, list[int]] = {}

    def of(self, label: Label) -> list[int]:
        """The frames of a stack, outermost first, by its label."""
        if label not in self._stacks:
            frames = to_the_root(label.frames)[:DEEPEST]
            self._stacks[label] = [self._row(frame) for frame in reversed(frames)]
        return self._stacks[label]

    def _row(self, frame: Frame) -> int:
        def content() -> bytes:
            function = number(2, self._packets.name(FUNCTIONS, str(frame)))
            return function + number(3, self._mapping(frame)) + number(4, frame.offset)

        return self._packets.row(FRAMES, (str(frame), frame.kind, frame.module, frame.offset, frame.build_id), content)

    def _mapping(self, frame: Frame) -> int:
        """The file of native code, with offsets from its begin; code without one is in a mapping of its kind."""
        path, build_id = f"[{frame.kind or 'unknown'}]", ""
        known, rows = self._mappings.find(np.array([frame.mapping], np.uint32))
        if frame.kind == "native" and known[0]:
            path, build_id = (self._strings[int(rows[name][0])] for name in ("file", "build_id"))

        def content() -> bytes:
            build = number(2, self._packets.row(BUILD_IDS, build_id, lambda: data(2, _bytes(build_id))))
            return build + number(7, self._packets.row(PATHS, path, lambda: data(2, printable(path, LONGEST))))

        return self._packets.row(MAPPINGS, (path, build_id), content)


def _bytes(build_id: str) -> bytes:
    try:
        return bytes.fromhex(build_id)
    except ValueError:
        return build_id.encode("utf-8", "replace")
