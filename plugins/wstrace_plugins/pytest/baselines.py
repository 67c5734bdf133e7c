"""Baselines in pytest: what tests took when `--wstrace-update` was given, and what is said where there is none."""

from __future__ import annotations

import pytest

import wstrace_plugins.os
from wstrace.analysis.baseline import PLACE, Baseline, Entry, Judgement, Machine, grew
from wstrace.errors import OutputError, UsageError
from wstrace.text import plural, size
from wstrace_plugins.pytest.limits import Measured
from wstrace_plugins.pytest.settings import setting

#: Runs of a test in children of which the baseline is recorded: by these its spread is learned.
RUNS = 5
_GREW = 5


class Baselines:
    """The file of the project, what is judged by it, and what of this run goes into it.

    config: of the run. updating: whether this run is recorded. notes: sentences for the end of the run. Raises
    pytest.UsageError: the file is no baseline.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._path = config.rootpath / PLACE
        self.updating = setting(config, "wstrace_update")
        self._required = setting(config, "wstrace_require_baseline")
        self.notes: list[str] = []
        self._measured: dict[str, Entry] = {}
        self._file: Baseline | None = None
        if self.updating or self._required or self._path.exists():
            platform = wstrace_plugins.os.backend("wstrace_plugins.os").platform()
            self._page_size: int = platform.page_size
            self._machine, self._file = Machine.this(platform), self._load()
            self._why_not = self._file.why_not(self._machine)
            if self._why_not and not self.updating:
                self.notes.append(f"nothing is judged by a baseline: {self._why_not}; record one: --wstrace-update")

    def _load(self) -> Baseline:
        try:
            return Baseline.load(str(self._path))
        except UsageError as error:
            if not self.updating:
                raise pytest.UsageError(f"wstrace: {error}") from None
            self.notes.append(f"the baseline is recorded anew: {error.why}")
            return Baseline(str(self._path))

    def recorded(self, test: str) -> Entry | None:
        """What a test will be compared with; None = nothing."""
        if self._file is None or self._why_not:
            return None
        return self._file.environments[self._machine.key].tests.get(test)

    def judge(self, test: str, measured: Measured) -> Judgement:
        """Compares a test with what is recorded of it; also when nothing is, where that was wanted."""
        if self._file is None or self.updating:
            return Judgement()
        if (entry := self.recorded(test)) is None:
            why = self._why_not or "nothing is recorded of this test; record it: --wstrace-update"
            return Judgement(broken=[f"not judged by a baseline: {why}"] if self._required else [],
                             noisy=[] if self._why_not else ["no baseline"])  # fmt: skip
        return entry.judged(measured.least, self._page_size)

    def grown(self, test: str, measured: Measured) -> list[str]:
        """Lines on what brings more than in the baseline, of a test that is over it."""
        entry = self.recorded(test)
        over = entry is not None and measured.by and entry.judged(measured.least, self._page_size).broken
        rows = grew(entry, measured.entry)[:_GREW] if entry is not None and over else []
        lines = [
            f"{'+' + size(now - was):>11}  {label}" + (f" ({size(was)} before)" if was else "")
            for label, was, now in rows
        ]
        return ["more than in the baseline:", *lines] if lines else []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes what a test that passed has taken; of workers of xdist, too."""
        if report.when == "call" and report.passed and hasattr(report, "wstrace"):
            self._measured[report.nodeid] = Measured(**report.wstrace).entry

    def save(self) -> bool:
        """Writes the file. Returns False where it cannot; a note says why."""
        if self._file is None or not self._measured:
            self.notes.append("no baseline is written: no test with a marker has passed")
            return True
        self._file.record(self._machine, self._measured, self._page_size)
        try:
            self._file.save()
        except (OutputError, OSError) as error:
            self.notes.append(f"the baseline is not written: {error}")
            return False
        self.notes.append(f"the baselines of {plural(len(self._measured), 'test')} are in {self._path}")
        return True
