"""The exporter `flight_recorder`: keeps the last minutes, and makes a trace file of them when a trigger fires."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Literal

from wstrace.batch import Batch
from wstrace.errors import OutputError, UsageError
from wstrace.firing import Firing
from wstrace.interfaces import Context
from wstrace.output_file import remove
from wstrace.schema import MARK, PAGE_FAULT
from wstrace.text import base_name, printable
from wstrace.trace_info import NOT_SAVED
from wstrace_exporters.msgpack.write.exporter import FileExporter

if TYPE_CHECKING:  # every session imports this module, but not every one records
    from wstrace_exporters.msgpack.write.ring import Ring

#: After a firing, seconds until the records of before it have come: at least, and where none has a later time.
_SETTLE, _SETTLE_AT_MOST = 1.0, 3.0
#: Seconds that an answer may take, and for which the end waits for all of them.
_ANSWER_SECONDS = 60.0
#: Of names from outside, what file names do not have.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.@-]+")
_NAME_LIMIT = 80


class FlightRecorder(FileExporter):
    """Keeps the last minutes on the disk, and makes a trace file of them when a trigger fires (source `triggers`).

    Recordings are FILE-1.wst, FILE-2.wst ..., each in several parts, which its name opens together; what two of them
    have in common is on the disk once. Of each, `wstrace report` says in a process of its own what took the memory, in
    one line. What is kept is FILE.ring.wst; it is removed at the end.

    Args:
        path: FILE.wst; by default the name of the first target.
        keep: for how many seconds records are kept; a recording has up to an eighth more.
        ring_bytes: how much of the disk the kept records may take, and an eighth more; it goes before `keep`.
        recordings: how many of the newest recordings remain; 0 = all.
        answers: whether each recording's answer is printed, and where.

    Raises:
        UsageError: an option is out of range.
    """

    name = "flight_recorder"
    close_seconds = _ANSWER_SECONDS + 10
    _writer: Ring | None = None

    def __init__(
        self,
        *,
        path: str = "",
        keep: float = 120.0,
        ring_bytes: int = 256 << 20,
        recordings: int = 10,
        answers: Literal["stderr", "stdout", "no"] = "stderr",
    ) -> None:
        if keep <= 0 or ring_bytes <= 0 or recordings < 0:
            raise UsageError("flight_recorder: keep and ring_bytes are above 0, recordings is 0 or more")
        self._path, self._keep, self._bytes, self._recordings = path, keep, ring_bytes, recordings
        self._to = answers
        self._answers: dict[Future[None], str] = {}  # those to come -> the path of the recording
        self._due: deque[tuple[float, Firing]] = deque()  # since when, by time.monotonic()
        self._seen_ns = 0  # the time of the latest fault
        self._made: deque[list[str]] = deque()  # the files of each recording that remains
        self._failed = ""

    def start(self, context: Context) -> None:
        """Creates the ring. Raises OutputError."""
        from wstrace_exporters.msgpack.write.ring import Ring

        self._context = context
        stem = self._path.removesuffix(".wst") if self._path else _default_name(context)
        self._writer = Ring(stem, context, seconds=self._keep, n_bytes=self._bytes)
        self._reporter = ThreadPoolExecutor(1, "wstrace-answer", _lower_priority)

    def export(self, batch: Batch) -> None:
        """Takes one batch; a trigger's mark makes a recording due."""
        if batch.schema is PAGE_FAULT and len(batch):
            self._seen_ns = max(self._seen_ns, int(batch["time_ns"][-1]) if "time_ns" in batch else batch.window[1])
        super().export(batch)
        if batch.schema is MARK and batch.source == "triggers":
            fired = {firing.time_ns: firing for firing in self._context.firings}
            times = batch["time_ns"].tolist()
            self._due.extend((time.monotonic(), fired[at]) for at in times if at in fired)

    def tick(self) -> None:
        """Makes the recordings that are due."""
        super().tick()
        while self._due:
            since, firing = self._due[0]
            waited = time.monotonic() - since
            if waited < (_SETTLE if self._seen_ns > firing.time_ns else _SETTLE_AT_MOST):
                break
            self._record(self._due.popleft()[1])

    def close(self) -> None:
        """Makes the recordings that are due, removes what is kept, and waits for the answers.

        Raises OutputError: a recording could not be written whole.
        """
        if self._writer is None:
            return
        self.record_pending()
        self._count_loss()
        if not self._made:
            self._context.info.extra[NOT_SAVED] = "no trigger has fired, so there is no recording"
        self.cancel()
        for late in wait(self._answers, _ANSWER_SECONDS).not_done:
            if late.cancel():
                self._say_saved(f"no answer within {_ANSWER_SECONDS:g} s", self._answers[late])
        self._reporter.shutdown(wait=False)
        if self._failed:
            raise OutputError(self._failed)

    def record_pending(self) -> None:
        """Makes the recordings that are due, without waiting for records that are still to come."""
        while self._due:
            self._record(self._due.popleft()[1])

    def _record(self, firing: Firing) -> None:
        if self._writer is None:
            return
        what = f"{printable(firing.who, 60)}: {printable(firing.what, 60)}"
        try:
            made = self._writer.record(firing)
        except OutputError as error:
            self._failed = error.why
            self._say(f"{what}: not recorded: {error}")
            return
        self._made.append(made)
        self._context.info.saved = made[0]
        if self._to != "no":
            self._answers[self._reporter.submit(self._answer, made[0])] = made[0]
        while self._recordings and len(self._made) > self._recordings:
            for path in self._made.popleft():
                remove(path)

    def _answer(self, path: str) -> None:
        """Prints the first line of `wstrace report`, or why there is none."""
        # -P: the working directory may be a user's, while we are root. An absolute path is no option.
        command = [sys.executable, "-P", "-m", "wstrace", "report", "--by", "line", "--top", "1", os.path.abspath(path)]
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "OPENBLAS_NUM_THREADS": "1"}
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                                  errors="backslashreplace", env=environment, timeout=_ANSWER_SECONDS)  # fmt: skip
            lines = (done.stdout or done.stderr).splitlines()
            answer = lines[0] if lines else f"wstrace report ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            answer = f"no answer within {_ANSWER_SECONDS:g} s"
        self._say_saved(printable(answer), path)

    def _say_saved(self, answer: str, path: str) -> None:
        self._say(f"{answer}\nsaved {printable(path)}; next: wstrace report {printable(path)}")

    def _say(self, text: str) -> None:
        if self._to == "no":
            return
        from wstrace.terminal import Output

        Output.standard(self._to).write(f"{text}\n")


def _default_name(context: Context) -> str:
    """The first target's name, with what file names may have."""
    name = base_name(context.targets[0].name) if context.targets else "node"
    return _UNSAFE.sub("_", name)[:_NAME_LIMIT].strip(".-") or "recording"


def _lower_priority() -> None:
    """Gives this thread a low priority, and all that it starts."""
    if (set_priority := getattr(os, "setpriority", None)) is not None:  # Windows lacks it
        set_priority(0, 0, 10)  # PRIO_PROCESS, which on Linux is the thread: setpriority(2)
