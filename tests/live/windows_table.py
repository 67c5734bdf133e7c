"""Runs the tests that only a real Windows can settle, and prints the table of docs/compatibility.md with what came out.

    python tests/live/windows_table.py [PYTEST-ARGUMENTS]

The table is also added to the summary of a run on GitHub. The exit code is pytest's.
"""

import os
import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "compatibility.md"


class Outcomes:
    """of: test -> the outcome of each of its cases, and the first line of the reason."""

    def __init__(self):
        self.of = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            text = report.longreprtext.splitlines() or [""]
            why = next((line[1:].strip() for line in text if line.startswith("E ")), text[-1])
            name = report.nodeid.rpartition("::")[2].partition("[")[0]
            self.of.setdefault(name, []).append(f"{report.outcome} {why}".replace("|", "/"))


def main(arguments):
    outcomes, lines = Outcomes(), ["", "| statement | what came out |", "|---|---|"]
    code = pytest.main(["-q", str(HERE / "test_windows.py"), *arguments], plugins=[outcomes])
    for row in PAGE.read_text("utf-8").splitlines():
        if tests := re.findall(r"`(test_\w+)`", row):
            found = [outcome for test in tests for outcome in outcomes.of.get(test, ["not run"])]
            lines.append(f"|{row.split('|')[1]}| {'; '.join(found)} |")
    print(*lines, sep="\n")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            print(*lines, sep="\n", file=file)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
