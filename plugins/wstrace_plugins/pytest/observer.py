"""Asks a process beside the tests who brings what: that has numpy, the tracer and its memory, the tests do not.

The process is `python -m wstrace_plugins.pytest.observer`; both speak lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from wstrace.session import Session

#: (label, bytes that it brought, bytes of them that are still there)
Row = tuple[str, int, int]
#: Seconds until an observer that says nothing is given up.
_PATIENCE = 60.0
#: Rows that a test shows.
ROWS = 20
#: Packages whose lines run around every test.
_AROUND = frozenset(("_pytest", "pytest", "pluggy", "wstrace"))


@dataclass(slots=True)
class Seen:
    """Who brought memory in a time.

    rows: (label, bytes that it brought, bytes of them that are still there), most first. by: `line` where the faults
    were recorded, `file` where only snapshots could be compared. lacking: why no more than that is known, and what
    lifts it; "" = everything is.
    """

    rows: list[Row] = field(default_factory=list)
    by: str = "file"
    lacking: str = ""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """From its JSON."""
        rows = [(str(label), int(brought), int(left)) for label, brought, left in data["rows"]]
        return cls(rows, data["by"], data["lacking"])


class Observer:
    """The process, started when it is first used; when it fails, nothing but the names is missing."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._failed = ""

    def begin(self, pid: int) -> None:
        """Begins to watch a process; returns when it is watched."""
        if not self._failed:
            self._ask({"begin": pid})

    def end(self) -> Seen:
        """What was seen since begin()."""
        answer = {} if self._failed else self._ask({"end": True})
        return Seen(lacking=self._failed) if self._failed else Seen.of(answer)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            process, self._process = self._process, None
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):
                    pipe.close()
            process.kill()
            process.wait()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if self._process is None:
                self._process = _started()
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            line = _line(self._process.stdout)
            answer: dict[str, Any] = json.loads(line) if line else {"failed": "it ended"}
            if "failed" in answer:
                self._failed = f"the process that watches failed: {answer['failed']}"
        except (OSError, ValueError, TimeoutError) as error:
            self._failed, answer = f"the process that watches failed: {error}", {}
            self.close()
        except BaseException:  # a timeout of the test: an answer that comes later would be taken for another one's
            self._failed = "the process that watches was interrupted"
            self.close()
            raise
        return answer


def _started() -> subprocess.Popen[bytes]:
    """-P: the folder in which the tests run is not where wstrace's own modules are searched."""
    return subprocess.Popen([sys.executable, "-P", "-m", "wstrace_plugins.pytest.observer"], bufsize=0,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip


def _line(pipe: IO[bytes]) -> bytes:
    """The next line; b"" at the end."""
    line = b""
    while not line.endswith(b"\n"):
        with contextlib.suppress(OSError):  # on Windows only sockets can be waited for
            if not select.select([pipe], [], [], _PATIENCE)[0]:
                raise TimeoutError(f"no answer in {_PATIENCE:g} s")
        part = pipe.readline()
        if not part:
            return b""
        line += part
    return line


# -- in that process ---------------------------------------------------------------------------------------------------


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


def _most(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (-row[1], -row[2], row[0]))[:ROWS]


def serve(questions: IO[bytes], answer: Callable[[dict[str, Any]], None]) -> None:
    """Answers until there are no more questions."""
    look: Look | None = None
    for line in questions:
        request = json.loads(line)
        try:
            if "begin" in request:
                look = Look(request["begin"])
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
    serve(sys.stdin.buffer, lambda answer: (out.write(json.dumps(answer).encode() + b"\n"), None)[1])
