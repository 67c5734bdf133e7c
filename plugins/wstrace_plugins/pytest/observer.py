"""Asks a process beside the tests who brings what: that has numpy, the tracer and its memory, the tests do not.

The process is `python -m wstrace_plugins.pytest.look`; both speak lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Self

#: (label, bytes that it brought, bytes of them that are still there)
Row = tuple[str, int, int]
#: Seconds until an observer that says nothing is given up.
_PATIENCE = 60.0


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
    """The process, started when it is first asked; when it fails, nothing but the names is missing."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._failed = ""

    def begin(self, pid: int) -> None:
        """Begins to look at a process; returns when it is being looked at."""
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
                self._failed = f"the process that looks on failed: {answer['failed']}"
        except (OSError, ValueError, TimeoutError) as error:
            self._failed, answer = f"the process that looks on failed: {error}", {}
            self.close()
        except BaseException:  # a timeout of the test: an answer that comes later would be taken for another one's
            self._failed = "the process that looks on was interrupted"
            self.close()
            raise
        return answer


def _started() -> subprocess.Popen[bytes]:
    """-P: the folder in which the tests run is not where wstrace's own modules are looked for."""
    return subprocess.Popen([sys.executable, "-P", "-m", "wstrace_plugins.pytest.look"], bufsize=0,
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
