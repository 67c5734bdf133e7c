"""Page: the exporter that writes the report at the end of a trace (`run --html FILE`)."""

from __future__ import annotations

from wstrace.batch import Batch
from wstrace.errors import UsageError
from wstrace.interfaces import Context, Exporter


class PageExporter(Exporter):
    """Writes a report in one HTML file at the end of the trace.

    Records are kept in memory until then: 256 MiB of faults, about 5,000,000, and 64 MiB of others; what is past that
    is counted as lost.

    Args:
        path: the file, which appears only once it is complete.
        force: overwrite an existing file.
    """

    name = "page"
    close_seconds = 300.0  # a million faults take seconds, and many times that on a busy machine
    streams = frozenset({"page_fault", "process", "mapping", "call_site", "resident", "content_loss", "mark"})

    def __init__(self, *, path: str = "", force: bool = False) -> None:
        if not path:
            raise UsageError("page: no path was given", "write -e page:path=FILE.html, or run --html FILE.html")
        self._path, self._force = path, force

    def start(self, context: Context) -> None:
        """Begins to keep the records."""
        from wstrace.session_trace import Recorder

        self._context, self._recorder = context, Recorder()
        self._recorder.start(context)

    def export(self, batch: Batch) -> None:
        """Keeps a batch."""
        self._recorder.export(batch)

    def close(self) -> None:
        """Writes the report. Raises OutputError."""
        from wstrace.output_file import whole_file
        from wstrace.session_trace import SessionTrace
        from wstrace_exporters.html.report import write

        trace = SessionTrace(self._context, self._recorder, lambda: "stopped")
        with whole_file(self._path, force=self._force) as file:
            write(trace, file)
