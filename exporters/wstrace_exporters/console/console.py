"""Console: the exporter that prints the report of a trace for people."""

from __future__ import annotations

import os
import re
from typing import TextIO

from wstrace.batch import Batch
from wstrace.errors import WstraceError
from wstrace.interfaces import Context, Exporter
from wstrace.ledger import Ledger
from wstrace.terminal import Output
from wstrace.text import printable, printable_words
from wstrace.trace_info import NOT_SAVED, TraceInfo


class Console(Exporter):
    """Prints the report of the trace that was kept.

    Args:
        stream: the stream to print to; None = stderr.
        quiet: print only what was lost.
        over_time: the seconds between two moments, of which what grew is printed; 0 = none. It needs snapshots of
            resident pages: `-s working_set:interval=1`.
    """

    name = "console"
    default = True
    ends_last = reports = may_wait = True
    close_seconds = 300.0  # the report of a million faults takes seconds, and many times that on a busy machine
    streams = frozenset()

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False, over_time: float = 0) -> None:
        self._stream, self._quiet, self._step = stream, quiet, over_time
        self._context = Context()
        self._output: Output | None = None

    def start(self, context: Context) -> None:
        """Finds the output."""
        self._context = context
        self._output = Output(self._stream) if self._stream is not None else Output.standard("stderr")

    def export(self, batch: Batch) -> None:
        """Does nothing: the report is made of the trace that was kept."""

    def close(self) -> None:
        """Prints the report of the trace that was kept."""
        output = self._output
        if output is None:
            return
        if self._quiet:
            output.write(losses(self._context.ledger))
        else:
            self._show(output)

    def _show(self, output: Output) -> None:
        """Prints what `report FILE` prints."""
        from wstrace import open_trace
        from wstrace_exporters.console.report_table import over_time, parts

        info = self._context.info
        if info.saved in ("", "-"):
            output.show(*(line for line, _ in self._context.ledger.sentences()), next_step(info))
            return
        try:
            with open_trace(info.saved) as trace:
                grown = None
                if self._step:
                    from wstrace.analysis.compare import OverTime

                    grown = OverTime(trace, self._step)
                lines = over_time(grown) if grown and len(grown.moments) > 1 else parts(trace.report(), output=output)
        except WstraceError as error:  # somebody else has taken it away
            output.write(f"{printable(str(error))}\n")
            return
        output.show(*lines, "", next_step(info))

    def after_fork_in_child(self) -> None:
        """In a forked child: drops the output without writing."""
        self._output = None


def losses(ledger: Ledger) -> str:
    """A line for each row of the ledger that is a loss."""
    return "".join(f"{line}\n" for line, lost in ledger.sentences() if lost)


def next_step(info: TraceInfo) -> str:
    """The last line of a live trace: where it is saved and what to read next, or how to save it."""
    why = info.extra.get(NOT_SAVED)
    if why or not (info.saved or info.incomplete):
        return f"not saved: {printable(why, 240) if isinstance(why, str) else 'add -o FILE'}"
    if info.incomplete:
        return f"output incomplete: {printable_words(info.incomplete, 240)}"
    if info.saved == "-":
        return "saved to stdout"
    path = printable(info.saved)
    return f"saved {path}; next: wstrace report {_word(path)} --by stack"


def _word(path: str) -> str:
    """The path as one word of a command line, of which a shell expands nothing."""
    if os.sep == "/" and re.search(r"[^\w@%+=:,./ -]", path):
        import shlex  # 0.4 ms, which no start pays for a name that needs it

        return shlex.quote(path)
    return f'"{path}"' if " " in path else path
