"""What the plugin tells: why a test is over its budget, and the table of the tests with the most page faults."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from wstrace.text import number, printable, size

if TYPE_CHECKING:
    import pytest

    from wstrace_plugins.pytest.limits import Measured
    from wstrace_plugins.pytest.observer import Row

#: (test, its page faults, how far its runs lie apart, in words)
Counted = tuple[str, int, str]
_ROWS = 10
_LABEL = 90
_NAMES = 5
#: The annotations that GitHub shows of a step.
_ANNOTATIONS = 10


def failure(measured: Measured, grown: Sequence[str]) -> str:
    """The text of a test that is over its budget: which figures, what grew, and whose memory it is."""
    lines = [*(f"wstrace: {text}" for text in measured.broken), *map(printable, grown)]
    seen = measured.seen
    if seen is not None:
        lines += _lines(seen.rows[:_ROWS]) if seen.by == "line" else _files(seen.rows[:_ROWS])
        lines += [f"({seen.lacking})"] if seen.lacking else []
    return "\n".join(lines)


def _lines(rows: list[Row]) -> list[str]:
    head = [f"{'brought':>10}  {'of it left':>10}  own line"] if rows else []
    return head + [
        f"{size(brought):>10}  {size(left):>10}  {printable(label, _LABEL)}" for label, brought, left in rows
    ]


def _files(rows: list[Row]) -> list[str]:
    head = [f"{'more':>10}  file or kind of memory"] if rows else ["no file and no kind of memory has more at its end"]
    return head + [f"{size(left):>10}  {printable(label, _LABEL)}" for label, _, left in rows]


def top(terminal: pytest.TerminalReporter, counted: list[Counted], rows: int) -> None:
    """The tests with the most page faults."""
    terminal.section("wstrace: most page faults")
    for name, faults, note in heapq.nlargest(rows, counted, key=lambda row: row[1]):
        terminal.write_line(f"{number(faults):>12}  {printable(name, _LABEL)}" + (f"  ({note})" if note else ""))
    total = sum(faults for _, faults, _ in counted)
    terminal.write_line(f"{number(total):>12}  in all {number(len(counted))} tests")


def notes(terminal: pytest.TerminalReporter, sentences: Iterable[str], reports: list[pytest.TestReport]) -> None:
    """Sentences on the whole run, and the tests that were not judged, by why not."""
    tests = defaultdict(list)
    for report in reports:
        for note in report.wstrace["notes"]:
            tests[note].append(report.nodeid)
    for text in sentences:
        terminal.write_line(f"wstrace: {printable(text)}", yellow=True)
    for note, names in tests.items():
        more = f" and {number(len(names) - _NAMES)} more" if len(names) > _NAMES else ""
        terminal.write_line(f"wstrace: {printable(note)}: {printable(', '.join(names[:_NAMES]))}{more}", yellow=True)


def annotate(terminal: pytest.TerminalReporter, reports: list[pytest.TestReport]) -> None:
    """Prints an annotation for GitHub Actions at each test that is over its budget.

    Source: docs.github.com, "Workflow commands for GitHub Actions": ::error file=,line=::
    """
    for report in [one for one in reports if one.wstrace["broken"]][:_ANNOTATIONS]:
        file, line, _ = report.location
        where = f"file={_escaped(file, ':,')},line={(line or 0) + 1},title=wstrace"
        text = "; ".join(report.wstrace["broken"])
        terminal.write_line(f"::error {where}::{_escaped(f'{report.nodeid}: {text}')}")


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(letter):02X}" if letter in "%\r\n" + more else letter for letter in printable(text))
