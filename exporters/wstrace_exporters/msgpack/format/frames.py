"""Bodies of frames: what the writer packs and the reader unpacks, one pair of functions per kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Columns
from wstrace.schema import MOST_NAME, PAGE_SIZES, Schema
from wstrace_exporters.msgpack.format import columns as col
from wstrace_exporters.msgpack.format.layout import INDEX_ENTRIES, LIMITS, VERSION, FrameError, Limits
from wstrace_exporters.msgpack.format.values import Body, packb, text

MAX_TIME, _U32 = (1 << 64) - 1, (1 << 32) - 1
#: The words of a command that a header has.
_MOST_WORDS = 5000
#: The bytes at a body's start that are searched for stream, n and t before the whole body is read.
PEEK_BYTES = 512
#: An index entry: 39 bytes of msgpack of fixed widths, so that a page is read at once.
_INDEX_COLUMNS = ("kind", "offset", "length", "n", "t0", "t1")
_INDEX_ROW = np.dtype(
    [("array", "|u1"), ("kind", "|u1"), ("m1", "|u1"), ("offset", ">u8"), ("m2", "|u1"), ("length", ">u4"),
     ("m3", "|u1"), ("n", ">u4"), ("m4", "|u1"), ("t0", ">u8"), ("m5", "|u1"), ("t1", ">u8")]
)  # fmt: skip
assert _INDEX_ROW.itemsize == 39  # FORMAT.md, INDEX
_INDEX_FIXED = {"array": 0x96, "m1": 0xCF, "m2": 0xCE, "m3": 0xCE, "m4": 0xCF, "m5": 0xCF}
#: The key `f` and the head of an array of 32-bit length, which follow the map's first byte.
_INDEX_START = b"\xa1f\xdd"
_INDEX_HEAD_BYTES = 1 + len(_INDEX_START) + 4
#: Odd and near 2**32 / golden ratio, so that neighbouring pids, and those of Windows (multiples of 4), get
#: different bits.
_SPREAD = 0x9E3779B1


def schema_rows(schema: Schema) -> list[list[str]]:
    """[[column, type, semantic]...] of a stream's stored columns, as a file announces it."""
    return [[column.name, column.type, column.semantic] for column in schema.columns if not column.derived]


def pack_strings(ids: NDArray[Any], names: list[str]) -> bytes:
    """STRINGS: the names with these ids."""
    return packb({"n": len(names), "c": col.encode_all({"id": ids.astype("<u4")}), "s": list(map(text, names))})


def pack_rows(header: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> bytes:
    """EVENTS, MAPPINGS or SNAPSHOT: rows of a stream; the header holds all keys but `c`, see FORMAT.md."""
    return packb({**header, "c": col.encode_all(columns)})


@dataclass(slots=True)
class Header:
    """HEADER: a part's description of itself."""

    version: tuple[int, int] = VERSION
    need: list[str] = field(default_factory=list)
    id: bytes = b""
    part: int = 0
    prev: bytes | None = None
    created_ns: int = 0  # realtime
    boot_id: str = ""
    clock: dict[str, Any] = field(default_factory=dict)
    page_size: int = 4096
    host: dict[str, Any] = field(default_factory=dict)
    writer: str = ""
    command: list[str] = field(default_factory=list)

    def refused(self) -> str:
        """The reason why this reader must not read the file, or ""."""
        if self.version[0] != VERSION[0]:
            return f"its format is version {self.version[0]}.{self.version[1]}, this wstrace reads {VERSION[0]}"
        if self.need:
            return f"it needs features that this wstrace lacks: {', '.join(self.need)}"
        known = self.page_size in (0, *PAGE_SIZES)  # 0: whoever wrote it did not know
        return "" if known else f"its pages have {self.page_size:,} B, as on no machine"

    def pack(self) -> bytes:
        """The body as bytes."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "version"}
        command, room = [], 64 << 10
        for argument in self.command[:_MOST_WORDS]:
            command.append(text(argument[:room]))
            room = max(0, room - len(argument))
        return packb({"v": list(self.version), **values, "command": command})


def unpack_header(data: Any, limits: Limits = LIMITS) -> Header:
    """Reads the header; a value of another type counts as unknown. Raises FrameError."""
    found, header = unpack_map(data, limits), Header()
    version = found.get("v")
    if isinstance(version, list) and version and all(type(part) is int for part in version):
        header.version = version[0], version[1] if len(version) > 1 else 0
    for name in header.__slots__:
        value: Any = found.get(name)
        kind: Any = type(getattr(header, name))
        if name in ("boot_id", "writer"):
            value = _words([value])[0]
        elif isinstance(value, list):
            value = _words(value)
        elif name in ("id", "prev") and isinstance(value, bytes):
            kind, value = bytes, value[:8]
        if type(value) is kind and (kind is not int or 0 <= value <= MAX_TIME):
            setattr(header, name, value)
    return header


def _words(values: list[Any]) -> list[str]:
    """The values as text; bytes are a path that is not UTF-8, and anything else is ""."""
    texts = (value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value for value in values)
    return [value if isinstance(value, str) else "" for value in texts]


def announced_rows(value: Any) -> dict[str, list[list[str]]]:
    """{stream: [[column, type, semantic]...]} from a value that may be anything; malformed parts are left out."""
    if not isinstance(value, dict):
        return {}
    return {
        name: [row for row in rows if isinstance(row, list) and len(row) >= 3 and all(isinstance(x, str) for x in row)]
        for name, rows in value.items()
        if isinstance(rows, list)
    }


def unpack_strings(data: Any, limits: Limits = LIMITS) -> tuple[NDArray[Any], list[str]]:
    """(ids, names) of a STRINGS body; names are cut where no recorder goes on. Raises FrameError."""
    body, rows, names = Body(data, limits), Rows(), list[str]()
    for key in body.map():
        if key == "s":
            names = [body.text()[:MOST_NAME] for _ in range(body.array(limits.strings))]
        elif key == "c":
            _columns(body, rows, "id".__eq__)
        else:
            _row_key(body, key, rows)
    body.end()
    ids = rows.columns.get("id")
    if ids is None or len(ids) != len(names) or ids.dtype != "<u4":
        raise FrameError("names without ids")
    return ids, names


@dataclass(slots=True)
class Rows:
    """Rows of an EVENTS, SNAPSHOT or MAPPINGS frame. Only requested columns are decoded.

    unreadable: columns of a type, filter or codec that this reader does not know.
    """

    stream: str = ""
    n: int = 0
    window: tuple[int, int] = (0, MAX_TIME)
    lost: int = 0
    header: dict[str, Any] = field(default_factory=dict)
    columns: Columns = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


def unpack_rows(data: Any, wanted: Callable[[str], bool] = lambda _: True, limits: Limits = LIMITS) -> Rows:
    """The rows of a body, with the columns for which `wanted` returns True. Raises FrameError."""
    body, rows = Body(data, limits), Rows()
    for key in body.map():
        if key != "c":
            _row_key(body, key, rows)
        else:
            _columns(body, rows, wanted)
    body.end()
    return rows


def peek_rows(data: Any, limits: Limits = LIMITS) -> Rows:
    """Stream, n and window from a body's first bytes, without its columns; unreadable fields keep their defaults."""
    rows = Rows()
    try:
        body = Body(memoryview(data)[:PEEK_BYTES], limits)
        for key in body.map():
            if key == "c":
                break
            _row_key(body, key, rows)
    except FrameError:
        pass
    return rows


def _row_key(body: Body, key: str, rows: Rows) -> None:
    if key == "n":
        rows.n = body.uint(body.limits.rows)
    elif key == "s":
        rows.stream = body.text()
    elif key == "lost":
        rows.lost = body.uint()
    elif key == "t":
        value = body.value()
        ends = value if isinstance(value, list) and len(value) == 2 else [value, value]
        if all(type(end) is int and 0 <= end <= MAX_TIME for end in ends):
            rows.window = (ends[0], ends[1])
            rows.header["t"] = ends[0]
    elif key in ("part", "pid", "pages", "host"):
        rows.header[key] = body.uint(_U32 if key == "pid" else MAX_TIME)
    elif key in ("snap", "last"):
        value = body.scalar()
        rows.header[key] = value is True if key == "last" else value
    else:
        body.skip()


def _columns(body: Body, rows: Rows, wanted: Callable[[str], bool]) -> None:
    if rows.columns:
        raise FrameError("columns twice")
    decoded = count = 0
    for name in body.map():
        count += 1
        if count > body.limits.columns:
            raise FrameError(f"more than {body.limits.columns} columns")
        if not wanted(name):
            body.skip()
            continue
        array = col.decode(body, rows.n)
        if array is None:
            rows.unreadable.append(name)
            continue
        rows.columns[name] = array
        decoded += array.nbytes
        if decoded > body.limits.frame_decoded:
            raise FrameError(f"more than {body.limits.frame_decoded:,} decoded bytes")


def unpack_map(data: Any, limits: Limits = LIMITS) -> dict[str, Any]:
    """The keys and values of a body of bounded size, as of a mark. Raises FrameError."""
    body = Body(data, limits)
    value = body.value()
    body.end()
    if not isinstance(value, dict):
        raise FrameError("a body that is no map")
    return value


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
    rows = np.zeros(len(page.entries), _INDEX_ROW)
    for name, byte in _INDEX_FIXED.items():
        rows[name] = byte
    for name, column in zip(_INDEX_COLUMNS, page.entries.T, strict=True):
        rows[name] = column
    more: dict[str, Any] = {}
    if page.streams:
        columns = {"stream": page.stream.astype("<u2"), "pids": page.pids.astype("<u8")}
        more = {"s": list(page.streams), "c": col.encode_all(columns)}
    rest = packb(more)[1:]
    return bytes([0x81 + len(more)]) + _INDEX_START + len(rows).to_bytes(4, "big") + rows.tobytes() + rest


def unpack_index(data: Any, limits: Limits = LIMITS) -> IndexPage:
    """Reads the page in an INDEX body, which begins with the entries in their fixed widths. Raises FrameError."""
    n = int.from_bytes(data[_INDEX_HEAD_BYTES - 4 : _INDEX_HEAD_BYTES], "big")
    end = _INDEX_HEAD_BYTES + n * _INDEX_ROW.itemsize
    if bytes(data[1 : _INDEX_HEAD_BYTES - 4]) != _INDEX_START or n > INDEX_ENTRIES or end > len(data):
        raise FrameError("an index that does not begin with its entries")
    rows = np.frombuffer(data, _INDEX_ROW, n, _INDEX_HEAD_BYTES)
    if not all((rows[name] == byte).all() for name, byte in _INDEX_FIXED.items()):
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
    entries = np.stack([rows[name].astype("<u8") for name in _INDEX_COLUMNS], axis=1)
    return IndexPage(entries, streams, stream, found["pids"])


@dataclass(slots=True)
class End:
    """END: where the index pages are, and the sums."""

    pages: list[int] = field(default_factory=list)
    frames: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    ledger: dict[str, int] = field(default_factory=dict)
    clean: bool = False


def unpack_end(data: Any, limits: Limits = LIMITS) -> End:
    """Reads the body of the END frame. Raises FrameError."""
    found = unpack_map(data, limits)
    pages: Any = found.get("index")
    frames: Any = found.get("frames")
    if not isinstance(pages, list) or not all(type(n) is int and 0 <= n <= MAX_TIME for n in [*pages, frames]):
        raise FrameError("an end without the places of its index")
    ledger, clean = counts(found.get("ledger")), found.get("clean") is True
    return End(pages, frames, counts(found.get("rows")), ledger, clean)


def counts(value: Any) -> dict[str, int]:
    """The integer values of a map, by name."""
    if not isinstance(value, dict):
        return {}
    return {name: n for name, n in value.items() if type(n) is int}
