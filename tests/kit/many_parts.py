"""The parts of a trace that was rotated very often, each made when it is requested, as 100,000 files take minutes."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wstrace_exporters.msgpack.format import frames
from wstrace_exporters.msgpack.format.index import IndexPage, pack_index
from wstrace_exporters.msgpack.format.layout import END, EVENTS, HEADER, INDEX, pack_frame
from wstrace_exporters.msgpack.format.values import packb
from wstrace_exporters.msgpack.read.part import Part

#: Room in the header that makes all parts equally long, so that they can be listed before they are made.
_ROOM = 240


class ManyParts:
    """Copies of one part of a real trace with other numbers, file ids and times.

    Args:
        path: the part.
        n: the number of parts.
        apart_ns: from the first fault of a part to that of the next one.
        late: part -> by how much earlier its faults are, as if they had waited.
        sessions: how many sessions have written them, all but the first one part each.
    """

    def __init__(
        self,
        path: Path,
        n: int,
        apart_ns: int,
        late: Mapping[int, int] | None = None,
        sessions: int = 1,
    ) -> None:
        part = Part(str(path))
        self._frames = [
            (frame.kind, bytes(frame.body), entry)
            for frame, entry in zip(part.read(), part.entries, strict=True)
            if frame.kind not in (INDEX, END)
        ]
        self._header, self._streams = part.header, part.streams[1:]
        assert part.end is not None
        self._rows = part.end.rows
        self.begin_ns = int(next(e["t0"] for _, _, e in self._frames if self._is_of_faults(e)))
        part.close()
        self.n, self.apart_ns, self._late, self._sessions = n, apart_ns, dict(late or {}), sessions
        self.size = len(self._made(0, 0)) + _ROOM

    def __len__(self) -> int:
        return self.n

    def begin_of(self, number: int) -> int:
        """The time of the first fault of a part."""
        return self.begin_ns + self._later(number)

    def _later(self, number: int) -> int:
        return number * self.apart_ns - self._late.get(number, 0)

    def part(self, number: int) -> bytes:
        """The bytes of a part."""
        data = self._made(number, _ROOM // 2)
        data = self._made(number, _ROOM // 2 + self.size - len(data))
        assert len(data) == self.size
        return data

    def _is_of_faults(self, entry: Any) -> bool:
        return bool(entry["kind"] == EVENTS and self._streams[int(entry["stream"]) - 1] == "page_fault")

    def _made(self, number: int, room: int) -> bytes:
        later, data = np.uint64(self._later(number)), b""
        file_id = self._id(number)
        rows = []
        for seq, (kind, body, entry) in enumerate(self._frames):
            t = int(entry["t0"]), int(entry["t1"])
            if kind == HEADER:
                header = dataclasses.replace(
                    self._header, id=file_id, part=number, prev=self._id(number - 1) if number else None,
                    created_ns=self._header.created_ns + number * self.apart_ns, writer="-" * (256 + room),
                )  # fmt: skip
                body = header.pack()
            elif self._is_of_faults(entry):
                events = frames.unpack_rows(body)
                t = t[0] + int(later), t[1] + int(later)
                events.columns["time_ns"] = events.columns["time_ns"] + later
                body = frames.pack_rows({"s": "page_fault", "n": events.n, "t": list(t), "lost": 0}, events.columns)
            frame = pack_frame(file_id, kind, seq, body)
            rows.append(((kind, len(data), len(frame), int(entry["n"]), *t), int(entry["stream"]), int(entry["pids"])))
            data += frame
        places, streams, pids = zip(*rows, strict=True)
        page = IndexPage(np.array(places, "<u8"), self._streams, np.array(streams, "<u8"), np.array(pids, "<u8"))
        end = {"index": [len(data)], "frames": len(rows) + 2, "rows": self._rows, "ledger": {}, "clean": True}
        data += pack_frame(file_id, INDEX, len(rows), pack_index(page))
        return data + pack_frame(file_id, END, len(rows) + 1, packb(end))

    def _id(self, number: int) -> bytes:
        session = max(number - (self.n - self._sessions), 0)
        return session.to_bytes(5, "big") + (number + 1).to_bytes(3, "big")
