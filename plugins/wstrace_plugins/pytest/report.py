"""What the plugin prints: why a test is over its budget, and the table of the tests with the most page faults."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from wstrace.text import number, printable, size

if TYPE_CHECKING:
    import pytest

    from wstrace_plugins.pytest.limits import Measured

_ROWS = 10
_LABEL = 90
_NAMES = 5


def failure(measured: Measured, grown: Sequence[str]) -> str:
    """The text of a test that is over its budget: which figures, what grew, and what has the memory."""
    lines = [*(f"wstrace: {text}" for text in measured.broken), *map(printable, grown)]
    if measured.rows:
        what = "own line" if measured.by == "line" else "file or kind of memory, which has more at its end"
        lines.append(f"{'brought':>10}  {'of it left':>10}  {what}")
    for label, brought, left in measured.rows[:_ROWS]:
        lines.append(f"{size(brought):>10}  {size(left):>10}  {printable(label, _LABEL)}")
    return "\n".join([*lines, f"({measured.lacking})"] if measured.lacking else lines)


def summary(terminal: pytest.TerminalReporter, rows: int, sentences: Iterable[str]) -> None:
    """The tests with the most page faults, sentences on the whole run, and why tests were not judged."""
    counted: list[tuple[int, str, str]] = []
    tests = defaultdict(list)
    for report in [one for several in terminal.stats.values() for one in several if hasattr(one, "wstrace_faults")]:
        faults, spread = report.wstrace_faults
        counted.append((faults, report.nodeid, spread))
        for note in report.wstrace["notes"] if hasattr(report, "wstrace") else ():
            tests[note].append(report.nodeid)
    if rows:
        terminal.section("wstrace: most page faults")
        for faults, name, spread in heapq.nlargest(rows, counted, key=lambda row: row[0]):
            terminal.write_line(f"{number(faults):>12}  {printable(name, _LABEL)}{spread}")
        total = sum(faults for faults, _, _ in counted)
        terminal.write_line(f"{number(total):>12}  in all {number(len(counted))} tests")
    for text in sentences:
        terminal.write_line(f"wstrace: {printable(text)}", yellow=True)
    for note, names in tests.items():
        more = f" and {number(len(names) - _NAMES)} more" if len(names) > _NAMES else ""
        terminal.write_line(f"wstrace: {printable(note)}: {printable(', '.join(names[:_NAMES]))}{more}", yellow=True)
