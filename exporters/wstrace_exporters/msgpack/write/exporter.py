"""The exporter `msgpack`: writes a trace file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from wstrace.batch import Batch
from wstrace.errors import OutputError, UsageError
from wstrace.interfaces import Context, Exporter
from wstrace.schema import ADDRESS_SPACE
from wstrace_exporters.msgpack.storage.urls import is_url

if TYPE_CHECKING:  # every session imports this module, but not every one writes a file
    from wstrace_exporters.msgpack.format.frames import Header
    from wstrace_exporters.msgpack.write.upload import Uploads
    from wstrace_exporters.msgpack.write.writer import TraceWriter

#: When a part for an object store ends, where no option says it.
_PART_BYTES, _PART_SECONDS = 32 << 20, 300.0
#: Seconds of close() beside the wait for uploads.
_END_SECONDS = 5.0


class FileExporter(Exporter):
    """What the exporters have in common that write trace files: a writer, of which the losses are counted."""

    _context: Context
    _writer: TraceWriter | None = None
    _counted = 0  # rows lost by the writer that the ledger has

    def export(self, batch: Batch) -> None:
        """Takes one batch."""
        if self._writer is None or batch.schema is ADDRESS_SPACE:  # its content is in the mappings
            return
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

    def _count_loss(self) -> None:
        """Counts the accepted rows that are not in the file, and those that lack a column there."""
        if self._writer is None:
            return
        if (dropped := self._writer.dropped) > self._counted:
            self._context.ledger.add("failed_exporter", dropped - self._counted, self.name)
            self._counted = dropped
        for column, n in self._writer.left_out.items():
            self._context.ledger.set("without_column", n, column)

    def cancel(self) -> None:
        """Removes the file of a session that could not start, if it is new."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()

    def after_fork_in_child(self) -> None:
        """Closes the descriptor and writes nothing."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()

    @property
    def stalled(self) -> str:
        """Why frames wait for the disk; "" when none do."""
        return self._writer.stalled if self._writer is not None else ""


class MsgpackExporter(FileExporter):
    """Writes the trace to a file in the format WSTF.

    Args:
        path: the file; "-" is standard output; an object (s3://, gs://, az://), of which the parts are written
            to a local folder and uploaded from there.
        fsync: when to call fsync(): "none" = only at the end, "interval" = at most once a second, "frame".
        rotate_bytes: the size in bytes at which a new part begins; 0 = never.
        rotate_seconds: the age in seconds at which a new part begins; 0 = never.
        keep: how many of the newest parts remain on the disk; 0 = all.
        force: whether to overwrite an existing file.
        resume: whether to continue an unfinished trace.
        folder: the local folder of parts that wait for an upload; "" = the object's name with `.upload`, here.
        upload_seconds: how long the end waits for uploads.

    Raises:
        UsageError: an option is out of range, or the URL names no object.
        Unavailable: the package that the object store needs is not installed.
    """

    name = "msgpack"
    takes_output = True
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
        folder: str = "",
        upload_seconds: float = 30.0,
    ) -> None:
        if keep < 0 or rotate_bytes < 0 or rotate_seconds < 0:
            raise UsageError("msgpack: keep, rotate_bytes and rotate_seconds are 0 or more")
        self._uploads: Uploads | None = None
        self._folder = ""
        if is_url(path):
            from wstrace_exporters.msgpack.storage.store import store_of
            from wstrace_exporters.msgpack.write.upload import check_url

            check_url(path)
            store_of(path)
            if resume or keep:
                raise UsageError("msgpack: a trace to an object store has no resume and no keep")
            rotate_bytes, rotate_seconds = rotate_bytes or _PART_BYTES, rotate_seconds or _PART_SECONDS
            self._folder = folder or path.rpartition("/")[2] + ".upload"
            self.close_seconds = upload_seconds + _END_SECONDS
        self.path, self._force, self._resume = path, force, resume
        self._sync, self._rotate, self._upload_seconds = fsync, (rotate_bytes, rotate_seconds, keep), upload_seconds

    def start(self, context: Context) -> None:
        """Creates the file, or continues it under `resume`. Raises OutputError when the system refuses."""
        from wstrace_exporters.msgpack.write.parts import Parts
        from wstrace_exporters.msgpack.write.writer import TraceWriter

        self._context = context
        path = self.path
        if self._folder:
            from wstrace_exporters.msgpack.write.upload import Uploads

            self._uploads = Uploads(path, self._folder, force=self._force)
            path = self._uploads.path
        size, seconds, keep = self._rotate
        self._parts = Parts(path, command=context.info.command, like=_recorded_header(context), force=self._force,
                            resume=self._resume, rotate_bytes=size, rotate_seconds=seconds, keep=keep,
                            sync=self._sync)  # fmt: skip
        self._writer = TraceWriter(self._parts, context.strings, facts=context.info.begun)
        if context.info.recorded:
            for at, wall in context.info.clock.marks:
                self._writer.copy_mark({"m": "clock", "t": at, "monotonic": at, "realtime": wall})

    def _count_loss(self) -> None:
        """Counts the accepted rows that are not in the file, and sends the parts that have ended."""
        super()._count_loss()
        while self._uploads is not None and self._parts.before:
            self._uploads.add(self._parts.before.pop(0).path)

    def close(self) -> None:
        """Ends the file with the ledger and the description of the trace.

        Raises OutputError: the end could not be written, or the file lacks records.
        """
        writer, info = self._writer, self._context.info
        if writer is None:
            return
        try:
            writer.settle()
            self._count_loss()
            if missing := self._missing(writer):
                info.incomplete = missing
            writer.close(self._context.ledger.as_dict(), info.to_dict())
            if self._uploads is not None:
                self._uploads.finish(self._upload_seconds)
        except OutputError as error:
            info.incomplete = error.why
            raise
        finally:
            self._count_loss()
            self._writer = None
        if missing:
            raise OutputError(missing, f"what is there can be read: wstrace report {self.path}")
        if not info.incomplete:
            info.saved = self.path

    def _missing(self, writer: TraceWriter) -> str:
        """How many accepted records the file lacks, in words; "" when it has them all."""
        ledger, recorded = self._context.ledger, self._context.info.recorded
        # the ledger of a replayed trace counts what the older file lacks
        n = writer.dropped if recorded else ledger.missing_from(self.name)
        return f"{self.path} lacks {n:,} records: {writer.why_dropped or 'the ledger says why'}" if n else ""

    def cancel(self) -> None:
        """Removes the file of a session that could not start, if it is new."""
        super().cancel()
        if self._uploads is not None:
            self._uploads.cancel()

    @property
    def stalled(self) -> str:
        """Why frames wait for the disk, or finished parts for the object store; "" when none do."""
        return super().stalled or (self._uploads.error if self._uploads is not None else "")


def _recorded_header(context: Context) -> Header | None:
    """The header of a trace that is replayed, which keeps its times, host and clock marks; None = a live trace."""
    from wstrace_exporters.msgpack.format.frames import Header

    info = context.info
    if not info.recorded:
        return None
    at, wall = info.clock.marks[0]
    clock = {"name": info.clock.name, "realtime_offset_ns": wall - at}
    return Header(created_ns=info.created_ns, boot_id=info.boot_id, clock=clock, page_size=info.page_size,
                  host=dict(info.host), command=list(info.command))  # fmt: skip
