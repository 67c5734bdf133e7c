"""A plugin of pytest: nobody looks on at tests that have a budget, which takes most of the time of a short run.

Figures are measured and judged as ever; who brought the memory is not known.
"""

import pytest

from wstrace_plugins.pytest.observer import Observer


def _failed(observer: Observer) -> None:
    observer._process, observer._failed = None, "nobody looks on in this test"


def pytest_configure() -> None:
    pytest.MonkeyPatch().setattr(Observer, "__init__", _failed)
