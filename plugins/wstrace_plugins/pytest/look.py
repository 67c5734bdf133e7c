"""The process beside the tests: looks at the one that runs them, by a session and by snapshots. See observer.py."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from wstrace_plugins.pytest.observer import Row, Seen

if TYPE_CHECKING:
    from wstrace.session import Session

#: Rows that are told of a test.
ROWS = 20
#: Packages whose lines run around every test.
_AROUND = frozenset(("_pytest", "pytest", "pluggy", "wstrace"))


class Look:
    """What the process does from begin to end: a session on the other process, and two snapshots of it."""

    def __init__(self, pid: int) -> None:
        import wstrace

        self._pid, self._lacking = pid, ""
        self._faults: Session | None = None
        try:
            self._faults = wstrace.Session(pid, sources=["page_faults", "working_set"], children=False).start()
            if (level := self._faults.info.level) is not None and level.counts_only:
                self._lacking = f"{level.why}; {level.remedy}" if level.remedy else level.why
        except wstrace.Unavailable as refused:
            self._lacking = str(refused)
        self._before = _by_file(pid)

    def end(self) -> Seen:
        """What was seen."""
        seen = Seen()
        after = _by_file(self._pid)
        if self._faults is not None:
            self._faults.stop()
        if self._faults is None or self._lacking:
            grown = [(name, size - self._before.get(name, 0)) for name, size in after.items()]
            seen.rows = _most([(name, more, more) for name, more in grown if more > 0])
            seen.lacking = f"files and kinds of memory only: {self._lacking}"
        else:
            seen.rows, seen.by = _most(_by_line(self._faults)), "line"
            seen.lacking = "; ".join(self._faults.info.lacking)
        return seen


def _by_line(session: Session) -> list[Row]:
    """(label, bytes brought, bytes left) of all lines but those of pytest and of wstrace itself around the test."""
    import wstrace
    import wstrace_plugins.os

    own = tuple(str(Path(module.__file__ or "").parent) + os.sep
                for module in (wstrace, wstrace_plugins.os, sys.modules[__name__]))  # fmt: skip
    return [
        (row.label, row.brought, row.resident)
        for row in session.trace.blame().rows("line")
        if row.faults and row.package not in _AROUND and not row.file.startswith(own)
    ]


def _by_file(pid: int) -> dict[str, int]:
    """Resident bytes by file and kind of memory."""
    import wstrace
    from wstrace.text import base_name

    found: dict[str, int] = {}
    for owner in wstrace.working_set(pid).by():
        name = base_name(owner.name)
        found[name] = found.get(name, 0) + owner.resident
    return found


def _most(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (-row[1], -row[2], row[0]))[:ROWS]


def serve(questions: IO[bytes], answer: Callable[[dict[str, Any]], None]) -> None:
    """Answers until there are no more questions."""
    look: Look | None = None
    for line in questions:
        asked = json.loads(line)
        try:
            if "begin" in asked:
                look = Look(asked["begin"])
                answer({"ready": True})
            else:
                assert look is not None
                seen, look = look.end(), None
                answer(asdict(seen))
        except Exception as error:
            answer({"failed": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests; their end ends this process, too
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints is no answer
    serve(sys.stdin.buffer, lambda told: (out.write(json.dumps(told).encode() + b"\n"), None)[1])
