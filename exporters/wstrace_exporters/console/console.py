"""Console: the exporter that prints a trace for people."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Literal, TextIO

import numpy as np

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.filter import Filter
from wstrace.analysis.own import OwnRule
from wstrace.analysis.symbols import Symbolizer
from wstrace.batch import Batch
from wstrace.errors import WstraceError
from wstrace.interfaces import Context, Exporter
from wstrace.plugins import own_platform
from wstrace.schema import CALL_SITE, FAULT_MAJOR, PAGE_FAULT
from wstrace.terminal.output import LiveLines, Output
from wstrace.text import number, plural, printable, printable_words, size
from wstrace.trace_info import NOT_SAVED, TraceInfo

if TYPE_CHECKING:
    from wstrace.terminal.table import Styled, TextTable
    from wstrace.trace import Trace
    from wstrace_exporters.console.lines import Stacks

_REDRAW_SECONDS = 0.5


class Console(Exporter):
    """Prints the report of the trace that was kept, or one line per fault as it arrives.

    Args:
        stream: the stream to print to, instead of `to` and `path`.
        format: summary; lines = `VA PC owner via module` per fault; jsonl = one JSON object per fault.
        to: stderr or stdout.
        path: a file instead.
        top: the number of rows of the table.
        hard: of lines, only faults that read from disk.
        soft: only faults that did not.
        file: glob on the page's file.
        kind: only these kinds of memory: anon, heap, stack, file, shared ...
        pid: only these processes.
        tid: only these threads.
        start: the first fault, in seconds after the start of the trace.
        end: the last one, in seconds after the start of the trace; 0 = that of the trace.
        json: the report as one JSON object.
        live: a line of figures while the trace runs; None = only if the target does not share the terminal.
        quiet: print only what was lost.
        over_time: the seconds between two moments, of which what grew is printed first; 0 = none. It needs snapshots of
            resident pages: `-s working_set:interval=1`.
    """

    name = "console"
    default = True
    ends_last = reports = True
    close_seconds = 300.0  # the report of a million faults takes seconds, and many times that on a busy machine
    streams = frozenset({"page_fault", "process", "mapping", "call_site"})

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        format: Literal["summary", "lines", "jsonl"] = "summary",  # noqa: A002 - the option's name
        to: Literal["stderr", "stdout"] = "stderr",
        path: str = "",
        top: int = 10,
        hard: bool = False,
        soft: bool = False,
        file: str = "",
        kind: list[str] = [],  # noqa: B006 - read only
        pid: list[int] = [],  # noqa: B006 - read only
        tid: list[int] = [],  # noqa: B006
        start: float = 0,
        end: float = 0,
        json: bool = False,
        live: bool | None = None,
        quiet: bool = False,
        over_time: float = 0,
    ) -> None:
        self.may_wait = format == "summary"
        self._filter = Filter(file=file, kinds=kind, pids=pid, tids=tid, start=start, end=end, hard=hard, soft=soft)
        self._stream, self._to, self._path = stream, to, path
        self._format, self._top, self._json = format, max(top, 1), json
        self._live_wanted, self._quiet, self._step = live, quiet, over_time
        self._context = Context()
        self._output: Output | None = None
        self._live: LiveLines | None = None
        self._tree, self._symbolizer = CallTree(), Symbolizer(self._context)
        self._stacks: Stacks | None = None
        self._total = self._major = self._drawn_total = 0
        self._began = self._drawn = 0.0

    @property
    def broken(self) -> bool:
        """Whether the reader of the output has gone away (`| head`); then nothing more is printed."""
        return self._output is not None and self._output.broken

    def start(self, context: Context) -> None:
        """Opens the output. Raises OutputError."""
        self._context = context
        self._filter.origin_ns = context.info.started_ns
        if self._stream is not None:
            self._output = Output(self._stream)
        else:
            self._output = Output.open(self._path) if self._path else Output.standard(self._to)
        self._symbolizer = Symbolizer(context)
        self._began = self._drawn = time.monotonic()
        if self._wants_live(self._output):
            self._live = LiveLines(self._output)

    def _wants_live(self, output: Output) -> bool:
        if self._live_wanted is False or self._quiet or self._format != "summary" or not output.terminal:
            return False
        targets = self._context.targets
        apart = bool(targets) and not any(t.launched or t.pid == os.getpid() for t in targets)
        return apart or bool(self._live_wanted)

    def export(self, batch: Batch) -> None:
        """Counts a batch, or prints its faults."""
        faults = batch.schema.name == PAGE_FAULT.name
        if self._format != "summary":
            self._symbolizer.learn(batch)
            if batch.schema.name == CALL_SITE.name:
                self._tree.learn(batch)
            elif faults and self._filter.concerns(batch):
                self._print(self._filter.apply(batch))
        elif faults:
            self._total += len(batch)
            self._major += int(np.count_nonzero(batch["flags"] & FAULT_MAJOR))
            self.tick()

    def _print(self, batch: Batch) -> None:
        from wstrace.analysis.frames import Frames
        from wstrace_exporters.console.lines import Stacks, json_lines, text_lines

        output = self._output
        if output is None or output.broken:
            return
        if self._format == "lines":
            blocks = text_lines(batch, self._symbolizer)
        else:
            if self._stacks is None:
                self._stacks = Stacks(Frames(self._tree, OwnRule(), self._symbolizer))
            blocks = json_lines(batch, self._symbolizer, self._stacks)
        for block in blocks:
            output.write(block)

    def tick(self) -> None:
        """Redraws the live line while there is a terminal."""
        now = time.monotonic()
        span = now - self._drawn
        if self._live is None or span < _REDRAW_SECONDS:
            return
        rate = round((self._total - self._drawn_total) / span)
        self._drawn, self._drawn_total = now, self._total
        seconds, platform = int(now - self._began), own_platform()
        found = [platform.process(one.pid) for one in self._context.targets] if platform is not None else []
        resident = sum(one.resident or 0 for one in found if one is not None)
        parts = [f"{seconds // 60}:{seconds % 60:02}", plural(self._total, "fault"), f"{number(rate)}/s",
                 f"{number(self._major)} from disk", *[f"{size(resident)} resident"] * bool(resident),
                 f"{number(self._context.ledger.lost)} lost"]  # fmt: skip
        if not self._live.update("  ".join(parts)):
            self.cancel(close=False)

    def close(self) -> None:
        """Prints the report of the trace that was kept."""
        self.cancel(close=False)
        output = self._output
        if output is None:
            return
        try:
            if self._quiet or self._format != "summary":
                lines = Output.standard("stderr") if self._format != "summary" else output
                lines.write("".join(f"{line}\n" for line, lost in self._context.ledger.sentences() if lost))
            else:
                self._show(output)
        finally:
            output.close()

    def _show(self, output: Output) -> None:
        """Prints what `report FILE` prints."""
        from wstrace import open_trace
        from wstrace_exporters.console.report_table import usual

        info = self._context.info
        if info.saved in ("", "-"):
            output.show(*(line for line, _ in self._context.ledger.sentences()), next_step(info))
            return
        try:
            with open_trace(info.saved) as trace:
                found, grown = trace.report(), self._grown(trace) if self._step else []
        except WstraceError as error:  # somebody else has taken it away
            output.write(f"{printable(str(error))}\n")
            return
        if self._json:
            import json

            output.write(json.dumps(found.as_dict(), indent=2) + "\n")
        else:
            output.show(*grown, *usual(found, self._top), "", next_step(info))

    def _grown(self, trace: Trace) -> list[str | Styled | TextTable]:
        from wstrace.analysis.compare import OverTime
        from wstrace_exporters.console.report_table import over_time

        return [*over_time(OverTime(trace, self._step), self._top), ""]

    def cancel(self, *, close: bool = True) -> None:
        """Removes the live line and prints nothing."""
        if self._live is not None:
            self._live.close()
            self._live = None
        if close and self._output is not None:
            self._output.close()

    def after_fork_in_child(self) -> None:
        """In a forked child: drops the output and the live line without writing."""
        self._output = self._live = None


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
