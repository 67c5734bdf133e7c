"""GitHub Actions: an annotation at each test that is over its budget, and a table in the summary of the step.

Source: docs.github.com, "Workflow commands for GitHub Actions": ::error file=,line=::, GITHUB_STEP_SUMMARY (1 MiB a
step; 10 annotations of a kind a step).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wstrace.errors import OutputError
from wstrace.output_file import open_output
from wstrace.text import printable
from wstrace_plugins.pytest.limits import FIGURES, shown
from wstrace_plugins.pytest.measured import Measured

if TYPE_CHECKING:
    import pytest

_ANNOTATIONS = 10
_BYTES = 1 << 19


def tell(terminal: pytest.TerminalReporter, reports: list[pytest.TestReport]) -> None:
    """Prints the annotations and appends the table."""
    broken = [told for told in reports if told.wstrace["broken"]]
    for told in broken[:_ANNOTATIONS]:
        file, line, _ = told.location
        text = "; ".join(told.wstrace["broken"])
        where = f"file={_property(file)},line={(line or 0) + 1},title=wstrace"
        terminal.write_line(f"::error {where}::{_data(f'{told.nodeid}: {text}')}")
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path and reports:
        try:
            opened = open_output(path, resume=True)
        except OutputError as error:
            terminal.write_line(f"wstrace: {error}", yellow=True)
            return
        with os.fdopen(opened.fd, "wb") as file_:
            if opened.regular:
                file_.seek(0, os.SEEK_END)
            file_.write(_table(reports).encode("utf-8", "replace"))


def _table(reports: list[pytest.TestReport]) -> str:
    lines = [f"| test | {' | '.join(FIGURES)} | |", "|---|" + "---:|" * len(FIGURES) + "---|"]
    size = 0
    for told in sorted(reports, key=lambda one: (not one.wstrace["broken"], one.nodeid)):
        measured = Measured.of(told.wstrace)
        cells = [shown(name, measured.least[name]) if name in measured.least else "" for name in FIGURES]
        line = f"| {_cell(told.nodeid)} | {' | '.join(cells)} | {_cell('; '.join(measured.broken))} |"
        size += len(line.encode("utf-8", "replace")) + 1
        if size > _BYTES:
            lines.append(f"| and others: {len(reports) - len(lines) + 2} |" + " |" * (len(FIGURES) + 1))
            break
        lines.append(line)
    return "\n### wstrace\n\n" + "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text that stays in its cell and is no markup."""
    return "".join(f"&#{ord(letter)};" if letter in "&<>|`*_[]\\~" else letter for letter in printable(text))


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
