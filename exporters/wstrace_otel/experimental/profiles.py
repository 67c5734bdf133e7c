"""Sends OTLP profiles (v1development, experimental): the number of faults by instruction, counted from columns.

A sample is a distinct (instruction, touched file, kind, type, span, stacks if they were asked for) with its number of
faults. Index 0 of every table is the zero value.

Source: opentelemetry-proto, profiles/v1development/profiles.proto.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.frames import Frame, Frames
from wstrace.analysis.symbols import MappingTable
from wstrace.analysis.tally import group
from wstrace.batch import Batch, Dictionary
from wstrace.errors import OutputError
from wstrace.ledger import Ledger
from wstrace.schema import FAULT_MAJOR, HOW_BORROWED
from wstrace_otel import names
from wstrace_otel.correlation import SpanInterval, span_intervals
from wstrace_otel.export.processes import file_name, kind_name
from wstrace_otel.export.resource import clean, message
from wstrace_otel.transport.batch_sender import BatchLimits

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from wstrace_otel.transport.own_providers import OwnProviders

#: Seconds between two profiles.
PROFILE_SECONDS = 10.0
#: (pc, pc_mapping, pc_file, file, kind, major, Python stack, native stack, trace id, span id)
Key = tuple[int, int, int, int, int, int, int, int, int, int]
#: kind of a frame -> its type as OpenTelemetry names it
_FRAME_TYPES = {"python": "cpython", "native": "native", "kernel": "kernel"}
_NO_SPAN = SpanInterval(0, 0, 0, 0)
#: The most distinct samples of a process in one profile; faults of further ones are counted as lost.
MAX_SAMPLES = 65_536
#: The most mappings whose bounds are kept.
MAX_MAPPINGS = 65_536


def need() -> Any:
    """The protobuf module of the service that takes profiles. Raises OutputError when they are not installed."""
    try:
        from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2
        from opentelemetry.proto.profiles.v1development import profiles_pb2

        profiles_pb2.Stack  # noqa: B018  absent in earlier drafts, which collectors no longer read
    except (ImportError, AttributeError):
        raise OutputError("OTLP profiles need a package that is not installed or too old",
                          'pip install -U "wstrace[otel]"') from None  # fmt: skip
    return profiles_service_pb2


class ProfileExport:
    """Sends a profile every PROFILE_SECONDS and at the end.

    Args:
        providers: provides the connection and the queue.
        resource_of: the Resource of a process by its pid.
        strings: the session's dictionary.
        wall: converts a time of the records' clock to nanoseconds since the epoch.
        ledger: where faults that exceed MAX_SAMPLES are counted as lost.
        frames: names the frames of stacks; None = samples have the instruction only.
    """

    def __init__(
        self,
        providers: OwnProviders,
        resource_of: Callable[[int], Resource],
        strings: Dictionary,
        wall: Callable[[int], int],
        ledger: Ledger,
        frames: Frames | None = None,
    ) -> None:
        self._resource_of, self._strings, self._wall, self._ledger = resource_of, strings, wall, ledger
        self._profiles = Profiles(frames)
        self._sent_at = time.monotonic()
        connection = providers.connection("profiles")
        self._sender = providers.sender(
            "profiles",
            lambda requests: connection.send(requests[0][0]),
            BatchLimits(8, 1, 1.0),
            records_in=lambda request: request[1],
        )
        self._sender.start()

    def add_faults(self, batch: Batch) -> None:
        """Counts the faults of a batch."""
        self._profiles.add(batch)

    def add_mappings(self, batch: Batch) -> None:
        """Notes where files are mapped."""
        self._profiles.add_mappings(batch)

    def tick(self) -> None:
        """Sends a profile when PROFILE_SECONDS have passed since the last one."""
        if time.monotonic() - self._sent_at >= PROFILE_SECONDS:
            self._send()

    def close(self) -> None:
        """Queues the last profile."""
        self._send()

    def _send(self) -> None:
        self._sent_at = time.monotonic()
        body, faults = self._profiles.take(self._resource_of, self._strings, self._wall)
        if faults:
            self._sender.put((body, faults))
        self._ledger.add(names.LOST, self._profiles.overflowed, "otel.profiles")
        self._profiles.overflowed = 0


class Profiles:
    """Counts faults by sample until take() encodes them.

    Args:
        frames: names the frames of stacks; None = samples have the instruction only.
    """

    def __init__(self, frames: Frames | None = None) -> None:
        self._frames = frames
        self._samples: dict[int, dict[Key, int]] = {}  # pid -> samples
        self._mappings = MappingTable(MAX_MAPPINGS)
        self._first = self._last = 0
        self.overflowed = 0

    def add_mappings(self, batch: Batch) -> None:
        """Notes where files are mapped, so that an instruction's address can be resolved later."""
        self._mappings.add(batch)

    def add(self, batch: Batch) -> None:
        """Counts the faults of a batch of page faults."""
        n = len(batch)
        if not n:
            return
        zero = np.zeros(n, np.uint8)
        pid, pc, mapping, pc_file, file, kind = (
            batch.columns.get(c, zero) for c in ("pid", "pc", "pc_mapping", "pc_file", "file", "kind")
        )
        python, native = (
            batch.columns.get(c, zero) if self._frames is not None else zero for c in ("stack", "native_stack")
        )
        native = np.where(batch.columns.get("native_how", zero) == HOW_BORROWED, 0, native)  # a profile has no marks
        index, used = span_intervals.assign(batch)
        spans = [*used, _NO_SPAN]  # -1, no span, is the last one
        major = (batch["flags"] & FAULT_MAJOR) != 0
        found, counts = group(pid, pc, mapping, pc_file, file, kind, major, python, native, index)
        for of, address, *rest, at, count in zip(*(c.tolist() for c in found), counts.tolist(), strict=True):
            samples = self._samples.setdefault(of, {})
            key = (address & (1 << 64) - 1, *rest, spans[at].trace_id, spans[at].span_id)
            if key not in samples and len(samples) >= MAX_SAMPLES:
                self.overflowed += count
            else:
                samples[key] = samples.get(key, 0) + count
        first, last = batch.window
        self._first = min(self._first or first, first)
        self._last = max(self._last, last)

    def take(self, resource_of: Any, strings: Any, wall: Any) -> tuple[bytes, int]:
        """Encodes all that was counted since the last call.

        Args:
            resource_of: the Resource of a process by its pid.
            strings: the session's dictionary.
            wall: converts a time of the records' clock to nanoseconds since the epoch.

        Returns:
            (the body of a request, the number of faults in it); (b"", 0) when nothing was counted.
        """
        taken, self._samples = self._samples, {}
        if not taken:
            return b"", 0
        service = need()
        request = service.ExportProfilesServiceRequest()
        tables = _Tables(request.dictionary, strings, self._mappings, self._frames)
        total = 0
        for pid, samples in taken.items():
            at = request.resource_profiles.add()
            at.resource.CopyFrom(message(resource_of(pid)))
            scope = at.scope_profiles.add()
            scope.scope.name = names.SCOPE
            profile = scope.profiles.add()
            profile.profile_id = os.urandom(16)
            profile.time_unix_nano = wall(self._first)
            profile.duration_nano = max(0, self._last - self._first)
            profile.sample_type.type_strindex = tables.string("page_faults")
            profile.sample_type.unit_strindex = tables.string("{fault}")
            for key, count in samples.items():
                tables.sample(profile.samples.add(), key, count)
                total += count
        self._first = self._last = 0
        return bytes(request.SerializeToString()), total


class _Tables:
    """The tables that samples refer to, with distinct rows."""

    def __init__(self, dictionary: Any, strings: Any, mappings: MappingTable, frames: Frames | None) -> None:
        self._dictionary, self._strings, self._known, self._frames = dictionary, strings, mappings, frames
        self._index: dict[Any, int] = {("string", ""): 0}
        dictionary.string_table.append("")
        for table in (dictionary.mapping_table, dictionary.location_table, dictionary.function_table,
                      dictionary.link_table, dictionary.attribute_table, dictionary.stack_table):  # fmt: skip
            table.add()

    def string(self, text: str) -> int:
        """The index of a text in string_table."""
        index = self._index.get(("string", text))
        if index is None:
            index = self._index["string", text] = len(self._dictionary.string_table)
            self._dictionary.string_table.append(text)
        return index

    def _row(self, key: Any, table: Any) -> tuple[int, Any]:
        """(index, the new row to fill, or None when the row exists)."""
        index = self._index.get(key)
        if index is not None:
            return index, None
        self._index[key] = len(table)
        return len(table), table.add()

    def attribute(self, name: str, value: str) -> int:
        """The index of an attribute in attribute_table."""
        index, row = self._row(("attribute", name, value), self._dictionary.attribute_table)
        if row is not None:
            row.key_strindex = self.string(name)
            row.value.string_value = value
        return index

    def mapping(self, mapping: int, file: int) -> int:
        """The index of a mapping in mapping_table."""
        index, row = self._row(("mapping", mapping, file), self._dictionary.mapping_table)
        if row is not None:
            row.filename_strindex = self.string(file_name(self._strings, file))
            _, known = self._known.find(np.array([mapping], np.uint32))
            if len(known["id"]):
                row.memory_start, row.memory_limit = int(known["start"][0]), int(known["end"][0])
                row.file_offset = int(known["offset"][0])
            if len(known["id"]) and (build := self._strings[int(known["build_id"][0])]):
                row.attribute_indices.append(self.attribute("process.executable.build_id.gnu", build))
        return index

    def stack(self, address: int, mapping: int, file: int, python: int = 0, native: int = 0) -> int:
        """The index in stack_table of a stack: the instruction, then the frames that are known, innermost first."""
        index, row = self._row(("stack", address, mapping, file, python, native), self._dictionary.stack_table)
        if row is not None:
            at, place = self._row(("location", address, mapping, file), self._dictionary.location_table)
            if place is not None:
                place.address, place.mapping_index = address, self.mapping(mapping, file)
            row.location_indices.append(at)
            if self._frames is not None:
                frames = self._frames.interleaved(python, native)
                # The innermost native frame is the instruction, which stands already.
                row.location_indices.extend(map(self.frame, frames[1:] if native else frames))
        return index

    def frame(self, frame: Frame) -> int:
        """The index of a frame in location_table."""
        index, row = self._row(frame, self._dictionary.location_table)
        if row is not None:
            if frame.kind in _FRAME_TYPES:
                row.attribute_indices.append(self.attribute(names.FRAME_TYPE, _FRAME_TYPES[frame.kind]))
            if frame.kind == "native":
                row.address, row.mapping_index = frame.offset, self.module(frame)
            line = row.lines.add()
            line.function_index, line.line = self.function(frame), frame.line
        return index

    def module(self, frame: Frame) -> int:
        """The index in mapping_table of the file of a native frame, whose address is the offset in it."""
        index, row = self._row(("module", frame.module, frame.build_id), self._dictionary.mapping_table)
        if row is not None:
            row.filename_strindex = self.string(clean(frame.module))
            if frame.build_id:
                row.attribute_indices.append(self.attribute("process.executable.build_id.gnu", clean(frame.build_id)))
        return index

    def function(self, frame: Frame) -> int:
        """The index of a frame's function in function_table."""
        index, row = self._row(("function", frame.name, frame.file), self._dictionary.function_table)
        if row is not None:
            row.name_strindex, row.filename_strindex = self.string(clean(frame.name)), self.string(clean(frame.file))
        return index

    def link(self, trace_id: int, span_id: int) -> int:
        """The index of a span in link_table, 0 for no span."""
        if not span_id:
            return 0
        index, row = self._row(("link", trace_id, span_id), self._dictionary.link_table)
        if row is not None:
            row.trace_id, row.span_id = trace_id.to_bytes(16, "big"), span_id.to_bytes(8, "big")
        return index

    def sample(self, sample: Any, key: Key, count: int) -> None:
        """Fills a sample message."""
        pc, pc_mapping, pc_file, file, kind, major, python, native, trace_id, span_id = key
        sample.stack_index = self.stack(pc, pc_mapping, pc_file, python, native)
        sample.values.append(count)
        sample.link_index = self.link(trace_id, span_id)
        sample.attribute_indices.extend((
            self.attribute(names.FAULT_TYPE, names.MAJOR if major else names.MINOR),
            self.attribute(names.FILE_PATH, file_name(self._strings, file)),
            self.attribute(names.KIND, kind_name(kind)),
        ))  # fmt: skip
