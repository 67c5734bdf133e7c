"""What `--wstrace` does in a pytest run: counts every test, measures and judges those with a marker."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from wstrace.errors import Unavailable, UsageError
from wstrace_plugins.pytest import report
from wstrace_plugins.pytest.baselines import RUNS, Baselines
from wstrace_plugins.pytest.isolated import CHILD, Apart, Child, run_apart
from wstrace_plugins.pytest.limits import FIGURES, Limits, Measured, limits_of
from wstrace_plugins.pytest.meter import Meter, backend, cannot, clean_heap
from wstrace_plugins.pytest.observer import Observer
from wstrace_plugins.pytest.report import Counted

if TYPE_CHECKING:
    from wstrace import MemoryWatch

_LIMITS = pytest.StashKey[Limits]()
_MEASURED = pytest.StashKey[Measured]()
_APART = pytest.StashKey[Apart]()


@contextmanager
def _watch() -> Iterator[MemoryWatch]:
    """A watch of what this process writes."""
    import wstrace

    try:
        watch = wstrace.MemoryWatch()
    except Unavailable as refused:
        pytest.fail(str(cannot("written", refused)), pytrace=False)
    with watch:
        watch.written()  # so that its own pages are in memory
        yield watch


class Budgets:
    """The hooks of a run; one object for each process of xdist.

    Attributes:
        counted: those that were called here. lost: what is missing in it, in words.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._system = backend()
        self._faults = self._system.faults
        self._observer = Observer()
        self._baselines = Baselines(config)
        #: in a process that runs one test for another pytest: whether it is to see who brings memory; else None
        self._traced: bool | None = None
        how, parent, path = [*os.environ.pop(CHILD, "").split(":", 2), "", ""][:3]
        if path:
            self._system.end_with(int(parent))
            self._traced = how == "traced"
            config.pluginmanager.register(Child(config, path))
        self.counted: list[Counted] = []
        self.lost: list[str] = []
        self._is_worker = hasattr(config, "workerinput")
        if self._baselines.updating and not self._is_worker and not path:
            config.pluginmanager.register(self._baselines, "wstrace-baselines")
        config.option.wstrace_arguments = getattr(
            config.option, "wstrace_arguments", [str(word) for word in config.invocation_params.args]
        )  # a worker of xdist gets it with the other options

    # -- collection ---------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        """A marker that cannot be is an error of the collection."""
        outcome = yield
        wrong = []
        for item in outcome.result if outcome.passed else ():
            if isinstance(item, pytest.Item):
                try:
                    limits_of(item.iter_markers("wstrace"))
                except UsageError as error:
                    wrong.append(f"{item.nodeid}: {error}")
        if wrong:
            outcome.outcome, outcome.longrepr, outcome.result = "failed", "\n".join(wrong), []
        return outcome

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Notes the limits; a marker that another plugin has added counts, too."""
        for item in items:
            try:
                limits = limits_of(item.iter_markers("wstrace"))
            except UsageError as error:
                raise pytest.UsageError(f"{item.nodeid}: {error}") from None
            if limits is not None:
                if self._baselines.updating and limits.isolated != "no":
                    limits = replace(limits, runs=max(limits.runs, RUNS))
                item.stash[_LIMITS] = limits
                if limits.isolated != "no" and self._traced is None:
                    self._set_apart(item, limits)

    def _set_apart(self, item: pytest.Item, limits: Limits) -> None:
        """Lets the test run in children of this process; with `exec`, its fixtures, too."""
        own = item.runtest

        def in_child(traced: bool) -> None:
            self._traced = traced
            vars(item)["runtest"] = own

        def runtest() -> None:
            found = run_apart(item, limits, in_child, lambda measured: self._names_wanted(item, limits, measured))
            item.stash[_APART] = found
            item.user_properties += [pair for pair in found.report.user_properties if pair not in item.user_properties]
            if found.measured is not None:
                self._judge(item, limits, found.measured)
            found.raise_outcome()

        vars(item)["runtest"] = runtest
        if limits.isolated == "exec":
            vars(item)["setup"] = vars(item)["teardown"] = lambda: None

    # -- a test -------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, trylast=True)  # the innermost: what other plugins do around a test is not its own
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Counts the faults of the call."""
        limits = item.stash.get(_LIMITS, None)
        if limits is None:
            before = self._faults()[0]
            try:
                return (yield)
            finally:
                self.counted.append((item.nodeid, self._faults()[0] - before, ""))
        if self._traced is None and limits.isolated != "no":
            return (yield)
        return (yield from self._measure(item, limits))

    def _measure(self, item: pytest.Item, limits: Limits) -> Generator[None, Any, Any]:
        """Counts, and has the observer watch: who brings memory is known only if it watched when that came."""
        names = self._names_may_be_told(item, limits)
        seen = None
        with _watch() if "written" in limits.most else nullcontext() as watch, clean_heap(self._system):
            try:
                meter = Meter(self._system, limits.most)
            except Unavailable as refused:
                pytest.fail(str(refused), pytrace=False)
            if names:
                self._observer.begin(os.getpid())
            if watch is not None:
                watch.reset()
            meter.start()
            try:
                result = yield
            finally:
                meter.stop()
                if watch is not None:
                    meter.figures["written"] = int(watch.written()[1].sum()) * watch.page_size
                if names:
                    seen = self._observer.end()
        measured = item.stash[_MEASURED] = Measured([meter.figures], seen)
        if self._traced is None:
            self._judge(item, limits, measured)
        return result

    def _judge(self, item: pytest.Item, limits: Limits, measured: Measured) -> None:
        """Notes the figures, and fails the test when a limit is passed."""
        item.stash[_MEASURED] = measured
        self.counted.append((item.nodeid, measured.least["faults"], measured.spread))
        for name in FIGURES:
            if name in measured.least:
                item.user_properties.append((f"wstrace.{name}", measured.least[name]))
        if limits.isolated != "no":
            item.user_properties.append(("wstrace.runs", len(measured.runs)))
        if len(measured.runs) > 1:
            item.user_properties.append(("wstrace.spread", measured.spread_of("faults")))
        judgement = self._baselines.judge(item.nodeid, measured)
        measured.notes = judgement.noisy
        measured.broken = [*measured.over(limits.most), *judgement.broken]
        if measured.broken:
            grown = self._baselines.grown(item.nodeid, measured) if judgement.broken else []
            pytest.fail(report.failure(measured, grown), pytrace=False)

    def _names_may_be_told(self, item: pytest.Item, limits: Limits) -> bool:
        """Whether the observer has to watch while the test runs: in place it cannot be run again for its names.

        A test that has neither a limit nor a baseline cannot be over its budget.
        """
        if self._traced is not None:
            return self._traced
        return bool(limits.most) or self._baselines.updating or self._baselines.recorded(item.nodeid) is not None

    def _names_wanted(self, item: pytest.Item, limits: Limits, measured: Measured) -> bool:
        """Whether it will be known who brings the memory of a test whose figures are these."""
        if self._baselines.updating or measured.over(limits.most):
            return True
        return bool(self._baselines.judge(item.nodeid, measured).broken)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """A test that ran in a child has the outcome, the output and the text of that."""
        outcome = yield
        if call.when == "call":
            measured = item.stash.get(_MEASURED, None)
            if (apart := item.stash.get(_APART, None)) is not None:
                apart.complete(outcome, judged=measured is not None and bool(measured.broken))
                del item.stash[_APART]
            if measured is not None:
                outcome.wstrace = measured.as_dict()
        return outcome

    # -- the end ------------------------------------------------------------------------------------------------

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the baselines; a worker of xdist hands on what it has counted."""
        self._observer.close()
        if self._config.pluginmanager.has_plugin("wstrace-baselines") and not self._baselines.save():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if (output := getattr(self._config, "workeroutput", None)) is not None:
            output["wstrace"] = self.counted

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Takes what a worker of xdist has counted."""
        output = getattr(node, "workeroutput", None) or {}
        if "wstrace" in output:
            self.counted += [(str(name), int(faults), str(note)) for name, faults, note in output["wstrace"]]
        else:
            self.lost.append(f"worker {node.gateway.id} ended early: the tests that it ran are not in this table")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the table; tells GitHub which tests are over their budgets."""
        wanted = self._config.getoption("wstrace_top")
        if wanted is None:
            wanted = int(self._config.getini("wstrace_top"))
        reports = [one for several in terminalreporter.stats.values() for one in several if hasattr(one, "wstrace")]
        if wanted > 0:
            report.top(terminalreporter, self.counted, wanted)
        report.notes(terminalreporter, [*self.lost, *self._baselines.notes], reports)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            report.annotate(terminalreporter, reports)
