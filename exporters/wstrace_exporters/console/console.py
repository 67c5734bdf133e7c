"""Console: the exporter that prints a trace for people."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast, get_args

from wstrace.analysis import headline
from wstrace.analysis.filter import Filter
from wstrace.analysis.place_counts import PlaceCounts
from wstrace.analysis.proposals import groups
from wstrace.analysis.sampled import Estimates, estimates
from wstrace.analysis.summary import By, Summary, place_rows
from wstrace.analysis.symbols import PlaceBy, Symbolizer
from wstrace.batch import Batch
from wstrace.errors import WstraceError
from wstrace.interfaces import Context, Exporter
from wstrace.schema import PAGE_FAULT
from wstrace.terminal.output import Output
from wstrace.terminal.table import Styled, TextTable
from wstrace.text import estimates_note, json_safe, printable
from wstrace_exporters.console.stack_report import StackReport

if TYPE_CHECKING:
    from wstrace_exporters.console.growth import Growth
    from wstrace_exporters.console.live import LiveFigures

ReportBy = Literal[
    "",
    "file",
    "module",
    "pair",
    "thread",
    "process",
    "cgroup",
    "kind",
    "section",
    "function",
    "instruction",
    "line",
    "stack",
    "package",
]
#: tables of places that are named one address at a time; without Python stacks `function` is that of the instruction
_PLACES: dict[str, PlaceBy] = {"section": "section", "function": "function", "instruction": "function"}


class Console(Exporter):
    """Prints a summary at the end, or one line per fault as it arrives.

    Args:
        stream: the stream to print to, instead of `to` and `path`.
        format: summary; lines = `VA PC owner via module` per fault; jsonl = one JSON object per fault; folded = one
            line per stack, for flame graphs.
        to: stderr or stdout.
        path: a file instead.
        by: the only table to show; "" = own lines of Python, files, pairs, processes and threads.
        top: the number of rows per table.
        sort: the order of the rows: by resident bytes, faults, faults from disk (major), or the time that the kernel
            took to serve them; "" = resident bytes where they are known of all processes, else faults.
        hard: only faults that read from disk.
        soft: only faults that did not.
        file: glob on the page's file.
        kind: only these kinds of memory: anon, heap, stack, file, shared ...
        pid: only these processes.
        tid: only these threads.
        start: where the report begins, in seconds after the start of the trace.
        end: where the report ends, in seconds after the start of the trace; 0 = never.
        json: the summary as one JSON object.
        live: a line of figures while the trace runs; None = only if the target does not share the terminal.
        quiet: print only what was lost.
        own: files and folders that are the program's own, wherever they lie.
        not_own: files and folders that are not.
        callers: faults in this function and in what it called, by its caller.
        callees: faults in this function and in what it called, by what it called.
        native: tell lines, functions, stacks and packages from the sampled native stacks.
        verbose: print all figures of completeness, even if nothing is missing, and stacks with all of their frames.
    """

    name = "console"
    default = True
    ends_last = True
    streams = frozenset({"page_fault", "process", "mapping", "call_site", "resident", "written"})

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        format: Literal["summary", "lines", "jsonl", "folded"] = "summary",  # noqa: A002 - the option's name
        to: Literal["stderr", "stdout"] = "stderr",
        path: str = "",
        by: ReportBy = "",
        top: int = 10,
        sort: Literal["", "resident", "faults", "major"] = "",
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
        own: list[str] = [],  # noqa: B006
        not_own: list[str] = [],  # noqa: B006
        callers: str = "",
        callees: str = "",
        native: bool = False,
        quiet: bool = False,
        verbose: bool = False,
    ) -> None:
        self.may_wait = format == "summary"
        self.summary = Summary()
        self._filter = Filter(file=file, kinds=kind, pids=pid, tids=tid, start=start, end=end, hard=hard, soft=soft)
        self._stream, self._to, self._path = stream, to, path
        self._stacks = StackReport(by, own, not_own, callers, callees, native=native, sort=sort)
        self._format, self._by, self._top, self._json = format, by, max(top, 1), json
        self._sort = sort
        self._live_wanted, self._quiet, self._verbose = live, quiet, verbose
        self._context = Context()
        self._output: Output | None = None
        self._live: LiveFigures | None = None
        self._growth: Growth | None = None
        self._symbolizer: Symbolizer | None = None
        self._counts: PlaceCounts | None = None
        self._functions: PlaceCounts | None = None
        self._seen = 0

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
        place = _PLACES.get(self._by)
        self._symbolizer = Symbolizer(context)
        if place is not None:
            self._counts = PlaceCounts(self._symbolizer, place)
            self._counts.page_size = context.info.page_size or 4096
        elif not (self._by or self._stacks.shows or context.live) and "stack_samples" in context.info.extra:
            # In case that few faults have a sample. While a trace is recorded, 70 to 130 ns for each are too many.
            self._functions = PlaceCounts(self._symbolizer, "function")
        if self._apart and self._format == "summary":
            from wstrace_exporters.console.growth import Growth

            pids = [target.pid for target in context.targets]
            self._growth = Growth(pids, children=context.children)
        if self._wants_live(self._output):
            from wstrace_exporters.console.live import LiveFigures

            pids = [target.pid for target in context.targets]
            self._live = LiveFigures(self._output, self.summary, context.ledger, pids, self._owners)

    def _wants_live(self, output: Output) -> bool:
        if self._live_wanted is False or self._quiet or self._format != "summary" or not output.terminal:
            return False
        return self._apart or bool(self._live_wanted)

    @property
    def _apart(self) -> bool:
        """Whether it tells of running processes that do not share its terminal."""
        targets = self._context.targets
        return bool(targets) and not any(t.launched or t.pid == os.getpid() for t in targets)

    def export(self, batch: Batch) -> None:
        """Counts a batch, or prints its faults."""
        if self._symbolizer is not None:
            self._symbolizer.learn(batch)
        if batch.schema.name == PAGE_FAULT.name:
            self._seen += len(batch)
        if not self._filter.concerns(batch):
            return
        batch = self._filter.apply(batch)
        if self._format != "lines":
            self._stacks.add(batch)
        if self._format == "summary":
            self.summary.add(batch)
            for counts in (self._counts, self._functions):
                if counts is not None:
                    counts.add(batch)
            self.tick()
        elif batch.schema.name == PAGE_FAULT.name and self._format != "folded":
            self._print(batch)

    def _print(self, batch: Batch) -> None:
        from wstrace_exporters.console.lines import json_lines, text_lines

        output, symbolizer = self._output, self._symbolizer
        if output is None or symbolizer is None or output.broken:
            return
        if self._format == "lines":
            blocks = text_lines(batch, symbolizer)
        else:
            blocks = json_lines(batch, symbolizer, self._stacks.lines(symbolizer))
        for block in blocks:
            output.write(block)

    def tick(self) -> None:
        """Redraws the live line while there is a terminal."""
        if self._live is not None and not self._live.update():
            self._live = None

    def close(self) -> None:
        """Prints the summary."""
        self.cancel(close=False)
        output = self._output
        if output is None:
            return
        if self._growth is not None:
            self._growth.measure()
        saved = self._context.info.saved
        try:
            if saved not in ("", "-") and self._context.live and self._format == "summary" and not self._plain:
                self._tell_saved(output, saved)
            elif self._json and self._format == "summary":
                import json as json_text

                output.write(json_text.dumps(self.as_dict(), indent=2) + "\n")
            elif self._format == "folded":
                for line in self._stacks.folded(self._symbolizer):
                    output.write(line)
                self._tell_losses(output)
            elif self._quiet or self._format != "summary":
                self._tell_losses(output)
            else:
                self._tell(output)
        finally:
            output.close()

    @property
    def _plain(self) -> bool:
        """Whether it is to show something else than the report of the whole trace."""
        return bool(self._quiet or self._by or self._filter or self._stacks.shows or self._growth)

    def _tell_saved(self, output: Output, path: str) -> None:
        """Prints the report of the trace that was kept: what `report FILE` prints."""
        from wstrace import open_trace
        from wstrace_exporters.console.report_table import usual

        try:
            with open_trace(path) as trace:
                found = trace.report(sort=self._sort)
        except WstraceError as error:  # somebody else has taken it away
            output.write(f"{printable(str(error))}\n")
            self._tell(output)
            return
        if self._json:
            import json as json_text

            output.write(json_text.dumps(found.as_dict(), indent=2) + "\n")
            return
        told = headline.losses(self._context.ledger)
        lines = [Styled(line, "bold red" if lost else "dim") for line, lost in told]
        next_step = headline.next_step(self.summary, self._context.info, "stack")
        output.show(*usual(found, self._top), *([""] if lines else []), *lines, "", next_step)

    def cancel(self, *, close: bool = True) -> None:
        """Removes the live line and prints nothing."""
        if self._live is not None:
            self._live.close()
            self._live = None
        if close and self._output is not None:
            self._output.close()

    def _tell(self, output: Output) -> None:
        from wstrace_exporters.console.report_tables import tables

        info, ledger, sampled = self._context.info, self._context.ledger, self._estimates()
        grown = self._growth.answer(self._grower()) if self._growth is not None else ""
        parts: list[str | Styled | TextTable] = [
            *([Styled(grown, "bold")] * bool(grown)),
            Styled(self._answer(), "bold"),
            Styled(headline.completeness(self.summary, info, ledger, self._seen, full=self._verbose), "dim"),
        ]
        parts += [Styled(line, "yellow") for line in headline.obstacles(info)]
        unsure = bool(not self._by and self._stacks.unsure(self._symbolizer))
        counted = self._functions if unsure and sampled is None else None
        proposed = self._stacks.proposed(self._symbolizer, counted=counted is not None)
        proposed += groups([self._by], self.summary.cgroups_known)
        why = headline.nothing(self.summary, self._filter, self._seen, info)
        parts += [Styled(line, "dim") for line in proposed if not why]
        if why:
            parts += ["", why]
        elif self._stacks.shows:
            parts += ["", self._stacks.table(self._top, self._symbolizer, verbose=self._verbose)]
        else:
            shown = partial(tables, self.summary, info, top=self._top, pids=self._filter.pids, sort=self._sort,
                            sampled=sampled)  # fmt: skip
            found: list[TextTable | str] = [table for table in shown(by=self._by, places=self._counts) if table.rows]
            if not self._by and self._stacks.known:
                # What stands for few of the faults, or by chance, comes behind what counts each of them.
                at = len(found) if unsure else 0
                found.insert(at, self._stacks.table(self._top, self._symbolizer, verbose=self._verbose))
            if counted is not None:
                found[:0] = shown(by="function", places=counted)
            parts += [part for table in found for part in ("", table)]
        told = headline.losses(ledger)
        if self._counts is not None and not self._stacks.shows:
            told += [(line, False) for line in headline.unnamed(self._counts)]
        parts += [""] * bool(told) + [Styled(line, "bold red" if lost else "dim") for line, lost in told]
        if self._context.live:
            next_by = "stack" if self._stacks.known and not unsure else "function"
            parts += ["", headline.next_step(self.summary, info, next_by)]
        output.show(*parts)

    def _estimates(self) -> Estimates | None:
        """Of how many faults the samples of a sampled trace are; its stacks are told, too."""
        found = estimates(self.summary, self._context.info, self._context.ledger, self._seen)
        self._stacks.counts.all_faults = found.total if found is not None else 0
        return found

    def _answer(self) -> str:
        line = self._stacks.answer(self._symbolizer)
        return headline.answer(self.summary, self._context.info, self._filter, self._seen, line, self._context.ledger)

    def _grower(self) -> str:
        """The own line that brought what the processes grew by; "" = not known."""
        counts = self._stacks.counts
        if self._growth is None or not counts.python or self._filter:
            return ""
        rows = self._stacks.own_lines(self._symbolizer)
        return self._growth.owner(rows, counts.total, self._context.info.page_size or 4096)

    def _owners(self) -> dict[str, int]:
        """The faults so far by own line of Python, or by file where no stack is known."""
        if self._stacks.counts.python:
            return {row.label: row.total for row in self._stacks.own_lines(self._symbolizer)}
        return {row.label: row.total for row in self.summary.top("file", None)}

    def _tell_losses(self, output: Output) -> None:
        """Prints what was lost, if anything; to stderr when a program reads the output."""
        if self._format != "summary":
            output = Output.standard("stderr")
        if self._format == "folded" and (note := estimates_note(self._context.info.sampled)):
            output.write(f"{note}\n")
        output.write("".join(f"{line}\n" for line, _ in headline.losses(self._context.ledger, only_loss=True)))

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON: its first lines, facts, ledger, counts; see docs/console.md."""
        info, ledger = self._context.info, self._context.ledger
        sampled = self._estimates()
        summary = self.summary.as_dict(self._top, sampled.rows if sampled is not None else lambda rows: rows)
        summary |= {"in_all": sampled.total} if sampled is not None else {}
        if self._by in get_args(By):
            top = summary["top"]
            summary["top"] = {self._by: top[self._by]} if isinstance(top, dict) else top
        if self._stacks.shows or (not self._by and self._stacks.known):
            stacks = self._stacks.as_dicts(self._top, self._symbolizer)
            whole = summary["top"] if isinstance(summary["top"], dict) and not self._stacks.shows else {}
            unsure = sampled is None and self._stacks.unsure(self._symbolizer)
            functions = self._functions if unsure else None
            exact = {"function": functions.top(self._top)} if functions is not None else {}
            summary["top"] = {**whole, **exact, self._stacks.asked_for: stacks}
        elif self._counts is not None:
            rows = [] if sampled is None else sampled.rows(place_rows(self._counts))
            found = {row.label: (row.minor, row.major, row.samples) for row in rows}
            summary["top"] = {self._by: self._counts.top(self._top, found or None)}
            summary["unnamed"] = [
                {"module": module, "why": why, "faults": n} for (module, why), n in self._counts.unnamed.items()
            ]
        report = {
            "answer": self._answer(),
            "completeness": headline.completeness(self.summary, info, ledger, self._seen),
            **self._growth_as_dict(),
            "filter": str(self._filter),
            "seen": self._seen,
            "facts": info.to_dict(),
            "ledger": ledger.as_dict(),
            "summary": summary,
        }
        return cast("dict[str, Any]", json_safe(report))

    def _growth_as_dict(self) -> dict[str, Any]:
        if self._growth is None or self._growth.bytes is None:
            return {}
        return {"growth": {"bytes": self._growth.bytes, "seconds": self._growth.seconds, "line": self._grower()}}

    def after_fork_in_child(self) -> None:
        """In a forked child: drops the output and the live line without writing."""
        self._output = self._live = None
