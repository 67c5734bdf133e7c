"""An option of the command line, or its setting in the configuration file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def switched_on(config: pytest.Config, name: str) -> bool:
    """Whether an option is given, or its setting in the configuration file."""
    return bool(config.getoption(name) or config.getini(name))
