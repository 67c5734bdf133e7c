"""What `--wstrace` does in a pytest run: counts every test, measures, judges those with a marker, and says so."""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest

from wstrace.errors import Unavailable, UsageError
from wstrace.text import number, plural, printable, size
from wstrace_plugins.pytest.baselines import RUNS, Baselines
from wstrace_plugins.pytest.isolated import CHILD, Child, fail, run_executed, run_forked
from wstrace_plugins.pytest.limits import FIGURES, Limits, Measured, limits_of
from wstrace_plugins.pytest.meter import Meter, backend, clean_heap
from wstrace_plugins.pytest.observer import Observer
from wstrace_plugins.pytest.settings import whole

_LIMITS = pytest.StashKey[Limits]()
_MEASURED = pytest.StashKey[Measured]()
#: the page faults of a call, and how far its runs lie apart, in words
_FAULTS = pytest.StashKey[tuple[int, str]]()
#: the report of a child that says the outcome
_APART = pytest.StashKey[pytest.TestReport]()
#: of a table: its rows, the characters of a label, the names beside a note
_ROWS, _LABEL, _NAMES = 10, 90, 5


class Budgets:
    """The hooks of a run; one object for each process of xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._system = backend()
        self._observer = Observer()
        self._baselines = Baselines(config)
        self._top = whole(config, "wstrace_top")
        #: in a process that runs one test for another pytest: whether it is to see who brings memory; else None
        self._traced: bool | None = None
        how, parent, path = [*os.environ.pop(CHILD, "").split(":", 2), "", ""][:3]
        if path:
            self._system.end_with(int(parent))
            self._traced = how == "traced"
            config.pluginmanager.register(Child(config, path))
        self._records = self._baselines.updating and not path and not hasattr(config, "workerinput")
        if self._records:
            config.pluginmanager.register(self._baselines, "wstrace-baselines")
        config.option.wstrace_arguments = getattr(
            config.option, "wstrace_arguments", [str(word) for word in config.invocation_params.args]
        )  # a worker of xdist gets it with the other options

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Notes the limits; a marker that another plugin has added counts, too. One that cannot be fails its test."""
        for item in items:
            try:
                limits = limits_of(item)
            except UsageError as error:
                vars(item)["runtest"] = partial(fail, str(error))
                continue
            if limits is not None:
                if self._baselines.updating and limits.isolated != "no":
                    limits = limits._replace(runs=max(limits.runs, RUNS))
                item.stash[_LIMITS] = limits
                if limits.isolated != "no" and self._traced is None:
                    self._set_apart(item, limits)

    def _set_apart(self, item: pytest.Item, limits: Limits) -> None:
        """Lets the test run in children of this process; with `exec`, its fixtures, too."""
        own = item.runtest

        def run(*, traced: bool) -> pytest.TestReport:
            def in_child() -> None:
                self._traced = traced
                vars(item)["runtest"] = own

            return run_forked(item, in_child) if limits.isolated == "fork" else run_executed(item, traced=traced)

        def runtest() -> None:
            """As often as the marker says, once before if more than once, and once more to see who brings memory."""
            measured = Measured([])
            warm_up = limits.runs > 1
            for n in range(limits.runs + warm_up):
                shown = run(traced=False)
                if not (shown.passed and hasattr(shown, "wstrace")):
                    item.stash[_APART] = shown
                    return
                if n or not warm_up:
                    measured.runs += shown.wstrace["runs"]
            if self._baselines.updating or self._broken(item, limits, measured):
                last = run(traced=True)
                if not last.passed:
                    item.stash[_APART] = last
                    return
                measured = Measured(**{**last.wstrace, "runs": measured.runs})
            item.stash[_APART] = shown
            item.user_properties += [pair for pair in shown.user_properties if pair not in item.user_properties]
            self._judge(item, limits, measured)

        vars(item)["runtest"] = runtest
        if limits.isolated == "exec":
            vars(item)["setup"] = vars(item)["teardown"] = lambda: None

    @pytest.hookimpl(wrapper=True, trylast=True)  # the innermost: what other plugins do around a test is not its own
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Counts the faults of the call."""
        limits = item.stash.get(_LIMITS, None)
        if limits is None:
            before = self._system.faults()[0]
            try:
                return (yield)
            finally:
                item.stash[_FAULTS] = self._system.faults()[0] - before, ""
        if self._traced is None and limits.isolated != "no":
            return (yield)
        return (yield from self._measure(item, limits))

    def _measure(self, item: pytest.Item, limits: Limits) -> Generator[None, Any, Any]:
        """Counts, and has the observer watch: who brings memory is known only if it watched when that came.

        In place, a test cannot run again for that; one with neither a limit nor a baseline cannot be over its budget.
        """
        watched = self._traced
        if watched is None:
            baselines = self._baselines
            watched = bool(limits.most) or baselines.updating or baselines.recorded(item.nodeid) is not None
        seen: dict[str, Any] = {}
        with clean_heap(self._system):
            try:
                meter = Meter(self._system, limits.most)
            except Unavailable as refused:
                fail(str(refused))
            if watched:
                self._observer.begin(os.getpid())
            meter.start()
            try:
                result = yield
            finally:
                meter.stop()
                if watched:
                    seen = self._observer.end()
        measured = item.stash[_MEASURED] = Measured([meter.figures], **seen)
        if self._traced is None:
            self._judge(item, limits, measured)
        return result

    def _judge(self, item: pytest.Item, limits: Limits, measured: Measured) -> None:
        """Notes the figures, and fails the test when a limit is passed."""
        item.stash[_MEASURED] = measured
        least, runs, apart = measured.least, len(measured.runs), measured.spread
        properties = {name: least[name] for name in FIGURES if name in least}
        if limits.isolated != "no":
            properties["runs"] = runs
        words = ""
        if runs > 1:
            properties["spread"] = apart
            share = f", {apart / least['faults']:.2%}" if least["faults"] else ""
            words = f"  ({runs} runs, spread {number(apart)}{share})"
        item.user_properties += [(f"wstrace.{name}", value) for name, value in properties.items()]
        item.stash[_FAULTS] = least["faults"], words
        if self._broken(item, limits, measured):
            fail(_failure(measured, self._baselines.grown(item.nodeid, measured)))

    def _broken(self, item: pytest.Item, limits: Limits, measured: Measured) -> bool:
        """Whether a limit, or what the baseline allows, is passed; notes which."""
        judgement = self._baselines.judge(item.nodeid, measured)
        measured.notes = judgement.noisy
        measured.broken = [*measured.over(limits.most), *judgement.broken]
        return bool(measured.broken)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Puts on the report what was counted; a test that ran in a child has the outcome, output and text of that."""
        outcome = yield
        if call.when != "call":
            return outcome
        measured = item.stash.get(_MEASURED, None)
        if (apart := item.stash.get(_APART, None)) is not None:
            del item.stash[_APART]
            outcome.sections = list(apart.sections)
            if measured is None or not measured.broken:
                outcome.outcome, outcome.longrepr = apart.outcome, apart.longrepr
                vars(outcome).pop("wasxfail", None)
                if hasattr(apart, "wasxfail"):
                    outcome.wasxfail = apart.wasxfail
        if measured is not None:
            outcome.wstrace = asdict(measured)
        if _FAULTS in item.stash:
            outcome.wstrace_faults = item.stash[_FAULTS]
        return outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the baselines."""
        self._observer.close()
        if self._records and not self._baselines.save():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the table."""
        _summary(terminalreporter, self._top, self._baselines.notes)


def _failure(measured: Measured, grown: Sequence[str]) -> str:
    """The text of a test that is over its budget: which figures, what grew, and what has the memory."""
    lines = [*(f"wstrace: {text}" for text in measured.broken), *map(printable, grown)]
    if measured.rows:
        what = "own line" if measured.by == "line" else "file or kind of memory, which has more at its end"
        lines.append(f"{'brought':>10}  {'of it left':>10}  {what}")
    for label, brought, left in measured.rows[:_ROWS]:
        about = "~" if size(brought) != size(left) else ""  # of what has gone, one page is counted for each fault
        lines.append(f"{about + size(brought):>10}  {size(left):>10}  {printable(label, _LABEL)}")
    return "\n".join([*lines, f"({measured.lacking})"] if measured.lacking else lines)


def _summary(terminal: pytest.TerminalReporter, rows: int, sentences: Iterable[str]) -> None:
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
        terminal.write_line(f"{number(total):>12}  in {plural(len(counted), 'test')}")
    for text in sentences:
        terminal.write_line(f"wstrace: {printable(text)}", yellow=True)
    for note, names in tests.items():
        more = f" and {number(len(names) - _NAMES)} more" if len(names) > _NAMES else ""
        terminal.write_line(f"wstrace: {printable(note)}: {printable(', '.join(names[:_NAMES]))}{more}", yellow=True)
