"""Baselines in pytest: what tests took when `--wstrace-update` was given, and what is told where there is none."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

import wstrace_plugins.os
from wstrace.analysis.baseline import Bytes, Entry, Judgement, grew
from wstrace.analysis.baseline_file import PLACE, Baseline, Machine
from wstrace.errors import OutputError, UsageError
from wstrace.text import plural, size
from wstrace_plugins.pytest.measured import Measured
from wstrace_plugins.pytest.settings import conditions, switched_on

#: Runs of a test in children whose baseline is recorded: by these its spread is learned.
RUNS = 5
_GREW = 5


class _State(NamedTuple):
    """The file, this machine, and why the two are not compared."""

    file: Baseline
    machine: Machine
    why_not: str


class Baselines:
    """The file of the project, what is judged by it, and what of this run goes into it.

    Args:
        config: of the run.

    Attributes:
        updating: whether this run is recorded. told: sentences for the end of the run.

    Raises:
        pytest.UsageError: the file is no baseline.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._path = config.rootpath / PLACE
        self.updating = switched_on(config, "wstrace_update")
        self._required = switched_on(config, "wstrace_require_baseline")
        self.told: list[str] = []
        self._measured: dict[str, Entry] = {}
        self._state: _State | None = None
        if self.updating or self._required or self._path.exists():
            platform = wstrace_plugins.os.backend("wstrace_plugins.os").platform()
            self._page_size: int = platform.page_size
            machine, file = Machine.this(platform, conditions(config)), self._load()
            self._state = _State(file, machine, file.why_not(machine))
            if self._state.why_not and not self.updating:
                self.told.append(
                    f"nothing is judged by a baseline: {self._state.why_not}; record one: --wstrace-update"
                )

    def _load(self) -> Baseline:
        try:
            return Baseline.load(str(self._path))
        except UsageError as error:
            if not self.updating:
                raise pytest.UsageError(f"wstrace: {error}") from None
            self.told.append(f"the baseline is recorded anew: {error.why}")
            return Baseline(str(self._path))

    def knows(self, test: str) -> bool:
        """Whether a test will be compared with what is recorded of it."""
        state = self._state
        return state is not None and not state.why_not and test in state.file.environments[state.machine.key].tests

    def judge(self, test: str, measured: Measured) -> Judgement:
        """Compares a test with what is recorded of it; also when nothing is, where that was asked for."""
        state = self._state
        if state is None or self.updating:
            return Judgement()
        why = state.why_not
        entry = None if why else state.file.environments[state.machine.key].tests.get(test)
        if entry is None:
            why = why or "nothing is recorded of this test; record it: --wstrace-update"
            return Judgement(broken=[f"not judged by a baseline: {why}"] if self._required else [],
                             noisy=[] if state.why_not else ["no baseline"])  # fmt: skip
        return entry.judged(measured.least, self._page_size)

    def grown(self, test: str, measured: Measured) -> list[str]:
        """Lines that tell what brings more than in the baseline."""
        state = self._state
        entry = None if state is None or state.why_not else state.file.environments[state.machine.key].tests.get(test)
        rows = grew(entry, _entry(measured))[:_GREW] if entry is not None and measured.seen is not None else []
        before = [f" ({size(was)} before)" if was else "" for _, was, _ in rows]
        lines = [f"{'+' + size(now - was):>11}  {label}" for label, was, now in rows]
        head = ["more than in the baseline:"] if rows else []
        return head + [line + text for line, text in zip(lines, before, strict=True)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes what a test that passed has taken; of workers of xdist, too."""
        if report.when == "call" and report.passed and (data := getattr(report, "wstrace", None)) is not None:
            self._measured[report.nodeid] = _entry(Measured.of(data))

    def save(self) -> bool:
        """Writes the file. Returns False where it cannot; why is told."""
        if self._state is None or not self._measured:
            self.told.append("no baseline is written: no test with a marker has passed")
            return True
        compiled = _has_compiled()
        found = {test: replace(entry, compiled=compiled) for test, entry in self._measured.items()}
        self._state.file.record(self._state.machine, found, self._page_size)
        try:
            self._state.file.save()
        except (OutputError, OSError) as error:
            self.told.append(f"the baseline is not written: {error}")
            return False
        self.told.append(f"the baselines of {plural(len(self._measured), 'test')} are in {self._path}")
        if compiled:
            self.told.append("recorded while Python compiled what it imported, which later runs need not; record once "
                             "more: --wstrace-update")  # fmt: skip
        return True


def _entry(measured: Measured) -> Entry:
    seen = measured.seen
    by = [Bytes(label, brought) for label, brought, _ in seen.rows] if seen is not None else []
    return Entry.of(measured.runs, by, seen.by if seen is not None else "file")


def _has_compiled() -> bool:
    """Whether this process has compiled most of the modules that it has, as the first one after some installations."""
    from wstrace.plugins import own_platform

    platform = own_platform()
    this = platform.process(os.getpid()) if platform is not None else None
    began = this.started if this is not None else time.time()
    specs = (getattr(module, "__spec__", None) for module in list(sys.modules.values()))
    cached = {path for spec in specs if (path := getattr(spec, "cached", None))}
    ours = there = 0
    for path in cached:
        try:
            ours += Path(path).stat().st_mtime >= began
            there += 1
        except OSError:  # nowhere kept: each run compiles it
            continue
    return 2 * ours > there
