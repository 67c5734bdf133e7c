"""Reports of pytest that come from another process, and failures without a traceback."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest


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
