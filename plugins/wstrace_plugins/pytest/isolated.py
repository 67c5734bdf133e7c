"""Runs a test in children of this process: forks of it, or one new pytest for each run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from wstrace_plugins.pytest.executed import run_executed
from wstrace_plugins.pytest.forked import run_forked
from wstrace_plugins.pytest.limits import Limits
from wstrace_plugins.pytest.measured import Measured


@dataclass(slots=True)
class Apart:
    """How the runs of a test ended.

    report: that of the run which says the outcome. measured: the figures of all runs; None if one of them did not pass.
    """

    report: pytest.TestReport
    measured: Measured | None = None

    def raise_outcome(self) -> None:
        """Makes the call of the test in this process end as the one in the child did."""
        if self.report.failed:
            pytest.fail("the test failed in its child process", pytrace=False)
        if self.report.skipped:
            pytest.skip("the test was skipped in its child process")

    def complete(self, told: pytest.TestReport, *, judged: bool) -> None:
        """Gives a report the child's output and, unless the test was judged here, outcome and text."""
        told.sections = list(self.report.sections)
        if judged:
            return
        told.outcome, told.longrepr = self.report.outcome, self.report.longrepr
        vars(told).pop("wasxfail", None)
        if hasattr(self.report, "wasxfail"):
            told.wasxfail = self.report.wasxfail


def run_apart(item: pytest.Item, limits: Limits, in_child: Callable[[bool], None],
              wanted: Callable[[Measured], bool]) -> Apart:  # fmt: skip
    """Runs a test as often as its marker says, once before if more than once, and once more to see who brings memory.

    Args:
        item: the test, whose own runtest() a forked child calls.
        limits: how often and how.
        in_child: called in a forked child, with whether this run is to see who brings memory.
        wanted: whether that is wanted for these figures.
    """
    runs: list[dict[str, int]] = []

    def run(*, traced: bool) -> pytest.TestReport:
        if limits.isolated == "fork":
            return run_forked(item, lambda: in_child(traced))
        return run_executed(item, traced=traced)

    warm_up = limits.runs > 1
    for n in range(limits.runs + warm_up):
        report = run(traced=False)
        if not (report.passed and hasattr(report, "wstrace")):
            return Apart(report)
        counted = Measured.of(report.wstrace)
        if n or not warm_up:
            runs += counted.runs
    measured = Measured(runs)
    if wanted(measured):
        last = run(traced=True)
        if not last.passed:
            return Apart(last)
        measured.seen = Measured.of(last.wstrace).seen
    return Apart(report, measured)
