"""Reads a trace with msgpack and zstd alone, by FORMAT.md: it knows nothing of wstrace's code."""

import zlib
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

try:
    from compression import zstd
except ImportError:
    from backports import zstd

DTYPES = {"u8": "|u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i64": "<i8"}


def col(column: list[Any]) -> np.ndarray:
    """COL: [type, chain, codec, raw_len, bytes]."""
    kind, chain, codec, raw_len, packed = column[:5]
    raw = {"none": bytes, "zlib": zlib.decompress, "zstd": zstd.decompress}[codec](packed)
    assert len(raw) == raw_len
    values, width = np.frombuffer(raw, "|u1"), np.dtype(DTYPES[kind]).itemsize
    for name, *first in reversed(chain):
        if name == "shuffle":
            values = np.ascontiguousarray(values.reshape(width, -1).T).reshape(-1)
        else:
            assert name == "delta"
            unsigned = f"<u{width}"
            sums = np.cumsum(values.view(unsigned), dtype=unsigned) + np.array(first[0] % (1 << 8 * width), unsigned)
            values = sums.view("|u1")
    return values.view(DTYPES[kind])


class WstfFile:
    """All frames of a file: rows, names, marks and the end."""

    def __init__(self, path: Path) -> None:
        self.marks, self.end, self.frames, self.indexed = [], {}, 0, 0
        self._names, self._rows = {}, {}
        data, at, unpacker = (
            path.read_bytes(),
            0,
            msgpack.Unpacker(strict_map_key=False, unicode_errors="surrogateescape"),
        )
        unpacker.feed(data)
        for ident, kind, seq, length, crc, body in unpacker:
            assert (ident.code, ident.data[:8], seq) == (0x57, b"\x89WSTF\r\n\x1a", self.frames)
            assert zlib.crc32(data[at + 39 : at + 39 + length], zlib.crc32(data[at + 19 : at + 34])) == crc
            at, self.frames = at + 39 + length, self.frames + 1
            if kind == 0:
                assert (body["v"][0], body["need"]) == (2, [])
            elif kind == 1:
                texts = (s.decode("utf-8", "surrogateescape") if isinstance(s, bytes) else s for s in body["s"])
                self._names.update(zip(col(body["c"]["id"]).tolist(), texts, strict=True))
            elif kind in (2, 3):
                self._rows.setdefault(body.get("s", "mapping"), []).append(body["c"])
            elif kind == 5:
                self.marks.append(body)
            elif kind == 6:
                self.indexed += len(body["f"])
            elif kind == 7:
                self.end = body
        assert at == len(data)

    def name(self, ident: int) -> str:
        """The name of an id; "" of 0."""
        return self._names[ident] if ident else ""

    def rows(self, stream: str) -> dict[str, np.ndarray]:
        """The columns of a stream."""
        frames = self._rows[stream]
        return {name: np.concatenate([col(frame[name]) for frame in frames]) for name in frames[0]}
