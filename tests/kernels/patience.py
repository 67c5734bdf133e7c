"""A plugin of pytest: under software emulation a program takes 20 to 40 times as long, and so long do tests wait.

What fails is printed at once, as the end of a run may be an hour away.
"""

from __future__ import annotations

import inspect
import subprocess
import time
from typing import Any

import pytest

_FACTOR = 30


@pytest.fixture(autouse=True, scope="session")
def patience():
    real, start = time.monotonic, time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: start + (real() - start) / _FACTOR)  # what deadlines are made of
        for name in ("wait", "communicate"):
            patch.setattr(subprocess.Popen, name, _longer(getattr(subprocess.Popen, name)))
        yield


def _longer(method: Any) -> Any:
    parameters = inspect.signature(method)

    def waits(*positional, **named):
        given = parameters.bind(*positional, **named)
        if given.arguments.get("timeout") is not None:
            given.arguments["timeout"] *= _FACTOR
        return method(*given.args, **given.kwargs)

    return waits


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (mark := item.get_closest_marker("timeout")) is not None:
            seconds = mark.args[0] if mark.args else mark.kwargs["timeout"]
            item.add_marker(pytest.mark.timeout(seconds * _FACTOR), append=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        print(f"\n{report.longreprtext}", flush=True)
