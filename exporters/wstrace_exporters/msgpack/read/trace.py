"""TraceFile: a recorded trace of one or several files, which may be cut or damaged."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.errors import TraceFileError
from wstrace.ledger import OF_FILES, Ledger
from wstrace.plugins import default_plugins
from wstrace.schema import DTYPES, ID_SPACES, MAPPING, PAGE_FAULT, PROCESS, SEMANTICS, STREAMS, Column, Schema
from wstrace.table import Selection, types_of
from wstrace.trace import Trace
from wstrace.trace_info import TraceInfo
from wstrace_exporters.msgpack.format import frames
from wstrace_exporters.msgpack.format.frames import announced_rows
from wstrace_exporters.msgpack.format.layout import END, EVENTS, LIMITS, SNAPSHOT, VERSION, Limits
from wstrace_exporters.msgpack.read.decoder import Decoder
from wstrace_exporters.msgpack.read.description import combined, hosts_of, is_writers_loss, lacking, trace_info
from wstrace_exporters.msgpack.read.discover import files_of
from wstrace_exporters.msgpack.read.open_parts import OpenParts, session_of
from wstrace_exporters.msgpack.read.part import Part
from wstrace_exporters.msgpack.read.selection import DERIVED_FROM
from wstrace_exporters.msgpack.read.standard_input import StandardInput
from wstrace_exporters.msgpack.storage.urls import Place


class Schemas:
    """Schemas by the name of the stream. A file can add columns to a known stream, but not change a known column.

    Args:
        limits: bounds the announced streams by `free_items`, and the columns of each by `columns`.

    Attributes:
        unknown: semantic that this version does not know -> the columns (stream.column) that have it, whose values are
            read as plain numbers.
        present: stream -> the columns that its rows have, as the marks announce; empty in files of older writers.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._streams: dict[str, Schema] = dict(STREAMS)
        self.unknown: dict[str, list[str]] = {}
        self.present: dict[str, set[str]] = {}

    def __call__(self, name: str) -> Schema:
        """The schema of a stream; without columns when the stream is unknown."""
        return self._streams.get(name) or Schema(name, ())

    def __contains__(self, name: object) -> bool:
        return name in self._streams

    def add(self, announced: dict[str, Any], snapshots: Any = (), essentials: Any = ()) -> None:
        """Adds what a header or a mark `schema` announces; the first announcement of a column counts."""
        for name, rows in announced.items():
            if name not in self._streams and len(self._streams) >= self._limits.free_items:
                return
            schema = self(name)
            known = {column.name for column in schema.columns}
            columns = list(schema.columns)
            for word, kind, semantic in (row[:3] for row in rows):
                if kind in DTYPES and word not in known and len(columns) < self._limits.columns:
                    known.add(word)
                    columns.append(Column(word, "u32" if semantic in ID_SPACES else kind, semantic))
                    if semantic not in SEMANTICS and len(self.unknown) < self._limits.columns:
                        self.unknown.setdefault(semantic, []).append(f"{name}.{word}")
            essential, snapshot = schema.essential, schema.snapshot
            if name not in STREAMS:
                essential, snapshot = essential or _has(essentials, name), snapshot or _has(snapshots, name)
            self._streams[name] = Schema(name, tuple(columns), essential, snapshot, schema.always)

    def add_mark(self, mark: dict[str, Any]) -> None:
        """Adds what a mark announces, if it is a mark `schema`."""
        if mark.get("m") == "schema":
            announced, present = announced_rows(mark.get("schema")), mark.get("present")
            self.add(announced, mark.get("snapshot"), mark.get("essential"))
            words = {word for word in present if isinstance(word, str)} if isinstance(present, list) else set()
            for name in announced.keys() & self._streams.keys():
                known = {column.name for column in self(name).columns}
                self.present.setdefault(name, set()).update(words & known)


def _has(value: Any, name: str) -> bool:
    return isinstance(value, list | tuple) and name in value


def open_trace(
    path: str | Sequence[str],
    *,
    limits: Limits = LIMITS,
    strings: Dictionary | None = None,
    scan: bool = False,
) -> TraceFile:
    """Opens a trace file for reading, with all parts that follow it if the trace was rotated.

    Args:
        path: one file, or several that are read as one trace; "-" is standard input, which is read to its end. Also
            URLs: s3://, gs:// and az://, with wildcards for many parts, and https://.
        limits: the limits past which a frame is bad.
        strings: the dictionary for names; None = a new one.
        scan: whether to check every byte at once, instead of trusting an intact index.

    Returns:
        The trace, which is a context manager that closes its files.

    Raises:
        TraceFileNotFound: there is no such file.
        TraceFileError: a file cannot be read or is no trace; or two files hold the same records.
        Unavailable: the package that an object store needs is not installed.
    """
    given = [path] if isinstance(path, str) or hasattr(path, "__fspath__") else list(path)
    if "-" not in given:
        paths = files_of(str(one) for one in given)
        return TraceFile(paths, limits=limits, strings=strings, scan=scan)
    copy = StandardInput()
    try:
        paths = files_of(copy.path if one == "-" else str(one) for one in given)
        trace = TraceFile(paths, limits=limits, strings=strings, scan=scan)
    except BaseException:
        copy.close()
        raise
    trace.copy = copy
    return trace


class TraceFile(Trace):
    """A recorded trace, of which only tables, sums and the frames' positions are held in memory. A context manager.

    Names are codes into `strings`, and ids of mappings are those in `mappings`; both are valid for all parts.

    Args:
        places: the parts in their order: paths of files, or objects of a store, which are opened when they are used.
        limits, strings, scan: see open_trace().
    """

    #: The copy of standard input that this trace reads, which close() removes.
    copy: StandardInput | None = None
    #: Whether the state of a file with an intact index is determined without checking every byte, as of objects.
    trusting: bool

    def __init__(
        self,
        places: Sequence[Place],
        *,
        limits: Limits = LIMITS,
        strings: Dictionary | None = None,
        scan: bool = False,
    ) -> None:
        self.limits = limits
        if not places:
            raise TraceFileError("no trace file was named")
        self.strings = strings if strings is not None else Dictionary()
        self.parts = OpenParts(places, self.strings, limits, scan=scan)
        self.trusting = self.parts.remote and not scan
        if not self.parts.remote:
            try:
                list(self.parts.with_lookups())
            except BaseException:
                self.parts.close()
                raise
        self._processes: Batch | None = None
        self._schemas: Schemas | None = None
        self._info: tuple[list[dict[str, int]], TraceInfo] | None = None  # with the damage found by then

    @property
    def name(self) -> str:
        """The path of the first part."""
        return self.parts[0].path

    @property
    def header(self) -> frames.Header:
        """The header of the first part."""
        return self.parts[0].header

    @property
    def clean(self) -> bool:
        """Whether every part has its END frame, and no damage was found so far."""
        return all(part.clean for part in self.parts)

    @property
    def state(self) -> str:
        """`clean`, `incomplete` (records were never written), `cut` (the end is missing) or `damaged`.

        The first access checks every byte, at about 1.5 GB per second, unless `trusting` is set, as for objects.
        """
        self._check()
        if any(part.damage.any for part in self.parts):
            return "damaged"
        if not self.clean:
            return "cut"
        return "incomplete" if self.missing or self._written_ledger().get("file_cut") else "clean"

    def _check(self) -> None:
        if not self.trusting:
            for part in self.parts:
                part.check()

    @property
    def missing(self) -> int:
        """The number of records that were never written, as the ledger and the writer's marks say.

        These are records that the exporter accepted and could not write, records that the tracer lost by a failure
        (`lost_tracer`), and records that were unreadable in the file that this file was made of.
        """
        marked = [frames.counts(mark.get("lost")) for mark in self.marks if is_writers_loss(mark)]
        ledger = self._written_ledger()
        unwritten = max(ledger.missing_from("msgpack"), sum(sum(lost.values()) for lost in marked))
        return unwritten + ledger.get("lost_tracer") + ledger.get("file_lost_records")

    def damage(self) -> dict[str, int]:
        """The damage found so far in all parts: the counts of scan.Damage by name."""
        for part, lookups in self.parts.with_lookups():
            part.damage.lost_names = lookups.n_missing
        found = [part.damage.as_dict() for part in self.parts]
        return {name: sum(one[name] for one in found) for name in found[0]}

    def span(self) -> tuple[int, int] | None:
        """(first, last) time of the rows in nanoseconds, or None when no row has a time."""
        entries = np.concatenate([part.entries for part in self.parts])
        timed = entries[np.isin(entries["kind"], (EVENTS, SNAPSHOT)) & (entries["t1"] != 0) & (entries["n"] != 0)]
        return (int(timed["t0"].min()), int(timed["t1"].max())) if len(timed) else None

    def process_names(self) -> dict[int, list[str]]:
        """pid -> the names that its main thread had, in their order; both are bounded by the limits."""
        found: dict[int, list[str]] = {}
        processes = self.processes
        if "pid" in processes and "name" in processes:
            own = processes["tid"] == processes["pid"] if "tid" in processes else np.ones(len(processes), bool)
            codes = np.where(own, processes["name"], 0)
            for pid, code in zip(processes["pid"].tolist(), codes.tolist(), strict=True):
                if pid not in found and len(found) >= self.limits.process_names:
                    continue
                names = found.setdefault(pid, [])
                if code and len(names) < self.limits.names_of_one and self.strings[code] not in names[-1:]:
                    names.append(self.strings[code])
        return found

    @property
    def mappings(self) -> Batch:
        """Every mapping, as one batch of the stream `mapping`."""
        return self.parts.mappings

    @property
    def processes(self) -> Batch:
        """Every process event, as one batch of the stream `process`."""
        if self._processes is None:
            batches = list(self.batches("process"))
            names = [n for n in (batches[0] if batches else ()) if all(n in b for b in batches)]
            columns = {name: np.concatenate([b[name] for b in batches]) for name in names}
            self._processes = Batch(PROCESS, columns, strings=self.strings)
        return self._processes

    @property
    def marks(self) -> list[dict[str, object]]:
        """Every mark in the file (clock, lost, schema, user, facts ...) as a dict: see FORMAT.md."""
        return [mark for _, mark in self._marks]

    @functools.cached_property
    def _marks(self) -> list[tuple[bytes, dict[str, object]]]:
        """Every mark with the session of its part."""
        return [(session_of(part), mark) for part in self.parts for mark in part.marks()]

    @property
    def facts(self) -> dict[str, object]:
        """The last facts of the session that wrote the file, combined if there were several; {} for a cut trace.

        `info` has them as a TraceInfo.
        """
        found = {session: facts for session, mark in self._marks
                 if mark.get("m") == "facts" and isinstance(facts := mark.get("facts"), dict)}  # fmt: skip
        sessions = len(set(map(session_of, self.parts)))
        return next(iter(found.values())) if sessions == 1 and found else combined(list(found.values()), sessions)

    @property
    def info(self) -> TraceInfo:
        """The description of the trace from its header, clock marks and facts, with what the file lacks."""
        self._check()
        damage = [part.damage.as_dict() for part in self.parts]
        if self._info is None or self._info[0] != damage:
            self._info = damage, self._described()
        return self._info[1]

    def _described(self) -> TraceInfo:
        info = self._description()
        state, ledger = self.state, self._written_ledger()
        unread = (
            None if any(part.end is None for part in self.parts) else self._sum(lambda part: part.lost_rows() or {})
        )
        missing, cut = (self.missing, ledger.get("file_lost_records")), bool(ledger.get("file_cut"))
        info.incomplete = lacking(state, unread, missing, self.marks, of_cut=cut) or info.incomplete
        info.hosts = hosts_of(self.marks)
        if not self.facts:
            info.sampled = self._sampled
        return info

    @functools.cached_property
    def _sampled(self) -> int:
        """For how many faults a row of a cut file stands on average; of objects, by the first frame of each part."""
        if "sampled" not in self.schemas.present.get(PAGE_FAULT.name, ()):
            return 1
        name = PAGE_FAULT.name
        batches = self._first_batches(name) if self.trusting else self.batches(name, ["sampled"])
        rows = [batch["sampled"] for batch in batches if "sampled" in batch]
        return round(float(np.concatenate(rows).mean())) if sum(map(len, rows)) else 1

    @property
    def ledger(self) -> Ledger:
        """The ledger in the file; for a cut trace, the recorded rows and kernel losses that its frames show.

        `file_lost_records` counts the records that cannot be read, by stream, and `file_cut` the parts for which that
        number is not known; `file_lost_bytes`, `file_lost_frames` and `file_bad_frames` what is damaged. Every byte is
        checked, as for `state`.
        """
        self._check()
        ledger = self._written_ledger()
        for name, n in self.damage().items():
            if f"file_{name}" in OF_FILES:
                ledger.add(f"file_{name}", n)
        for part in self.parts:
            lost = part.lost_rows()
            ledger.add("file_cut", lost is None)
            for stream, n in (lost or {}).items():
                ledger.add("file_lost_records", n, stream)
        return ledger

    def _written_ledger(self) -> Ledger:
        """The ledger in the file, without the damage of the file itself."""
        found = [part.end.ledger for part in self.parts if part.end is not None and part.end.ledger]
        found += [frames.counts(mark.get("ledger")) for mark in self.marks if mark.get("m") == "ledger"]
        ledger = Ledger(default_plugins().stages)  # the file does not say which of its stages are a loss
        for one in found:
            for stage, who, n in Ledger.from_dict(one).rows():
                ledger.add(stage, n, who)
        if found:
            # What a session that was killed has left is resumed, too: its rows are in the file, but not its ledger.
            if any(part.end is None for part in self.parts):
                for stream, n in self.rows.items():
                    ledger.add("recorded", max(n - ledger.get("recorded", stream), 0), stream)
            return ledger
        for stream, n in self.rows.items():
            ledger.add("recorded", n, stream)
        for stream, n in self.lost.items():
            ledger.add("lost_kernel", n, stream)
        return ledger

    @property
    def rows(self) -> dict[str, int]:
        """stream -> number of rows; a row of a table that several parts repeat counts once."""
        repeated = Counter[str]()
        for _, lookups in self.parts.with_lookups():
            repeated.update(lookups.repeated)
        return dict(self._sum(lambda part: part.rows()) - repeated)

    @property
    def lost(self) -> dict[str, int]:
        """stream -> number of records that the kernel dropped, by the frames."""
        return dict(self._sum(lambda part: part.lost()))

    def _sum(self, of: Callable[[Part], dict[str, int]]) -> Counter[str]:
        total = Counter[str]()
        for part in self.parts:
            total.update(of(part))
        return +total  # without those of no rows

    @property
    def begin_ns(self) -> int:
        """When the trace began, in nanoseconds of the records' clock; --start and --end count from it.

        This is `info.started_ns`: from the facts, else from the first clock mark, else from the first row.
        """
        return self._description().started_ns

    def _description(self) -> TraceInfo:
        return trace_info(self.header, self.facts, self.marks, self.parts[0].begin_ns)

    def present(self, stream: str) -> dict[str, str]:
        """column -> type, for the columns that the file announces as present or that a part's first batch has."""
        found = types_of(self._first_batches(stream))
        present = self.schemas.present.get(stream, set())
        for column in self.schema(stream).columns:
            if present.issuperset(DERIVED_FROM.get(column.name, (column.name,))):
                found.setdefault(column.name, column.type)
        return found

    def _first_batches(self, stream: str) -> Iterator[Batch]:
        """Yields the first batch of each part, because older writers do not announce which columns are present."""
        if stream == MAPPING.name:
            yield self.mappings
            return
        for part, decoder in self.decoders(Selection(stream)):
            batches = map(decoder.batch, part.read(decoder.kinds, decoder.selection))
            yield from itertools.islice((batch for batch in batches if batch is not None and len(batch)), 1)

    def schema(self, name: str) -> Schema:
        """The schema of a stream: the known one with the columns that the file adds, or the one that it announces."""
        return self.schemas(name)

    @property
    def schemas(self) -> Schemas:
        """The schemas of all streams, by name."""
        if self._schemas is None:
            self._schemas = Schemas(self.limits)
            for part in self.parts:
                for mark in part.marks("schema"):
                    self._schemas.add_mark(mark)
        return self._schemas

    def unknown(self) -> dict[str, object]:
        """What this version of wstrace does not know of the file, by kind; {} when it knows everything.

        Returns:
            `version`: the format version, if that is a later one. `frames`: kind -> number of frames of unknown kinds.
            `streams`: streams without a schema. `semantics`: unknown semantic -> columns that have it. `columns`:
            columns of an unknown type, filter or codec in the first frame of a stream.
        """
        for stream in self.rows:
            next(iter(self.batches(stream)), None)
        kinds = np.concatenate([part.entries["kind"] for part in self.parts])
        kinds, counts = np.unique(kinds[kinds > END], return_counts=True)
        version = max(part.header.version for part in self.parts)
        found: dict[str, object] = {
            "version": f"{version[0]}.{version[1]}" if version > VERSION else "",
            "frames": {str(kind): n for kind, n in zip(kinds.tolist(), counts.tolist(), strict=True)},
            "streams": sorted(name for name in self.rows if name not in self.schemas),
            "semantics": self.schemas.unknown,
            "columns": sorted({name for part in self.parts for name in part.unreadable}),
        }
        return {name: value for name, value in found.items() if value}

    def _lost(self) -> str:
        ledger = self.ledger
        if ledger.get("file_cut"):
            return f"{ledger.lost:,} known to be lost, how many more is not known"
        return f"{ledger.lost:,} lost"

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, selection: Selection) -> Iterator[Batch]:
        """Yields the batches of a selection, one per frame in the order of the file, after one of all mappings."""
        if selection.stream in (None, "mapping"):
            whole, columns, pids = self.mappings, selection.columns, selection.pids
            if pids is not None:
                whole = whole.take(np.isin(whole["pid"], pids))
            if len(whole):
                chosen = {name: whole[name] for name in (whole if columns is None else columns) if name in whole}
                yield Batch(MAPPING, chosen, strings=self.strings, source="replay", rows=len(whole))
            if selection.stream == "mapping":
                return
        for part, decoder in self.decoders(selection):
            for frame in part.read(decoder.kinds, selection):
                batch = decoder.batch(frame)
                if batch is not None and (len(batch) or batch.lost):
                    yield batch

    def decoders(self, selection: Selection) -> Iterator[tuple[Part, Decoder]]:
        """Yields the parts that can hold rows of a selection, each with a decoder of its frames."""
        for part, lookups in self.parts.holding(selection):
            yield part, Decoder(part, lookups, selection, self.schema, self.strings)

    def close(self) -> None:
        """Closes the files."""
        self.closed = True
        self.parts.close()
        if self.copy is not None:
            self.copy.close()
