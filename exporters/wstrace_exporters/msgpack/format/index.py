"""INDEX: the position of each frame, its stream, and the processes in its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace_exporters.msgpack.format import columns as col
from wstrace_exporters.msgpack.format.layout import INDEX_ENTRIES, LIMITS, FrameError, Limits
from wstrace_exporters.msgpack.format.values import Body, packb

#: An index entry: 39 bytes of msgpack of fixed widths, so that a page is read at once.
_NAMES = ("kind", "offset", "length", "n", "t0", "t1")
_ROW = np.dtype(
    [("array", "|u1"), ("kind", "|u1"), ("m1", "|u1"), ("offset", ">u8"), ("m2", "|u1"), ("length", ">u4"),
     ("m3", "|u1"), ("n", ">u4"), ("m4", "|u1"), ("t0", ">u8"), ("m5", "|u1"), ("t1", ">u8")]
)  # fmt: skip
assert _ROW.itemsize == 39  # FORMAT.md, INDEX
_FIXED = {"array": 0x96, "m1": 0xCF, "m2": 0xCE, "m3": 0xCE, "m4": 0xCF, "m5": 0xCF}
#: The key `f` and the head of an array of 32-bit length, which follow the map's first byte.
_START = b"\xa1f\xdd"
_HEAD_BYTES = 1 + len(_START) + 4
#: Odd and near 2**32 / golden ratio, so that neighbouring pids, and those of Windows (multiples of 4), get
#: different bits.
_SPREAD = 0x9E3779B1


def pid_set(pids: NDArray[Any] | Iterable[int]) -> int:
    """The pids as a set of 64 bits, one bit per pid; 0 for no pids.

    pids: u32, shape (n,), where runs of equal pids cost little; or integers; those that are no pids are left out.
    """
    if not isinstance(pids, np.ndarray):
        pids = np.array([pid for pid in pids if 0 <= pid < 1 << 32], "<u4")
    if len(pids) > 1:
        others = pids[1:] != pids[:-1]
        pids = pids[np.append(True, others)] if others.any() else pids[:1]
    bits = (pids * np.uint32(_SPREAD)) >> np.uint32(26)
    return int(np.bitwise_or.reduce(np.uint64(1) << bits.astype("<u8"))) if len(bits) else 0


class IndexPage(NamedTuple):
    """A page of the index.

    entries: (kind, offset, frame_len, n, t0, t1) of each frame, u64, shape (n, 6). streams: the names of streams.
    stream: 1 + the index in `streams` of each frame's stream, 0 = not given; u64, shape (n,). pids: the pid_set of each
    frame's rows, 0 = not given; u64, shape (n,).
    """

    entries: NDArray[Any]
    streams: Sequence[str]
    stream: NDArray[Any]
    pids: NDArray[Any]


def pack_index(page: IndexPage) -> bytes:
    """The body of a page: integers of fixed widths, then streams and sets of pids as columns."""
    rows = np.zeros(len(page.entries), _ROW)
    for name, byte in _FIXED.items():
        rows[name] = byte
    for name, column in zip(_NAMES, page.entries.T, strict=True):
        rows[name] = column
    more: dict[str, Any] = {}
    if page.streams:
        columns = {"stream": page.stream.astype("<u2"), "pids": page.pids.astype("<u8")}
        more = {"s": list(page.streams), "c": col.encode_all(columns)}
    rest = packb(more)[1:]
    return bytes([0x81 + len(more)]) + _START + len(rows).to_bytes(4, "big") + rows.tobytes() + rest


def unpack_index(data: Any, limits: Limits = LIMITS) -> IndexPage:
    """Reads the page in an INDEX body, which begins with the entries in their fixed widths. Raises FrameError."""
    n = int.from_bytes(data[_HEAD_BYTES - 4 : _HEAD_BYTES], "big")
    end = _HEAD_BYTES + n * _ROW.itemsize
    if bytes(data[1 : _HEAD_BYTES - 4]) != _START or n > INDEX_ENTRIES or end > len(data):
        raise FrameError("an index that does not begin with its entries")
    rows = np.frombuffer(data, _ROW, n, _HEAD_BYTES)
    if not all((rows[name] == byte).all() for name, byte in _FIXED.items()):
        raise FrameError("an index entry of other widths")
    found = dict.fromkeys(("stream", "pids"), np.zeros(n, "<u8"))
    streams: list[str] = []
    body = Body(bytes([data[0] - 1]) + bytes(data[end:]), limits)
    for key in body.map():
        if key == "s":
            streams = [body.text() for _ in range(body.array(limits.free_items))]
        elif key == "c":
            for name in body.map():
                array = col.decode(body, n)
                if name in found and array is not None and array.dtype.kind == "u":
                    found[name] = array.astype("<u8")
        else:
            body.skip()
    body.end()
    stream = np.where(found["stream"] > len(streams), 0, found["stream"])
    return IndexPage(np.stack([rows[name].astype("<u8") for name in _NAMES], axis=1), streams, stream, found["pids"])
