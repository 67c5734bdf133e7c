"""The fixture of the plugin; wstrace itself is imported by the first test that asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def wstrace_delta() -> Callable[..., Any]:
    """`wstrace.delta`: `with wstrace_delta() as d:` counts what a part of a test brings into memory and writes."""
    import wstrace

    return wstrace.delta
