"""What the plugin tells: why a test is over its budget, and the table of the tests with the most page faults."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from wstrace.text import number, printable, size

if TYPE_CHECKING:
    import pytest

    from wstrace_pytest.measured import Measured
    from wstrace_pytest.observer import Row

_ROWS = 10
_LABEL = 90


def failure(measured: Measured) -> str:
    """The text of a test that is over its budget: which figures, and whose memory it is."""
    lines = [f"wstrace: {text}" for text in measured.broken]
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


def top(terminal: pytest.TerminalReporter, counted: list[tuple[str, int]], lost: list[str], rows: int) -> None:
    """The tests with the most page faults."""
    terminal.section("wstrace: most page faults")
    for name, faults in heapq.nlargest(rows, counted, key=lambda row: row[1]):
        terminal.write_line(f"{number(faults):>12}  {printable(name, _LABEL)}")
    total = sum(faults for _, faults in counted)
    terminal.write_line(f"{number(total):>12}  in all {number(len(counted))} tests")
    for text in lost:
        terminal.write_line(f"wstrace: {text}", yellow=True)
