"""Answers: what a recording says in a line, found by a process of its own so that recording goes on meanwhile."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

#: Seconds after which an answer is not waited for any longer.
_LONGEST = 300.0
#: Recordings that wait for their answer; of more, the oldest ones have none.
_MOST = 16


class _Asked(NamedTuple):
    path: str
    child: subprocess.Popen[str]
    until: float


class Answers:
    """Asks `wstrace blame` about recordings, one after the other, at a low priority."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque(maxlen=_MOST)
        self._asked: _Asked | None = None

    def ask(self, path: str) -> None:
        """Asks about a trace file."""
        self._waiting.append(path)

    @property
    def open(self) -> bool:
        """Whether any answer is still to come."""
        return self._asked is not None or bool(self._waiting)

    def given(self, timeout: float = 0.0) -> Iterator[tuple[str, str]]:
        """(path, first line of the answer) of those that have come; what failed is said instead.

        Args:
            timeout: seconds to wait for all.
        """
        until = time.monotonic() + timeout
        while self.open:
            if self._asked is None:
                path = self._waiting.popleft()
                self._asked = _Asked(path, _blame(path), time.monotonic() + _LONGEST)
            path, child, last = self._asked
            try:
                said, failed = child.communicate(timeout=max(min(until, last) - time.monotonic(), 0.001))
            except subprocess.TimeoutExpired:
                if time.monotonic() < last:
                    return
                child.kill()
                said, failed = child.communicate()
            self._asked = None
            lines = (said or failed).splitlines()
            yield path, lines[0] if lines else f"wstrace blame {path} ended with {child.returncode}"

    def stop(self) -> None:
        """Ends what is asked now."""
        if self._asked is not None:
            with contextlib.suppress(OSError):
                self._asked.child.kill()
            self._asked.child.communicate()
            self._asked = None


def _blame(path: str) -> subprocess.Popen[str]:
    # -P: the working directory may be a user's, while we are root. An absolute path is no option.
    command = [sys.executable, "-P", "-m", "wstrace", "blame", "--by", "line", "--top", "1", os.path.abspath(path)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "OPENBLAS_NUM_THREADS": "1"}
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, encoding="utf-8", errors="backslashreplace", env=environment)  # fmt: skip
    if (set_priority := getattr(os, "setpriority", None)) is not None:  # Windows lacks it
        with contextlib.suppress(OSError):  # it has ended
            set_priority(0, child.pid, 10)  # PRIO_PROCESS
    return child
