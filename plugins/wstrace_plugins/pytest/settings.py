"""The fixture, and what the options say, or else their settings in the configuration file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def setting(config: pytest.Config, name: str) -> Any:
    """What an option says, or its setting in the configuration file."""
    given = config.getoption(name)
    return config.getini(name) if given is None else given


def whole(config: pytest.Config, name: str) -> int:
    """The number that an option says. Raises pytest.UsageError for what is none."""
    text = setting(config, name)
    if text.isascii() and text.isdigit() and int(text) < 1 << 32:
        return int(text)
    raise pytest.UsageError(f"--{name.replace('_', '-')} {text}: give a number from 0 to 4294967295")


@pytest.fixture
def wstrace_delta() -> Callable[..., Any]:
    """`wstrace.delta`: `with wstrace_delta() as d:` counts what a part of a test brings into memory and writes."""
    import wstrace

    return wstrace.delta
