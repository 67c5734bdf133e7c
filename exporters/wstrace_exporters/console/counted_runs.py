"""Runs a command again and again: counted by the system alone, and once traced to see who brings its memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from wstrace.analysis.baseline import NAMES, Bytes, Entry
from wstrace.conditions import UNSEEN, run, streams

if TYPE_CHECKING:
    from wstrace.conditions import Conditions
    from wstrace.interfaces import Platform


class Runs:
    """The runs of a command.

    Args:
        platform: launches it. command: its words. conditions: those of its runs. to_stderr: whether what it prints
            goes there.

    Attributes:
        figures: of each run that counts: `faults`, `major` and `peak`, as far as the system says them.
    """

    def __init__(self, platform: Platform, command: Sequence[str], conditions: Conditions, *, to_stderr: bool) -> None:
        self._platform, self._command, self._to_stderr = platform, command, to_stderr
        self._conditions = conditions
        self.figures: list[dict[str, int]] = []

    def count(self, n: int) -> int:
        """Runs it once to warm up and n times that count. Returns the first exit code that is not 0, else 0."""
        with streams({1: 2} if self._to_stderr else {}):
            code = self._run()
        with streams(UNSEEN):
            for _ in range(n):
                if code:
                    break
                code = self._run(counts=True)
        return code

    def _run(self, *, counts: bool = False) -> int:
        with self._conditions.held(self._platform):
            launched = self._platform.launch(self._command)
        with closing(launched) as target:
            code, used = run(target)
        if counts:
            known = {"faults": used.faults, "major": used.major,
                     "peak": None if used.peak_sampled else used.peak_resident_bytes}  # fmt: skip
            self.figures.append({name: value for name, value in known.items() if value is not None})
        return code

    @property
    def least(self) -> dict[str, int]:
        """The least of each figure that every run has."""
        return {name: min(run[name] for run in self.figures) for name in self.figures[0]
                if all(name in run for run in self.figures)}  # fmt: skip

    def entry(self) -> Entry:
        """The least of each figure, and its spread."""
        return Entry.of(self.figures)

    def traced(self) -> Entry:
        """The same, with who brings the memory, as seen in one run more."""
        from wstrace_exporters.console.recorded import trace_of

        options = {"output": None, "force": False, "duration": None, "sources": ()}
        with ExitStack() as stack:
            with streams(UNSEEN), self._conditions.held(self._platform):
                trace, _ = stack.enter_context(trace_of(tuple(self._command), options, literal=True))
            by_line = bool(trace.rows.get("page_fault"))
            rows = trace.report(by="line" if by_line else "file", at="peak").rows
        lead = "brought" if by_line else "resident"
        by = [Bytes(row.label, row[lead]) for row in rows if row["faults"] or not by_line]
        by.sort(key=lambda row: (-row.bytes, row.label))
        counted = self.entry() if self.figures else Entry({}, {}, 0)
        return replace(counted, by=tuple(by[:NAMES]), level="line" if by_line else "file")
