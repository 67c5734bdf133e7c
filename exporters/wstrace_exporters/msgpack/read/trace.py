"""TraceFile: a recorded trace of one or several files, which may be cut or damaged."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.clock import ClockAnchor
from wstrace.errors import TraceFileError
from wstrace.ledger import OF_FILES, Ledger
from wstrace.plugins import default_plugins
from wstrace.schema import DTYPES, ID_SPACES, PAGE_FAULT, PROCESS, STREAMS, Column, Schema
from wstrace.table import Selection
from wstrace.text import plural
from wstrace.trace import Trace
from wstrace.trace_info import Level, TraceInfo, Usage
from wstrace_exporters.msgpack.format import frames
from wstrace_exporters.msgpack.format.frames import Header, announced_rows
from wstrace_exporters.msgpack.format.layout import END, LIMITS, VERSION, Limits
from wstrace_exporters.msgpack.read.decoder import DERIVED_FROM, Decoder
from wstrace_exporters.msgpack.read.discover import files_of
from wstrace_exporters.msgpack.read.input import StandardInput
from wstrace_exporters.msgpack.read.open_parts import OpenParts
from wstrace_exporters.msgpack.storage.urls import Place

#: A larger time or offset is not plausible and is ignored.
_LARGEST = 1 << 62


def announced(marks: Iterable[Mapping[str, Any]], limits: Limits) -> tuple[dict[str, Schema], dict[str, set[str]]]:
    """What the marks `schema` among these say; the first announcement of a column counts.

    They can add columns to a known stream, but not change a known column.

    Args:
        marks: any marks.
        limits: bounds the announced streams by `free_items`, and the columns of each by `columns`.

    Returns:
        stream -> its schema, also of the streams known here; stream -> the columns that its rows have.
    """
    streams, present = dict(STREAMS), dict[str, set[str]]()
    for mark in marks:
        if mark.get("m") != "schema":
            continue
        here, essential, snapshot = (
            [one for one in (mark[key] if isinstance(mark.get(key), list) else []) if isinstance(one, str)]
            for key in ("present", "essential", "snapshot")
        )
        for name, rows in announced_rows(mark.get("schema")).items():
            schema = streams.get(name, Schema(name, ()))
            if name not in streams and len(streams) >= limits.free_items:
                break
            columns = {column.name: column for column in schema.columns}
            for word, kind, semantic in (row[:3] for row in rows):
                if kind in DTYPES and word not in columns and len(columns) < limits.columns:
                    columns[word] = Column(word, "u32" if semantic in ID_SPACES else kind, semantic)
            if name not in STREAMS:
                schema = schema._replace(essential=schema.essential or name in essential,
                                         snapshot=schema.snapshot or name in snapshot)  # fmt: skip
            streams[name] = schema._replace(columns=tuple(columns.values()))
            present.setdefault(name, set()).update(columns.keys() & here)
    return streams, present


def open_trace(
    path: str | Sequence[str],
    *,
    limits: Limits = LIMITS,
    strings: Dictionary | None = None,
    several_boots: bool = False,
) -> TraceFile:
    """Opens a trace file for reading, with all parts that follow it if the trace was rotated.

    Args:
        path: one file, or several that are read as one trace; "-" is standard input, which is read to its end. Also
            URLs: s3://, gs:// and az://, with wildcards for many parts.
        limits: the limits past which a frame is bad.
        strings: the dictionary for names; None = a new one.
        several_boots: whether the files may come from several boots and hosts, with clocks of their own (`convert`).

    Returns:
        The trace, which is a context manager that closes its files.

    Raises:
        TraceFileNotFound: there is no such file.
        TraceFileError: a file cannot be read or is no trace; or two files hold the same records.
        Unavailable: the package that an object store needs is not installed.
    """
    given = [path] if isinstance(path, str) or hasattr(path, "__fspath__") else list(path)
    with ExitStack() as undo:
        copy = undo.enter_context(closing(StandardInput())) if "-" in given else None
        places = files_of(copy.path if copy is not None and one == "-" else str(one) for one in given)
        trace = TraceFile(places, limits=limits, strings=strings, several_boots=several_boots)
        trace.copy = copy
        undo.pop_all()
    return trace


class TraceFile(Trace):
    """A recorded trace, of which only tables, sums and the frames' positions are held in memory. A context manager.

    Names are codes into `strings`, and ids of mappings are those in `mappings`; both are valid for all parts.

    Args:
        places: the parts in their order: paths of files, or objects of a store, which are opened when they are used.
        limits, strings, several_boots: see open_trace().
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
        several_boots: bool = False,
    ) -> None:
        self.limits = limits
        if not places:
            raise TraceFileError("no trace file was named")
        self.strings = strings if strings is not None else Dictionary()
        self.parts = OpenParts(places, self.strings, limits, several_boots=several_boots)
        self.trusting = self.parts.remote
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
        return "incomplete" if self.missing or self.missing_parts or self._written_ledger().get("file_cut") else "clean"

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
        marked = sum(sum(frames.counts(mark.get("lost")).values()) for mark in self.marks if is_writers_loss(mark))
        ledger = self._written_ledger()
        unwritten = max(ledger.missing_from("msgpack"), marked)
        return unwritten + ledger.get("lost_tracer") + ledger.get("file_lost_records")

    @functools.cached_property
    def missing_parts(self) -> list[str]:
        """Which parts are not there, in words: the first ones of a session, and others."""
        first = later = 0
        ids = {part.file_id for part in self.parts}
        for session in {part.session for part in self.parts}:
            parts = [part for part in self.parts if part.session == session]
            low, high = (pick(parts, key=lambda part: part.header.part) for pick in (min, max))
            if low.header.prev not in ids and "recording" not in self.facts:
                first += low.header.part
            later += high.header.part - low.header.part + 1 - len(parts)
            later += high.end is not None and not (high.end.ledger or any(high.marks("ledger")))  # another one follows
        words = {f"the first {plural(first, 'part')} missing, as keep removes them": first,
                 f"at least {plural(later, 'part')} missing": later}  # fmt: skip
        return [text for text, n in words.items() if n > 0]

    def damage(self) -> dict[str, int]:
        """The damage found so far in all parts: the counts of scan.Damage by name."""
        for part, ids in self.parts.with_ids():
            part.damage.lost_names = ids.n_missing
        found = [part.damage.as_dict() for part in self.parts]
        return {name: sum(one[name] for one in found) for name in found[0]}

    def span(self) -> tuple[int, int] | None:
        """(first, last) time of the rows in nanoseconds, or None when no row has a time."""
        spans = [span for part in self.parts if (span := part.span()) is not None]
        return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None

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

    @functools.cached_property
    def processes(self) -> Batch:
        """Every process event, as one batch of the stream `process`."""
        batches = list(self.batches(PROCESS.name))
        names = [n for n in (batches[0] if batches else ()) if all(n in b for b in batches)]
        return Batch(
            PROCESS, {name: np.concatenate([b[name] for b in batches]) for name in names}, strings=self.strings
        )

    @functools.cached_property
    def marks(self) -> list[dict[str, object]]:
        """Every mark in the file (clock, lost, schema, user, facts ...) as a dict: see FORMAT.md."""
        return [mark for part in self.parts for mark in part.marks()]

    @property
    def facts(self) -> dict[str, object]:
        """The last facts of the session that wrote the file, combined if there were several; {} if there are none.

        `info` has them as a TraceInfo.
        """
        last: dict[bytes, dict[str, object]] = {part.session: {} for part in self.parts}
        for part in self.parts:
            for mark in part.marks("facts"):
                if mark.get("m") == "facts" and isinstance(facts := mark.get("facts"), dict):
                    last[part.session] = facts
        found = [facts for facts in last.values() if facts]
        if len(last) == 1 or not found:
            return found[0] if found else {}
        together = TraceInfo.of_several([TraceInfo.from_dict(facts) for facts in found])
        if len(found) < len(last):  # what the system accounted to all of them is not known
            together.usage, together.level = Usage(), None
        return together.to_dict()

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
        info.incomplete = self._lacking() or info.incomplete
        info.hosts = hosts_of(self.marks)
        if info.level is None and info.incomplete:
            info.level = Level("not known", "the trace does not say it")
        if not info.ended_ns and info.sampled == 1:
            info.sampled = self._sampled
        return info

    def _lacking(self) -> str:
        """Which records of its trace the file lacks, in words; "" when it has all."""
        missing, found = self.missing, []
        if missing:
            marks = (mark.get("why") for mark in self.marks if is_writers_loss(mark))
            why = next((f": {why}" for why in marks if isinstance(why, str) and why), "")
            found.append(f"the file lacks {missing:,} records{why}")
        ledger = self._written_ledger()
        if self.missing_parts:
            n = ledger.get("recorded", "page_fault") - self.rows.get("page_fault", 0)
            found.append(", ".join(self.missing_parts) + f": {plural(n, 'fault')} not in it" * (n > 0))
        if ledger.get("file_cut"):
            found.append("it was made of a file that was cut: how many records it lacks is not known")
        unread = [part.lost_rows() for part in self.parts]
        if self.state == "damaged":
            lost = sum((one for one in unread if one and None not in unread), Counter[str]())
            rows = ", ".join(f"{n:,} {stream}" for stream, n in lost.items())
            of_them = f"{rows} records of it cannot be read" if rows else "wstrace info shows where"
            found.append(f"the file is damaged: {of_them}")
        if None in unread:
            found.append("the file is cut: its end is missing, with an unknown number of records")
        return "; ".join(found)

    @functools.cached_property
    def _sampled(self) -> int:
        """For how many faults a row of a cut file stands on average; of objects, by the first frame."""
        batches = itertools.islice(self.batches(PAGE_FAULT.name, ["sampled"]), 1 if self.trusting else None)
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
        found = [part.end.ledger for part in self.parts if part.end is not None and any(part.end.ledger.values())]
        found += [frames.counts(mark.get("ledger")) for mark in self.marks if mark.get("m") == "ledger"]
        ledger = Ledger(default_plugins().stages)  # the file does not say which of its stages are a loss
        for one in found:
            for stage, who, n in Ledger.from_dict(one).rows():
                ledger.add(stage, n, who)
        # What a session that was killed has left is resumed, too: its rows are in the file, but not its ledger.
        if not found or any(part.end is None for part in self.parts):
            for stage, frames_say in (("recorded", self.rows), ("lost_kernel", self.lost)):
                for stream, n in frames_say.items():
                    ledger.add(stage, max(n - ledger.get(stage, stream), 0), stream)
        return ledger

    @property
    def rows(self) -> dict[str, int]:
        """stream -> number of rows; a row of a table that several parts repeat counts once."""
        total = Counter[str]()
        for part, ids in self.parts.with_ids():
            total.update(part.rows())
            total.subtract(ids.repeated())
        return dict(+total)

    @property
    def lost(self) -> dict[str, int]:
        """stream -> number of records that the kernel dropped, by the frames."""
        return dict(sum((part.lost() for part in self.parts), Counter[str]()))

    @property
    def begin_ns(self) -> int:
        """When the trace began, in nanoseconds of the records' clock; --start and --end count from it.

        This is `info.started_ns`: from the facts, else from the first clock mark, else from the first row.
        """
        return self._description().started_ns

    def _description(self) -> TraceInfo:
        span = self.span()
        return trace_info(self.header, self.facts, self.marks, span[0] if span else 0)

    def present(self, stream: str) -> dict[str, str]:
        """column -> type, for the columns that the file announces as present, else that any batch has."""
        present = self._announced[1].get(stream, set())
        found = {column.name: column.type for column in self.schema(stream).columns
                 if present.issuperset(DERIVED_FROM[column.name] if column.derived else (column.name,))}  # fmt: skip
        return found if present else super().present(stream)

    @functools.cached_property
    def _announced(self) -> tuple[dict[str, Schema], dict[str, set[str]]]:
        return announced((mark for part in self.parts for mark in part.marks("schema")), self.limits)

    def schema(self, name: str) -> Schema:
        """The schema of a stream: the known one with the columns that the file adds, or the one that it announces."""
        return self._announced[0].get(name, Schema(name, ()))

    def unknown(self) -> dict[str, object]:
        """What this version of wstrace does not know of the file, by kind; {} when it knows everything.

        Returns:
            `version`: the format version, if that is a later one. `frames`: kind -> number of frames of unknown kinds.
            `columns`: columns of an unknown type, filter or codec in the first frame of a stream.
        """
        for stream in self.rows:
            next(iter(self.batches(stream)), None)
        kinds = Counter(kind for part in self.parts for kind in part.entries["kind"].tolist() if kind > END)
        version = max(part.header.version for part in self.parts)
        found: dict[str, object] = {
            "version": f"{version[0]}.{version[1]}" if version > VERSION else "",
            "frames": {str(kind): n for kind, n in sorted(kinds.items())},
            "columns": self.unreadable,
        }
        return {name: value for name, value in found.items() if value}

    @property
    def unreadable(self) -> list[str]:
        """The columns of an unknown type, filter or codec that were met so far."""
        return sorted({name for part in self.parts for name in part.unreadable})

    def _lost(self) -> str:
        ledger = self.ledger
        if ledger.get("file_cut"):
            return f"{ledger.lost:,} known to be lost, how many more is not known"
        return f"{ledger.lost:,} lost"

    def read(self, selection: Selection) -> Iterator[Batch]:
        """Yields the batches of a selection, one per frame in the order of the file, after one of all mappings."""
        if selection.stream in (None, "mapping"):
            found = Selection(None, selection.columns, pids=selection.pids).of(self.mappings)
            if found is not None:
                yield found
            if selection.stream == "mapping":
                return
        for decoder in self.decoders(selection):
            yield from decoder.batches()

    def decoders(self, selection: Selection) -> Iterator[Decoder]:
        """Yields a decoder of each part that can hold rows of a selection."""
        for part, ids in self.parts.holding(selection):
            yield Decoder(part, ids, selection, self.schema, self.strings)

    def close(self) -> None:
        """Closes the files."""
        self.closed = True
        self.parts.close()
        if self.copy is not None:
            self.copy.close()


def trace_info(
    header: Header, facts: Mapping[str, Any], marks: Sequence[Mapping[str, Any]], first_ns: int
) -> TraceInfo:
    """The TraceInfo of a recorded trace.

    header: the header of its first part. facts: the content of its last facts mark; {} when the file has none. marks:
    all of its marks, of which the clock marks are used. first_ns: the time of its first row, 0 = none: it began then,
    unless a clock mark says when.
    """
    info = TraceInfo.from_dict(facts)
    clocks = [mark for mark in marks if mark.get("m") == "clock" and _is_time(mark.get("monotonic"))]
    begin_ns = int(clocks[0]["monotonic"]) if clocks else first_ns if _is_time(first_ns) else 0
    first = begin_ns, begin_ns + _offset(header, begin_ns)
    later = [(mark["monotonic"], mark["realtime"]) for mark in clocks if _is_time(mark.get("realtime"))]
    name = header.clock.get("name")
    info.clock = ClockAnchor(
        [first, *(mark for mark in later if mark[0] > begin_ns)], name if type(name) is str else ""
    )
    info.command = info.command or list(header.command)
    info.started_ns = info.started_ns if info.started_ns and _is_time(info.started_ns) else begin_ns
    info.page_size = header.page_size
    info.host, info.boot_id, info.created_ns = header.host, header.boot_id, header.created_ns
    return info


def hosts_of(marks: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of the hosts of a merged trace, one per boot; () for a trace of one."""
    hosts = next((mark.get("hosts") for mark in marks if mark.get("m") == "hosts"), None)
    return tuple(name for name in hosts if isinstance(name, str)) if isinstance(hosts, list) else ()


def is_writers_loss(mark: Mapping[str, Any]) -> bool:
    """Whether a mark counts records that its writer could not write."""
    return mark.get("m") == "lost" and mark.get("by") == "writer"


def _offset(header: Header, begin_ns: int) -> int:
    """Nanoseconds from the records' clock to the wall clock when the trace began."""
    offset = header.clock.get("realtime_offset_ns")
    if type(offset) is int and abs(offset) < _LARGEST:
        return offset
    return header.created_ns - begin_ns if header.created_ns and _is_time(header.created_ns) else 0


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST
