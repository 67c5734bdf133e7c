"""Sends every page fault as an OTLP log record, whose protobuf bytes are built from columns without the SDK.

Rows whose texts (file, file of the instruction, kind, access) have the same length have records of the same length: a
template of bytes is repeated, and the columns are written into it. Integers are varints padded to their full width,
which every decoder accepts (protobuf encoding guide: a varint may use more bytes than it needs).

Source: opentelemetry-proto 1.9, logs/v1/logs.proto and common/v1/common.proto.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch
from wstrace.schema import FAULT_ACCESS_KNOWN, FAULT_EXECUTE, FAULT_MAJOR, FAULT_WRITE
from wstrace_otel import names
from wstrace_otel.correlation import span_intervals
from wstrace_otel.export.events import access, other_columns
from wstrace_otel.export.processes import file_name, kind_name
from wstrace_otel.export.resource import message
from wstrace_otel.transport.batch_sender import BatchLimits
from wstrace_otel.transport.providers import version

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from wstrace_otel.transport.own_providers import OwnProviders

#: The most requests that wait, and the seconds for which a batch waits for room.
REQUESTS_QUEUED, ROOM_SECONDS = 8, 1.0

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_TEXT_FLAGS = FAULT_MAJOR | FAULT_ACCESS_KNOWN | FAULT_WRITE | FAULT_EXECUTE
#: Field numbers of LogRecord.
_SEVERITY, _TEXT, _ATTRIBUTES, _EVENT = 2, 3, 6, 12


def varint(n: int) -> bytes:
    """A number as a protobuf varint."""
    found = bytearray()
    while n > 0x7F:
        found.append(n & 0x7F | 0x80)
        n >>= 7
    found.append(n)
    return bytes(found)


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field: text, bytes or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def text_attribute(name: str, value: str) -> bytes:
    """A text attribute, KeyValue {key, AnyValue {string_value}}, as a field of a LogRecord."""
    return field(_ATTRIBUTES, field(1, name.encode()) + field(2, field(1, value.encode())))


def _open_attribute(name: str, value: bytes, blank: int) -> bytes:
    """An attribute up to the bytes `value` of its AnyValue, after which each row writes `blank` bytes of its own."""
    size = len(value) + blank
    pair = field(1, name.encode()) + b"\x12" + varint(size) + value
    return varint(_ATTRIBUTES << 3 | 2) + varint(len(pair) + blank) + pair


class Template:
    """The bytes of a record, and the places in it that differ from row to row."""

    def __init__(self) -> None:
        self._parts = bytearray()
        self._places: list[tuple[int, NDArray[np.uint8]]] = []

    def add(self, constant: bytes, column: NDArray[np.uint8] | None = None) -> None:
        """Appends bytes that are equal in every row, then a column of bytes, shape (n, width)."""
        self._parts += constant
        if column is not None:
            self._places.append((len(self._parts), column))
            self._parts += bytes(column.shape[1])

    def records(self, n: int) -> NDArray[np.uint8]:
        """n records, each as a field of ScopeLogs (log_records = 2); shape (n, length)."""
        head = b"\x12" + varint(len(self._parts))
        rows = np.empty((n, len(head) + len(self._parts)), np.uint8)
        rows[:] = np.frombuffer(head + bytes(self._parts), np.uint8)
        for at, column in self._places:
            rows[:, len(head) + at : len(head) + at + column.shape[1]] = column
        return rows


def fixed64(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The little-endian bytes of u64 values, shape (n, 8)."""
    return np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(-1, 8)


def padded_varint(values: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """Varints of `width` bytes each, shape (n, width); 5 bytes hold 32 bits."""
    shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
    found = ((values.astype(np.uint64)[:, None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    found[:, :-1] |= 0x80
    return found


def hex64(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The 16 hexadecimal digits of each u64, shape (n, 16)."""
    big = np.ascontiguousarray(values, ">u8").view(np.uint8).reshape(-1, 8)
    found = np.empty((len(big), 16), np.uint8)
    found[:, 0::2], found[:, 1::2] = _HEX[big >> 4], _HEX[big & 15]
    return found


class BulkLogs:
    """Sends every page fault as a log record.

    Args:
        providers: provides the connection and the queue.
        resource_of: the Resource of a process by its pid.
        offset: the nanoseconds to add to a time of the records' clock for wall time.
    """

    def __init__(
        self, providers: OwnProviders, resource_of: Callable[[int], Resource], offset: Callable[[int], int]
    ) -> None:
        connection = providers.connection("logs")
        self._encoder = Encoder(resource_of, offset, connection.max_bytes, version())
        self._sender = providers.sender(
            "bulk",
            lambda requests: connection.send(requests[0][0]),
            BatchLimits(REQUESTS_QUEUED, 1, 1.0),
            records_in=lambda request: request[1],
        )
        self._sender.start()

    def add_faults(self, batch: Batch) -> None:
        """Queues the requests of a batch; waits for room, so that a slow receiver fills the exporter's queue."""
        for body, records in self._encoder.payloads(batch):
            self._sender.put((body, records), wait=ROOM_SECONDS)

    def add_mappings(self, batch: Batch) -> None:
        """Does nothing: each record names its file."""

    def tick(self) -> None:
        """Does nothing: requests are queued at once."""

    def close(self) -> None:
        """Does nothing: everything is queued."""


class Encoder:
    """Encodes batches as OTLP requests, and caches the encoded texts.

    Args:
        resource_of: the Resource of a process by its pid.
        offset: the nanoseconds to add to a time of the records' clock for wall time.
        max_bytes: the most bytes of a request before compression.
        version: the version of the instrumentation scope.
    """

    MAX_TEXTS = 1 << 16

    def __init__(
        self, resource_of: Callable[[int], Resource], offset: Callable[[int], int], max_bytes: int, version: str = ""
    ) -> None:
        self._resource_of, self._offset, self._max_bytes = resource_of, offset, max_bytes
        self._scope = field(1, field(1, names.SCOPE.encode()) + field(2, version.encode()))
        self._schema = field(3, names.SCHEMA_URL.encode())
        self._texts: dict[int, bytes] = {}

    def payloads(self, batch: Batch) -> Iterator[tuple[bytes, int]]:
        """Yields (the body of an OTLP logs request, the number of its records) for a batch of page faults."""
        for pid in distinct(batch["pid"]).tolist():
            rows = batch.take(batch["pid"] == pid) if (batch["pid"] != pid).any() else batch
            head = field(1, bytes(message(self._resource_of(pid)).SerializeToString()))
            room = self._max_bytes - len(head) - len(self._scope) - len(self._schema) - 64
            for body, n in _cut(self._records(rows), room):
                yield field(1, head + field(2, self._scope + body + self._schema)), n

    def _records(self, batch: Batch) -> Iterator[NDArray[np.uint8]]:
        """Yields the records of one process, grouped by their length, shape (n, length) each."""
        n = len(batch)
        zero = np.zeros(n, np.uint8)
        pc_file, file, kind = (batch.columns.get(name, zero) for name in ("pc_file", "file", "kind"))
        index, spans = span_intervals.assign(batch)
        # What determines the texts, in one number: flags (5 bits), kind (4), has a span (1), two file codes (21 each).
        like = (batch["flags"] & _TEXT_FLAGS).astype(np.uint64)
        like |= kind.astype(np.uint64) << np.uint64(5) | (index >= 0).astype(np.uint64) << np.uint64(9)
        like |= file.astype(np.uint64) << np.uint64(10) | pc_file.astype(np.uint64) << np.uint64(31)
        keys, first, text_of = np.unique(like, return_index=True, return_inverse=True)
        texts = [self._text(batch, key, row) for key, row in zip(keys.tolist(), first.tolist(), strict=True)]
        # What determines the layout of a record: the length of its texts, its type, and whether it has a span.
        shape = np.array([len(text) for text in texts], np.int64) << 2
        shape |= (keys & np.uint64(FAULT_MAJOR)).astype(np.int64) << 1
        shape |= (keys >> np.uint64(9) & np.uint64(1)).astype(np.int64)
        ids = b"".join(w.trace_id.to_bytes(16, "big") + w.span_id.to_bytes(8, "big") for w in spans)
        columns, others = self._columns(batch), _others(batch)
        places = np.frombuffer(ids, np.uint8).reshape(-1, 24)
        row_shape = shape[text_of]
        order = np.argsort(row_shape, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(row_shape[order])) + 1) if n else ():
            same = np.flatnonzero(shape == row_shape[rows[0]])
            table = np.frombuffer(b"".join([texts[i] for i in same.tolist()]), np.uint8).reshape(len(same), -1)
            template = Template()
            self._fixed(template, rows, columns, major=bool(batch["flags"][rows[0]] & FAULT_MAJOR))
            for constant, column in others:
                template.add(constant, column[rows])
            template.add(b"", table[np.searchsorted(same, text_of[rows])])
            if index[rows[0]] >= 0:
                place = places[index[rows]]
                template.add(b"\x4a\x10", place[:, :16])
                template.add(b"\x52\x08", place[:, 16:])
                template.add(b"\x45\x01\x00\x00\x00")  # sampled
            yield template.records(len(rows))

    def _columns(self, batch: Batch) -> dict[str, NDArray[np.uint8]]:
        """The values that differ from row to row, as bytes of fixed width."""
        times = batch["time_ns"] if "time_ns" in batch else np.full(len(batch), batch.window[1], np.uint64)
        found = {"time": fixed64(times.astype(np.int64) + self._offset(batch.window[1]))}
        found["va"], found["pc"] = hex64(batch["va"]), hex64(batch["pc"])
        if "tid" in batch:
            found["tid"] = padded_varint(batch["tid"], 5)
        return found

    def _fixed(self, template: Template, rows: NDArray[np.intp], columns: dict[str, NDArray[np.uint8]], *,
               major: bool) -> None:  # fmt: skip
        # Protobuf tags: 0x09 time (fixed64), 0x59 observed time (fixed64), 0x4a trace id, 0x52 span id, 0x45 flags
        # (fixed32).
        template.add(b"\x09", columns["time"][rows])
        template.add(b"\x59" + time.time_ns().to_bytes(8, "little"))
        template.add(_MAJOR_HEAD if major else _MINOR_HEAD)
        template.add(_ADDRESS, columns["va"][rows])
        template.add(_INSTRUCTION, columns["pc"][rows])
        template.add(_WEIGHT)
        if "tid" in columns:
            template.add(_THREAD, columns["tid"][rows])

    def _text(self, batch: Batch, key: int, row: int) -> bytes:
        """The text attributes of a row, as in events.fault_attributes; rows with an equal key have equal texts."""
        found = self._texts.get(key)
        if found is None:
            if len(self._texts) >= self.MAX_TEXTS:
                self._texts.clear()
            found = self._texts[key] = _texts(batch, row)
        return found


def _cut(records: Iterator[NDArray[np.uint8]], room: int) -> Iterator[tuple[bytes, int]]:
    """Yields (joined records, their number), each of at most `room` bytes unless a single record is larger."""
    parts: list[bytes] = []
    size = count = 0
    for rows in records:
        length = rows.shape[1]
        done = 0
        while done < len(rows):
            fits = min(len(rows) - done, (room - size) // length)
            if fits <= 0 and count:
                yield b"".join(parts), count
                parts, size, count = [], 0, 0
                continue
            taken = rows[done : done + max(fits, 1)]
            parts.append(taken.tobytes())
            size, count, done = size + taken.size, count + len(taken), done + len(taken)
    if count:
        yield b"".join(parts), count


def _texts(batch: Batch, row: int) -> bytes:
    found = b""
    if "file" in batch:
        found += text_attribute(names.FILE_PATH, file_name(batch.strings, int(batch["file"][row])))
    if "pc_file" in batch:
        found += text_attribute(names.INSTRUCTION_FILE, file_name(batch.strings, int(batch["pc_file"][row])))
    if "kind" in batch:
        found += text_attribute(names.KIND, kind_name(int(batch["kind"][row])))
    if known := access(int(batch["flags"][row])):
        found += text_attribute(names.ACCESS, known)
    return found


def _others(batch: Batch) -> list[tuple[bytes, NDArray[np.uint8]]]:
    """(bytes that are equal in every row, bytes of each row) for the numeric columns of events.other_columns."""
    found = []
    for column in other_columns(batch):
        name, values = names.FAULT_COLUMN + column.name, batch[column.name]
        if column.type == "u64" and column.semantic != "str":
            found.append((_open_attribute(name, b"\x0a\x120x", 16), hex64(values)))
        elif column.semantic != "str":
            found.append((_open_attribute(name, b"\x18", 10), padded_varint(values.astype(np.int64), 10)))
    return found


def _head(severity: int, text: bytes, kind: str) -> bytes:
    """The severity, event name and type of a record, which depend on the type of the fault only."""
    found = bytes((_SEVERITY << 3, severity)) + field(_TEXT, text) + field(_EVENT, names.EVENT_FAULT.encode())
    return found + text_attribute(names.FAULT_TYPE, kind)


_MINOR_HEAD, _MAJOR_HEAD = _head(5, b"DEBUG", names.MINOR), _head(9, b"INFO", names.MAJOR)
_ADDRESS, _INSTRUCTION = (_open_attribute(name, b"\x0a\x120x", 16) for name in (names.ADDRESS, names.INSTRUCTION))
_WEIGHT, _THREAD = _open_attribute(names.WEIGHT, b"\x18\x01", 0), _open_attribute(names.THREAD, b"\x18", 5)
