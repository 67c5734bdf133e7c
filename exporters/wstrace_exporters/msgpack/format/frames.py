"""Bodies of frames: what the writer packs and the reader unpacks, one pair of functions per kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from wstrace.schema import MOST_NAME, PAGE_SIZES, Schema
from wstrace_exporters.msgpack.format import columns as col
from wstrace_exporters.msgpack.format.layout import LIMITS, VERSION, FrameError, Limits
from wstrace_exporters.msgpack.format.values import Body, packb, text

MAX_TIME, _U32 = (1 << 64) - 1, (1 << 32) - 1
#: The words of a command that a header has.
_MOST_WORDS = 5000
#: The bytes at a body's start that are searched for stream, n and t before the whole body is read.
PEEK_BYTES = 512


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
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
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
