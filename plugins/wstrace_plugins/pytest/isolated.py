"""Runs a test in a child of this process: a fork of it, or a new pytest."""

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
from pathlib import Path
from typing import Any, NoReturn

import pytest

from wstrace.text import json_safe, printable
from wstrace_plugins.pytest.meter import backend

#: The variable that makes a pytest such a child: `counted:PID:FILE` with the pid of this one, or
#: `traced:PID:FILE` if it is to see who brings memory.
CHILD = "WSTRACE_PYTEST_CHILD"
_TAIL = 2000


def run_forked(item: pytest.Item, in_child: Callable[[], None]) -> pytest.TestReport:
    """Runs a test, with all hooks around its call; `in_child` is called in the child before."""
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
        try:
            _, status = os.waitpid(pid, 0)
        except BaseException:  # Ctrl-C, or the timeout of a test
            with contextlib.suppress(OSError):
                os.kill(pid, getattr(signal, "SIGKILL"))  # noqa: B009  Windows lacks it
                os.waitpid(pid, 0)
            raise
        answer.seek(0)
        data = answer.read()
    if (code := os.waitstatus_to_exitcode(status)) or not data:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        fail(f"wstrace: the child in which the test ran ended early: {how}")
    return _report_of(item.config, json.loads(data))


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
        with os.fdopen(answer, "w", encoding="utf-8", closefd=False) as file:
            file.write(json.dumps(_plain(item.config, report), default=str))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        code = 0
    finally:
        os._exit(code)


def run_executed(item: pytest.Item, *, traced: bool) -> pytest.TestReport:
    """Runs a test, with its fixtures. item: the test. traced: whether it is to see who brings memory."""
    with tempfile.TemporaryDirectory(prefix="wstrace-") as folder:
        answer = Path(folder, "reports.json")
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("PYTEST_XDIST_", "PYTEST_CURRENT_TEST"))}  # fmt: skip
        process = subprocess.Popen(
            _command(item, folder),
            cwd=item.config.invocation_params.dir,
            env={**environment, CHILD: f"{'traced' if traced else 'counted'}:{os.getpid()}:{answer}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        with process:
            try:
                output = process.communicate()[0]
            except BaseException:  # Ctrl-C, or the timeout of a test
                process.kill()
                raise
        try:
            reports = [_report_of(item.config, data) for data in json.loads(answer.read_bytes())]
        except (OSError, ValueError):
            reports = []
    if not reports:
        lines = map(printable, output.decode(errors="replace")[-_TAIL:].splitlines())
        how = f"ended with exit code {process.returncode} and without a whole answer"
        room = f"(is there room in {tempfile.gettempdir()}?)"
        fail("\n".join((f"wstrace: the pytest in which the test was to run {how} {room}:", *lines)))
    called = next((report for report in reports if report.when == "call"), None)
    wrong = next((report for report in reports if not report.passed and report is not called), None)
    return wrong if wrong is not None and (called is None or called.passed) else called or reports[0]


def _command(item: pytest.Item, folder: str) -> list[str]:
    """A pytest with the options of this one that runs one test and writes no report of its own."""
    config = item.config
    options: dict[str, Any] = vars(config.option)
    places = set(options.get("file_or_dir") or ())
    words = [word for word in options["wstrace_arguments"] if word not in places]
    words += [f"--rootdir={config.rootpath}", "--wstrace", "--wstrace-top=0", "--capture=fd", "-o",
              f"cache_dir={folder}", "--basetemp=" + os.path.join(folder, "base")]  # fmt: skip
    if config.inipath is not None:
        words += ["-c", str(config.inipath)]
    for option, off in (("numprocesses", "-n0"), ("xmlpath", "--junitxml="), ("cov_source", "--no-cov")):
        if option in options:
            words.append(off)
    return [sys.executable, "-m", "pytest", *words, f"{item.path}::{item.nodeid.partition('::')[2]}"]


class Child:
    """In a pytest that runs one test for another one: writes its reports to a file. config: of this pytest."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        self._config, self._path = config, path
        self._reports: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a report."""
        self._reports.append(_plain(self._config, report))

    def pytest_sessionfinish(self) -> None:
        """Writes them."""
        Path(self._path).write_text(json.dumps(self._reports, default=str), "utf-8")


def _plain(config: pytest.Config, report: pytest.TestReport) -> Any:
    return json_safe(config.hook.pytest_report_to_serializable(config=config, report=report))


def _report_of(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    """A report from its JSON, which has lists in the place of tuples."""
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=data)
    if isinstance(report.longrepr, list):
        path, line, reason = report.longrepr
        report.longrepr = (path, line, reason)
    report.user_properties = [(name, value) for name, value in report.user_properties]
    return report


def fail(text: str) -> NoReturn:
    """Fails the test with this text alone."""
    pytest.fail(text, pytrace=False)
