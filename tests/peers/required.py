"""What becomes of a test whose program is not there."""

from __future__ import annotations

import os

import pytest


def absent(why: str) -> None:
    """Skips loudly, or fails where the machine is to have everything."""
    if os.environ.get("WSTRACE_REQUIRE_PEERS") == "1":
        pytest.fail(f"WSTRACE_REQUIRE_PEERS=1, and {why}", pytrace=False)
    pytest.skip(why)
