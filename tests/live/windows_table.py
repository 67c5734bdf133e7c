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
FILES = [HERE / "test_windows_assumptions.py", HERE / "test_windows_live.py"]


def statements():
    """(statement, names of the tests that settle it) of each row of the table."""
    rows = (line.strip("| ").split(" | ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| "))
    found = [(row[0], re.findall(r"`(test_\w+)`", row[-1])) for row in rows if len(row) == 3]
    return [(statement, tests) for statement, tests in found if tests]


class Outcomes:
    """of: test -> (outcome, the first line of its reason)."""

    def __init__(self):
        self.of = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            text = report.longreprtext.splitlines() or [""]
            why = next((line[1:].strip() for line in text if line.startswith("E ")), text[-1])
            self.of[report.nodeid.rpartition("::")[2]] = report.outcome, why


def main(arguments):
    outcomes = Outcomes()
    code = pytest.main(["-q", *map(str, FILES), *arguments], plugins=[outcomes])
    lines = ["", "| statement | outcome | |", "|---|---|---|"]
    for statement, tests in statements():
        found = [outcomes.of.get(test, ("not run", "")) for test in tests]
        worst = next((one for one in found if one[0] != "passed"), found[0])
        lines.append(f"| {statement} | {worst[0]} | {worst[1].replace('|', '/')} |")
    text = "\n".join(lines)
    print(text)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
