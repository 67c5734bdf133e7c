"""What coverage.py has traced in a forked child, handed to the one that runs in the parent.

coverage.py itself keeps what a forked child has traced only with `parallel = true`; else the child would begin the
parent's data file anew.
"""

from __future__ import annotations

import base64
import sys
from typing import Any


def traced() -> str:
    """In the child: what it has traced, as text; "" when coverage.py does not run."""
    if (running := _running()) is None:
        return ""
    running.stop()
    data = sys.modules["coverage"].CoverageData(no_disk=True)
    try:
        running._collector.covdata = running._data = data
    except AttributeError:  # another coverage.py than the versions 5 to 7
        return ""
    running.get_data()
    return base64.b64encode(data.dumps()).decode()


def add(text: str) -> None:
    """In the parent: adds what traced() has given."""
    if text and (running := _running()) is not None:
        data = sys.modules["coverage"].CoverageData(no_disk=True)
        data.loads(base64.b64decode(text))
        running.get_data().update(data)


def _running() -> Any:
    """The coverage.Coverage that runs; None without one."""
    module = sys.modules.get("coverage")
    return None if module is None else module.Coverage.current()
