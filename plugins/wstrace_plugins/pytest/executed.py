"""Runs a test in a pytest of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import wstrace_plugins.os
from wstrace.errors import Unavailable
from wstrace.text import json_safe, printable
from wstrace_plugins.pytest.reports import fail, report_of
from wstrace_plugins.pytest.settings import conditions

#: The variable that makes a pytest such a child: `counted:PID:FILE` with the pid of this one, or
#: `traced:PID:FILE` if it is to see who brings memory.
CHILD = "WSTRACE_PYTEST_CHILD"
_TAIL = 2000


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
    told = [report_of(item.config, data) for data in reports]
    called = next((report for report in told if report.when == "call"), None)
    wrong = next((report for report in told if not report.passed and report is not called), None)
    return wrong if wrong is not None and (called is None or called.passed) else called or told[0]


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
