"""Asks a process beside the tests who brings what: that has numpy, the tracer and its memory, the tests do not.

The process is `python -m wstrace_plugins.pytest.observer`; both speak lines of JSON.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wstrace.session import Session

#: (label, bytes that it brought, bytes of them that are still there)
Row = tuple[str, int, int]
#: Seconds until an observer that says nothing is given up.
_PATIENCE = 60.0
#: Rows that a test shows.
ROWS = 20
#: Packages of which lines run around every test.
_AROUND = frozenset(("_pytest", "pytest", "pluggy", "wstrace"))


class Observer:
    """The process, started when it is first used; when it fails, nothing but the names is missing."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._failed = ""

    def begin(self, pid: int) -> None:
        """Begins to watch a process; returns when it is watched."""
        self._answer(pid)

    def end(self) -> dict[str, Any]:
        """What was seen since begin(): `rows`, `by` and `lacking` of Measured."""
        seen = self._answer(0)
        return {"by": "file", "lacking": self._failed} if self._failed else seen

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.communicate()

    def _answer(self, pid: int) -> dict[str, Any]:
        """What the process answers to a pid to watch, or to 0, which ends that."""
        if self._failed:
            return {}
        try:
            if self._process is None:  # -P: the tests' folder is not where wstrace's own modules are searched
                words = [sys.executable, "-P", "-m", "wstrace_plugins.pytest.observer"]
                self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                 stderr=subprocess.DEVNULL)  # fmt: skip
            question, lines = self._process.stdin, self._process.stdout
            assert question is not None
            assert lines is not None
            question.write(b"%d\n" % pid)
            question.flush()
            answer: dict[str, Any] = {"failed": f"no answer in {_PATIENCE:g} s"}
            if os.name != "posix" or select.select([lines], [], [], _PATIENCE)[0]:  # elsewhere only for sockets
                answer = json.loads(lines.readline() or '{"failed": "it ended"}')
            if "failed" not in answer:
                return answer
            self._failed = f"the process that watches failed: {answer['failed']}"
        except (OSError, ValueError) as error:
            self._failed = f"the process that watches failed: {error}"
        except BaseException:  # a timeout of the test: an answer that comes later would be taken for another one's
            self._failed = "the process that watches was interrupted"
            self.close()
            raise
        self.close()
        return {}


def watched(pid: int) -> Iterator[dict[str, Any]]:
    """Begins to watch a process, and gives {}; then, when the next is wanted, what was seen meanwhile.

    A session records who brings what; two snapshots are compared where that cannot be.
    """
    import wstrace

    session, lacking = None, ""
    try:
        session = wstrace.Session(pid, sources=["page_faults", "working_set"], children=False).start()
        if (level := session.info.level) is not None and level.counts_only:
            lacking = f"{level.why}; {level.remedy}" if level.remedy else level.why
    except wstrace.Unavailable as refused:
        lacking = str(refused)
    before = _by_file(pid)
    yield {}
    after = _by_file(pid)
    if session is not None:
        session.stop()
    if session is None or lacking:
        grown = [(name, size - before.get(name, 0)) for name, size in after.items()]
        rows = [(name, more, more) for name, more in grown if more > 0]
        by, lacking = "file", f"files and kinds of memory only: {lacking}"
    else:
        rows, by, lacking = _by_line(session), "line", "; ".join(session.info.lacking)
    rows = sorted(rows, key=lambda row: (-row[1], -row[2], row[0]))[:ROWS]
    yield {"rows": rows, "by": by, "lacking": lacking}


def _by_line(session: Session) -> list[Row]:
    """(label, bytes brought, bytes left) of all lines but those of pytest and of wstrace itself around the test."""
    import wstrace
    import wstrace_plugins.os

    own = tuple(str(Path(module.__file__ or "").parent) + os.sep
                for module in (wstrace, wstrace_plugins.os, sys.modules[__name__]))  # fmt: skip
    return [
        (row.label, row["brought"], row["resident"])
        for row in session.trace.report(at="exit").rows
        if row["faults"] and row.of("package") not in _AROUND and not row.of("file").startswith(own)
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


def main() -> None:
    """Answers until there are no more questions."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests; their end ends this process, too
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints is no answer
    watching: Iterator[dict[str, Any]] = iter(())
    for line in sys.stdin.buffer:
        try:
            watching = watched(pid) if (pid := int(line)) else watching
            answer = next(watching)
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
