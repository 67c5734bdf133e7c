"""The exporter `msgpack`: writes a trace file."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from wstrace.batch import Batch
from wstrace.errors import OutputError, UsageError
from wstrace.interfaces import Context, Exporter
from wstrace.output_file import remove
from wstrace.schema import ADDRESS_SPACE
from wstrace.trace_info import TraceInfo
from wstrace_exporters.msgpack.storage.urls import is_url

if TYPE_CHECKING:
    from wstrace_exporters.msgpack.write.upload import Uploads
    from wstrace_exporters.msgpack.write.writer import TraceWriter

#: When a part for an object store ends, where no option says it.
_PART_BYTES, _PART_SECONDS = 32 << 20, 300.0
#: Seconds of close() beside the wait for uploads.
_END_SECONDS = 5.0


class MsgpackExporter(Exporter):
    """Writes the trace to a file in the format WSTF.

    Args:
        path: the file; "-" is standard output; an object (s3://, gs://, az://), whose parts are written to a local
            folder and uploaded from there.
        fsync: when to call fsync(): "none" = only at the end, "interval" = at most once a second, "frame".
        rotate_bytes: the size in bytes at which a new part begins; 0 = never.
        rotate_seconds: the age in seconds at which a new part begins; 0 = never.
        keep: how many of the newest parts remain on the disk; 0 = all.
        force: whether to overwrite an existing file.
        resume: whether to continue an unfinished trace.
        level: the compression level of zstd, 1 to 19.
        folder: the local folder of parts that wait for an upload; "" = the object's name with `.upload`, here.
        upload_seconds: how long the end waits for uploads.

    Raises:
        UsageError: an option is out of range, or the URL names no object.
        Unavailable: the package that the object store needs is not installed.
    """

    name: ClassVar[str] = "msgpack"
    takes_output: ClassVar[bool] = True
    may_wait = True

    def __init__(
        self,
        *,
        path: str,
        fsync: Literal["none", "interval", "frame"] = "interval",
        rotate_bytes: int = 0,
        rotate_seconds: float = 0.0,
        keep: int = 0,
        force: bool = False,
        resume: bool = False,
        level: int = 1,
        folder: str = "",
        upload_seconds: float = 30.0,
    ) -> None:
        if not 1 <= level <= 19:
            raise UsageError(f"msgpack:level={level} is not from 1 to 19")
        if keep < 0 or rotate_bytes < 0 or rotate_seconds < 0:
            raise UsageError("msgpack: keep, rotate_bytes and rotate_seconds are 0 or more")
        self._uploads: Uploads | None = None
        if is_url(path):
            from wstrace_exporters.msgpack.write.upload import Uploads, check_url

            check_url(path)
            if resume or keep:
                raise UsageError("msgpack: a trace to an object store has no resume and no keep")
            rotate_bytes, rotate_seconds = rotate_bytes or _PART_BYTES, rotate_seconds or _PART_SECONDS
            self._uploads = Uploads(path, folder or path.rpartition("/")[2] + ".upload")
            self.close_seconds = upload_seconds + _END_SECONDS
        self._upload_seconds = upload_seconds
        self.path = path
        self._fsync = fsync
        self._rotate = (rotate_bytes, rotate_seconds, keep)
        self._force = force
        self._resume = resume
        self._level = level
        self._writer: TraceWriter | None = None
        self._context = Context()
        self._taken = 0
        self._counted = self._unwritten = 0

    def start(self, context: Context) -> None:
        """Creates the file, or continues it under `resume`. Raises OutputError when the system refuses."""
        from wstrace_exporters.msgpack.write.parts import Parts
        from wstrace_exporters.msgpack.write.writer import TraceWriter

        self._context = context
        if self._uploads is not None:
            self._uploads.begin(force=self._force)
        size, seconds, keep = self._rotate
        uploads = self._uploads
        parts = Parts(
            self.path if uploads is None else uploads.path,
            command=list(context.info.command),
            force=self._force,
            rotate_bytes=size,
            rotate_seconds=seconds,
            keep=keep,
            sync=self._fsync,
            finished=None if uploads is None else uploads.add,
        )
        if self._resume and parts.exist():
            parts.resume()
        else:
            parts.create()
        self._writer = writer = TraceWriter(parts, context.strings, level=self._level)
        self._begin(writer, context.info)

    def _begin(self, writer: TraceWriter, info: TraceInfo) -> None:
        """Writes the header; a replayed trace keeps its own times, host and clock marks."""
        from wstrace_exporters.msgpack.format.frames import Header

        if not info.recorded:
            writer.begin()
            return
        marks = info.clock.marks
        clock = {"name": info.clock.name, "realtime_offset_ns": marks[0][1] - marks[0][0]}
        writer.begin(
            Header(
                created_ns=info.created_ns,
                boot_id=info.boot_id,
                clock=clock,
                page_size=info.page_size,
                host=dict(info.host),
                command=list(info.command),
            )
        )
        for at, wall in marks:
            writer.copy_mark({"m": "clock", "t": at, "monotonic": at, "realtime": wall})

    def export(self, batch: Batch) -> None:
        """Takes one batch."""
        if self._writer is not None and batch.schema is not ADDRESS_SPACE:  # its content is in the mappings
            self._taken += 1
            try:
                self._writer.write(batch)
            except OutputError:
                self._counted += len(batch)  # by the queue, as export() raises
                raise
            finally:
                self._count_loss()

    def tick(self) -> None:
        """Writes rows that have waited for a second."""
        if self._writer is not None:
            self._writer.tick()
            self._count_loss()

    def flush(self, timeout: float) -> None:
        """Writes all waiting rows."""
        if self._writer is not None:
            self._writer.flush()
            self._count_loss()

    def close(self) -> None:
        """Ends the file with the ledger and the description of the trace.

        Raises:
            OutputError: the end could not be written, or the file lacks records.
        """
        writer, self._writer = self._writer, None
        if writer is None:
            return
        info, ledger = self._context.info, self._context.ledger
        try:
            writer.settle()
            self._count_loss(writer)
            if missing := self._missing(writer):
                info.incomplete = missing
            writer.close(ledger.as_dict(), info.to_dict())
        except OutputError as error:
            info.incomplete = error.why
            raise
        finally:
            self._count_loss(writer)
            self._statistics = writer.statistics()
        if self._uploads is not None:
            self._finish(self._uploads, info)
            missing = self._missing(writer)
        if missing:
            raise OutputError(missing, f"what is there can be read: wstrace report {self.path}")
        if not info.incomplete:
            info.saved = self.path

    def _finish(self, uploads: Uploads, info: TraceInfo) -> None:
        """Waits for the uploads. Raises OutputError when some could not be sent."""
        try:
            uploads.finish(self._upload_seconds)
        except OutputError as error:
            info.incomplete = error.why
            raise
        finally:
            self._count_loss()

    def _missing(self, writer: TraceWriter) -> str:
        """How many accepted records the file lacks, and why, in words; "" when it has them all."""
        ledger = self._context.ledger
        # The ledger of a replayed trace counts what the older file lacks, not what this one does.
        n = self._dropped(writer) if self._context.info.recorded else ledger.missing_from(self.name)
        if not n:
            return ""
        return f"{self.path} lacks {n:,} records: {self._why_missing(writer)}"

    def _why_missing(self, writer: TraceWriter) -> str:
        """Why it lacks them: what the writer or the uploads say, or else the stages at which they were lost."""
        lost = self._context.ledger.get
        own = writer.why_dropped
        if self._context.info.recorded:
            return own or "why is not known"
        if not own and lost("failed_lane", self.name):
            own = "writing it failed"  # what was dropped besides, too: errors detach an exporter
        elif not own and lost("dropped_lane", self.name):
            own = "it was written more slowly than records came"
        hanging = "an enricher did not finish" if lost("dropped_enricher") else ""
        late = "records came faster than the enrichers took them" if lost("dropped_bus") else ""
        return ", and ".join(filter(None, (own, hanging, late)))

    def _count_loss(self, writer: TraceWriter | None = None) -> None:
        dropped = self._dropped(writer or self._writer)
        if dropped > self._counted:
            self._context.ledger.add("failed_lane", dropped - self._counted, self.name)
            self._counted = dropped

    def _dropped(self, writer: TraceWriter | None) -> int:
        """The number of accepted rows that are neither in the file nor in the store."""
        if writer is not None:
            self._unwritten = writer.dropped
        return self._unwritten

    def cancel(self) -> None:
        """Closes the file of a session that could not start, and removes it if it is new."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
            if writer.created and not self._taken:
                remove(self.path if self._uploads is None else self._uploads.path)
        if self._uploads is not None:
            self._uploads.cancel()

    def after_fork_in_child(self) -> None:
        """Closes the descriptor and writes nothing."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()

    @property
    def stalled(self) -> str:
        """Why frames wait for the disk, or finished parts for the object store; "" when none do."""
        writer, uploads = self._writer, self._uploads
        return (writer.stalled if writer is not None else "") or (uploads.error if uploads is not None else "")

    _statistics: dict[str, int] = {}  # noqa: RUF012  replaced, never changed

    def statistics(self) -> dict[str, int]:
        """The writer's counts: see TraceWriter.statistics."""
        return self._writer.statistics() if self._writer is not None else dict(self._statistics)
