"""The fixture, and what the options say, or else their settings in the configuration file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from wstrace.conditions import Conditions


def switched_on(config: pytest.Config, name: str) -> bool:
    """Whether an option is given, or its setting in the configuration file."""
    return bool(config.getoption(name) or config.getini(name))


def conditions(config: pytest.Config) -> Conditions:
    """Those of the children in which tests run. Raises pytest.UsageError for a hash seed that is none."""
    from wstrace.conditions import Conditions

    seed = config.getoption("wstrace_hash_seed") or config.getini("wstrace_hash_seed") or None
    if seed is not None and not (seed.isascii() and seed.isdigit() and int(seed) < 1 << 32):
        raise pytest.UsageError(f"--wstrace-hash-seed {seed}: give a number from 0 to 4294967295")
    return Conditions(not switched_on(config, "wstrace_no_aslr"), None if seed is None else int(seed))


@pytest.fixture
def wstrace_delta() -> Callable[..., Any]:
    """`wstrace.delta`: `with wstrace_delta() as d:` counts what a part of a test brings into memory and writes."""
    import wstrace

    return wstrace.delta
