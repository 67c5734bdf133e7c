"""Over time: the exporter that tells at the end of a trace what grew, how fast, and by whom (`run --over-time 1s`)."""

from __future__ import annotations

from typing import Literal

from wstrace.batch import Batch
from wstrace.errors import UsageError
from wstrace.interfaces import Context, Exporter
from wstrace.terminal.output import Output


class OverTimeExporter(Exporter):
    """Prints what grew, how fast and by whom, and whose bytes were resident at moments so far apart.

    Records are kept in memory until the end: 256 MiB of faults, about 5,000,000, and 64 MiB of others; what is past
    that is counted as lost. It needs snapshots of resident pages: `-s working_set:interval=1`.

    Args:
        step: seconds between two moments; there are at most 30.
        by: what the rows are.
        top: the number of rows per table.
        to: stderr or stdout.
        quiet: print nothing.
    """

    name = "over_time"
    streams = frozenset({"page_fault", "process", "mapping", "call_site", "resident", "content_loss", "mark"})

    def __init__(
        self,
        *,
        step: float = 1.0,
        by: Literal["line", "function", "file", "package", "kind", "process"] = "line",
        top: int = 10,
        to: Literal["stderr", "stdout"] = "stderr",
        quiet: bool = False,
    ) -> None:
        if step <= 0:
            raise UsageError(f"over_time: step is {step}", "give seconds above 0")
        self._step, self._by, self._top, self._to, self._quiet = step, by, top, to, quiet

    def start(self, context: Context) -> None:
        """Begins to keep the records."""
        from wstrace.recorder import Recorder

        self._context, self._recorder = context, Recorder()
        self._recorder.start(context)

    def export(self, batch: Batch) -> None:
        """Keeps a batch."""
        if not self._quiet:
            self._recorder.export(batch)

    def close(self) -> None:
        """Prints what grew."""
        if self._quiet:
            return
        from wstrace.analysis.blame.over_time import OverTime
        from wstrace.session_trace import SessionTrace
        from wstrace_exporters.console.over_time_tables import parts

        trace = SessionTrace(self._context, self._recorder, lambda: "stopped")
        output = Output.standard(self._to)
        output.show(*parts(OverTime(trace, self._step, self._by), self._top), "")
        output.close()
