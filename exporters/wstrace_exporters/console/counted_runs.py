"""Runs a command again and again: counted by the system alone, and once traced to see who brings its memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from wstrace.analysis.baseline import NAMES, Bytes, Entry

if TYPE_CHECKING:
    from wstrace.interfaces import Platform, Target, Usage


#: Of streams(): what is started reads nothing and prints to nobody.
_UNSEEN: Mapping[int, int | None] = {0: None, 1: None, 2: None}


@contextmanager
def streams(places: Mapping[int, int | None]) -> Iterator[None]:
    """While entered, these descriptors are others, or the null device: what a command that is started now inherits."""
    saved = {number: os.dup(number) for number in places}
    try:
        for number, other in places.items():
            source = os.open(os.devnull, os.O_RDWR) if other is None else os.dup(other)
            os.dup2(source, number)
            os.close(source)
        yield
    finally:
        for number, descriptor in saved.items():
            os.dup2(descriptor, number)
            os.close(descriptor)


def _to_the_end(target: Target) -> tuple[int, Usage]:
    """Lets a launched target run: its exit code, and what the system accounts to it. Ctrl-C ends the target first."""
    target.resume()
    try:
        while (code := target.wait(0.5)) is None:
            pass
    except BaseException:
        target.signal(signal.SIGTERM)
        raise
    return code, target.usage()


class Runs:
    """The runs of a command.

    platform: launches it. command: its words. to_stderr: whether what it prints goes there. figures: of each run that
    counts: `peak`, `faults` and `major`, as far as the system says them.
    """

    def __init__(self, platform: Platform, command: Sequence[str], *, to_stderr: bool) -> None:
        self._platform, self._command, self._to_stderr = platform, command, to_stderr
        self.figures: list[dict[str, int]] = []

    def count(self, n: int) -> int:
        """Runs it once to warm up and n times that count. Returns the first exit code that is not 0, else 0."""
        with streams({1: 2} if self._to_stderr else {}):
            code = self._run()
        with streams(_UNSEEN):
            for _ in range(n):
                if code:
                    break
                code = self._run(counts=True)
        return code

    def _run(self, *, counts: bool = False) -> int:
        with closing(self._platform.launch(self._command)) as target:
            code, used = _to_the_end(target)
        if counts:
            peak = None if used.peak_sampled else used.peak_resident_bytes
            known = {"peak": peak, "faults": used.faults, "major": used.major}
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
            with streams(_UNSEEN):
                trace, _ = stack.enter_context(trace_of(tuple(self._command), options, literal=True))
            by_line = bool(trace.rows.get("page_fault"))
            rows = trace.report(by="line" if by_line else "file", at="peak").rows
        lead = "brought" if by_line else "resident"
        by = [Bytes(row.label, row[lead]) for row in rows if row["faults"] or not by_line]
        by.sort(key=lambda row: (-row.bytes, row.label))
        counted = self.entry() if self.figures else Entry({}, {}, 0)
        return replace(counted, by=tuple(by[:NAMES]), level="line" if by_line else "file")
