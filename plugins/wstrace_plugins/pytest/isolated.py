"""Runs a test in children of this process: forks of it, or one new pytest for each run."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

import wstrace_plugins.os
from wstrace.errors import Unavailable
from wstrace.text import json_safe, printable
from wstrace_plugins.pytest.limits import Limits, Measured
from wstrace_plugins.pytest.meter import backend
from wstrace_plugins.pytest.settings import conditions

#: The variable that makes a pytest such a child: `counted:PID:FILE` with the pid of this one, or
#: `traced:PID:FILE` if it is to see who brings memory.
CHILD = "WSTRACE_PYTEST_CHILD"
_TAIL = 2000


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

    def complete(self, outcome: pytest.TestReport, *, judged: bool) -> None:
        """Gives a report the child's output and, unless the test was judged here, outcome and text."""
        outcome.sections = list(self.report.sections)
        if judged:
            return
        outcome.outcome, outcome.longrepr = self.report.outcome, self.report.longrepr
        vars(outcome).pop("wasxfail", None)
        if hasattr(self.report, "wasxfail"):
            outcome.wasxfail = self.report.wasxfail


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


# -- in a fork of this process -----------------------------------------------------------------------------------------


def run_forked(item: pytest.Item, in_child: Callable[[], None]) -> pytest.TestReport:
    """Runs it, with all hooks around its call; `in_child` is called in the child before."""
    if not hasattr(os, "fork"):
        fail("wstrace: isolated='fork' cannot be had: this system has no fork; use isolated='exec'")
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if others:
        fail(f"wstrace: isolated='fork' cannot be had beside other threads ({', '.join(others[:5])}): a fork has none "
              "of them, and waits for ever for a lock that one holds; use isolated='exec'")  # fmt: skip
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with tempfile.TemporaryFile() as answer, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12 of a fork beside threads of native libraries
        me = os.getpid()
        pid = os.fork()
        if not pid:
            _child(item, in_child, answer.fileno(), me)
        status = _waited(pid)
        answer.seek(0)
        data = answer.read()
    if status or not data:
        how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
        fail(f"wstrace: the child in which the test ran ended early: {how}")
    return report_of(item.config, json.loads(data))


def _child(item: pytest.Item, in_child: Callable[[], None], answer: int, parent: int) -> NoReturn:
    """What the forked child does: it calls the test with all hooks around it, and never returns."""
    code, me = 1, os.getpid()
    try:
        backend().end_with(parent)
        in_child()
        gc.collect()
        gc.freeze()  # a later collection writes to no page that the parent has, too
        call = pytest.CallInfo.from_call(lambda: item.ihook.pytest_runtest_call(item=item), when="call")
        if os.getpid() != me:  # the test has forked, and this is what it forked
            os._exit(0)
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        with os.fdopen(answer, "wb", closefd=False) as file:
            file.write(json.dumps(json_safe(data), default=str).encode())
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        code = 0
    finally:
        os._exit(code)


def _waited(pid: int) -> int:
    """The exit code of a child, negative for a signal; one that is not waited for to its end is killed."""
    try:
        _, status = os.waitpid(pid, 0)
    except BaseException:  # Ctrl-C, or the timeout of a test
        with contextlib.suppress(OSError):
            os.kill(pid, getattr(signal, "SIGKILL"))  # noqa: B009  Windows lacks it
            os.waitpid(pid, 0)
        raise
    return os.waitstatus_to_exitcode(status)


# -- in a pytest of its own --------------------------------------------------------------------------------------------


def run_executed(item: pytest.Item, *, traced: bool) -> pytest.TestReport:
    """Runs it, with its fixtures.

    Args:
        item: the test.
        traced: whether it is to see who brings memory.
    """
    with tempfile.TemporaryDirectory(prefix="wstrace-") as folder:
        answer = Path(folder, "reports.json")
        try:
            with conditions(item.config).held(wstrace_plugins.os.backend("wstrace_plugins.os").platform()):
                process = subprocess.Popen(
                    _command(item, folder),
                    cwd=item.config.invocation_params.dir,
                    env=_environment(answer, traced=traced),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
        except Unavailable as refused:
            fail(f"wstrace: {refused}")
        output = _output(process)
        reports = _reports(answer)
    if not reports:
        lines = map(printable, output.decode(errors="replace")[-_TAIL:].splitlines())
        how = f"ended with exit code {process.returncode}"
        if reports is None:
            how = f"gave an answer that is not whole, and {how} (is there room in {tempfile.gettempdir()}?)"
        fail("\n".join((f"wstrace: the pytest in which the test was to run {how}:", *lines)))
    reports_of = [report_of(item.config, data) for data in reports]
    called = next((report for report in reports_of if report.when == "call"), None)
    wrong = next((report for report in reports_of if not report.passed and report is not called), None)
    return wrong if wrong is not None and (called is None or called.passed) else called or reports_of[0]


def _command(item: pytest.Item, folder: str) -> list[str]:
    """A pytest with the options of this one that runs one test and writes no report of its own."""
    config = item.config
    options: dict[str, Any] = vars(config.option)
    places = set(options.get("file_or_dir") or ())
    words = [word for word in options["wstrace_arguments"] if word not in places]
    _, _, inside = item.nodeid.partition("::")
    words += [f"--rootdir={config.rootpath}", "--wstrace", "--wstrace-top=0", "--capture=fd", "-o",
              f"cache_dir={folder}", "--basetemp=" + os.path.join(folder, "base")]  # fmt: skip
    if config.inipath is not None:
        words += ["-c", str(config.inipath)]
    for option, off in (("numprocesses", "-n0"), ("xmlpath", "--junitxml="), ("cov_source", "--no-cov")):
        if option in options:
            words.append(off)
    return [sys.executable, "-m", "pytest", *words, f"{item.path}::{inside}"]


def _environment(answer: Path, *, traced: bool) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items()
             if not name.startswith(("PYTEST_XDIST_", "PYTEST_CURRENT_TEST"))}  # fmt: skip
    return {**found, CHILD: f"{'traced' if traced else 'counted'}:{os.getpid()}:{answer}"}


def _reports(answer: Path) -> list[Any] | None:
    """What the child wrote; nothing if it did not, None if not all of it is there."""
    try:
        found = json.loads(answer.read_bytes())
    except FileNotFoundError:
        return []
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _output(process: subprocess.Popen[bytes]) -> bytes:
    """What it prints until its end; one that is not waited for so long is killed."""
    with process:
        try:
            return process.communicate()[0]
        except BaseException:  # Ctrl-C, or the timeout of a test
            process.kill()
            raise


class Child:
    """In a pytest that runs one test for another one: writes its reports to a file.

    Args:
        config: of this pytest. path: the file.
    """

    def __init__(self, config: pytest.Config, path: str) -> None:
        self._config, self._path = config, path
        self._reports: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a report."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.append(json_safe(data))

    def pytest_sessionfinish(self) -> None:
        """Writes them."""
        Path(self._path).write_text(json.dumps(self._reports, default=str), "utf-8")


# -- what comes back ---------------------------------------------------------------------------------------------------


def report_of(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    """A report from its JSON, which has lists in the place of tuples."""
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=data)
    if isinstance(report.longrepr, list):
        path, line, reason = report.longrepr
        report.longrepr = (path, line, reason)
    report.user_properties = [(name, value) for name, value in report.user_properties]
    report.sections = [(title, text) for title, text in report.sections]
    return report


def fail(text: str) -> NoReturn:
    """Fails the test with this text alone."""
    pytest.fail(text, pytrace=False)
