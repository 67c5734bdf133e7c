"""The exporter `flight_recorder`: keeps the last minutes, and makes a trace file of them when a trigger fires."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Literal

from wstrace.batch import Batch
from wstrace.errors import OutputError, UsageError
from wstrace.firing import Firing
from wstrace.interfaces import Context, Exporter
from wstrace.output_file import remove
from wstrace.schema import ADDRESS_SPACE, MARK, PAGE_FAULT
from wstrace.text import base_name, printable
from wstrace.trace_info import NOT_SAVED

if TYPE_CHECKING:  # every session imports this module, but not every one records
    from wstrace_exporters.msgpack.write.ring import Ring

#: After a firing, seconds until the records of before it have come: at least, and where none tells by its time.
_SETTLE, _SETTLE_AT_MOST = 1.0, 3.0
#: Seconds for which the end waits for answers; recordings that wait for an answer at once; more get none.
_STILL_SECONDS, _MOST_ASKED = 60.0, 4
#: Of names from outside, what file names do not have.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.@-]+")
_NAME_LIMIT = 80


class FlightRecorder(Exporter):
    """Keeps the last minutes on the disk, and makes a trace file of them when a trigger fires (source `triggers`).

    Recordings are FILE-1.wst, FILE-2.wst ..., each in several parts, which its name opens together; what two of them
    have in common is on the disk once. Of each, `wstrace report` says in a process of its own whose memory it was, in
    one line. What is kept is FILE.ring.wst; it is removed at the end.

    Args:
        path: FILE.wst; by default the name of the first target.
        keep: for how many seconds records are kept; a recording has up to an eighth more.
        ring_bytes: how much of the disk the kept records may take, and an eighth more; it goes before `keep`.
        recordings: how many of the newest recordings remain; 0 = all.
        answers: whether each recording's answer is printed, and where.
        level: the compression level of zstd, 1 to 19.

    Raises:
        UsageError: an option is out of range.
    """

    name: ClassVar[str] = "flight_recorder"
    close_seconds = _STILL_SECONDS + 10

    def __init__(
        self,
        *,
        path: str = "",
        keep: float = 120.0,
        ring_bytes: int = 256 << 20,
        recordings: int = 10,
        answers: Literal["stderr", "stdout", "no"] = "stderr",
        level: int = 1,
    ) -> None:
        if keep <= 0 or ring_bytes <= 0 or recordings < 0 or not 1 <= level <= 19:
            raise UsageError(
                "flight_recorder: keep and ring_bytes are above 0, recordings is 0 or more, level is 1 to 19"
            )
        self._path, self._keep, self._bytes, self._recordings = path, keep, ring_bytes, recordings
        self._to, self._level = answers, level
        self._ring: Ring | None = None
        self._asked: dict[str, subprocess.Popen[str]] = {}  # by the path of the recording
        self._due: deque[tuple[float, Firing]] = deque()  # since when, by time.monotonic()
        self._seen_ns = 0  # the time of the latest fault
        self._made: deque[list[str]] = deque()  # the files of each recording that remains
        self._counts = {"recordings": 0, "removed": 0}
        self._failed = ""
        self._dropped = 0

    def start(self, context: Context) -> None:
        """Creates the ring. Raises OutputError."""
        from wstrace_exporters.msgpack.write.ring import Ring

        self._context = context
        stem = self._path.removesuffix(".wst") if self._path else _default_name(context)
        self._ring = Ring(stem, context, seconds=self._keep, n_bytes=self._bytes, level=self._level)

    def export(self, batch: Batch) -> None:
        """Takes one batch; a trigger's mark makes a recording due."""
        if self._ring is None or batch.schema is ADDRESS_SPACE:  # its content is in the mappings
            return
        if batch.schema is PAGE_FAULT and len(batch):
            self._seen_ns = max(self._seen_ns, int(batch["time_ns"][-1]) if "time_ns" in batch else batch.window[1])
        try:
            self._ring.write(batch)
        finally:
            self._count_loss()
        if batch.schema is MARK and batch.source == "triggers":
            fired = {firing.time_ns: firing for firing in self._context.firings}
            times = batch["time_ns"].tolist()
            self._due.extend((time.monotonic(), fired[at]) for at in times if at in fired)

    def tick(self) -> None:
        """Makes the recordings that are due, and prints the answers that have come."""
        if self._ring is None:
            return
        self._ring.tick()
        while self._due:
            since, firing = self._due[0]
            waited = time.monotonic() - since
            if waited < (_SETTLE if self._seen_ns > firing.time_ns else _SETTLE_AT_MOST):
                break
            self._record(self._due.popleft()[1])
        self._tell(0.0)
        self._count_loss()

    def close(self) -> None:
        """Makes the recordings that are due, removes what is kept, and prints the answers.

        Raises:
            OutputError: a recording could not be written whole.
        """
        if self._ring is None:
            return
        self.record_pending()
        self._count_loss()
        if not self._counts["recordings"]:
            self._context.info.extra[NOT_SAVED] = "no trigger has fired, so there is no recording"
        ring, self._ring = self._ring, None
        ring.discard()
        self._tell(_STILL_SECONDS)
        for path, child in self._asked.items():
            child.kill()
            child.communicate()
            self._say_saved(f"no answer within {_STILL_SECONDS:g} s", path)
        if self._failed:
            raise OutputError(self._failed)

    def record_pending(self) -> None:
        """Makes the recordings that are due, without waiting for records that are still to come."""
        while self._due:
            self._record(self._due.popleft()[1])

    def _record(self, firing: Firing) -> None:
        if self._ring is None:
            return
        try:
            made = self._ring.record(firing)
        except OutputError as error:
            self._failed = error.why
            self._say(f"{_told(firing)}: not recorded: {error}")
            return
        self._counts["recordings"] += 1
        self._made.append(made)
        self._context.info.saved = made[0]
        if self._to != "no" and len(self._asked) < _MOST_ASKED:
            self._asked[made[0]] = _ask(made[0])
        else:
            self._say_saved(_told(firing), made[0])
        while self._recordings and len(self._made) > self._recordings:
            self._counts["removed"] += 1
            for path in self._made.popleft():
                remove(path)

    def _tell(self, seconds: float) -> None:
        """Prints the first lines of the answers that have come, or come within so many seconds, or why none came."""
        until = time.monotonic() + seconds
        for path, child in list(self._asked.items()):
            try:
                said, failed = child.communicate(timeout=max(until - time.monotonic(), 0.001))
            except subprocess.TimeoutExpired:
                continue
            del self._asked[path]
            answer = next(iter((said or failed).splitlines()), f"wstrace report ended with {child.returncode}")
            self._say_saved(printable(answer), path)

    def _say_saved(self, answer: str, path: str) -> None:
        self._say(f"{answer}\nsaved {printable(path)}; next: wstrace report {printable(path)}")

    def _say(self, text: str) -> None:
        if self._to == "no":
            return
        from wstrace.terminal.output import Output

        Output.standard(self._to).write(f"{text}\n")

    def _count_loss(self) -> None:
        dropped = 0 if self._ring is None else self._ring.dropped
        if dropped > self._dropped:
            self._context.ledger.add("failed_lane", dropped - self._dropped, self.name)
            self._dropped = dropped

    def cancel(self) -> None:
        """Removes the ring of a session that could not start."""
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.discard()

    def after_fork_in_child(self) -> None:
        """Closes the descriptor and writes nothing."""
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.abandon()

    @property
    def stalled(self) -> str:
        """Why what is kept waits for the disk; "" when it does not."""
        return self._ring.stalled if self._ring is not None else ""

    def statistics(self) -> dict[str, int]:
        """Recordings made, and those of them that were removed for newer ones; of what is kept, see TraceWriter."""
        return {**self._counts, **(self._ring.statistics() if self._ring is not None else {})}


def _default_name(context: Context) -> str:
    """The first target's name, with what file names may have."""
    name = base_name(context.targets[0].name) if context.targets else "node"
    return _UNSAFE.sub("_", name)[:_NAME_LIMIT].strip(".-") or "recording"


def _told(firing: Firing) -> str:
    return f"{printable(firing.who, 60)}: {printable(firing.what, 60)}"


def _ask(path: str) -> subprocess.Popen[str]:
    """Asks `wstrace report` about a recording, at a low priority."""
    # -P: the working directory may be a user's, while we are root. An absolute path is no option.
    command = [sys.executable, "-P", "-m", "wstrace", "report", "--by", "line", "--top", "1", os.path.abspath(path)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "OPENBLAS_NUM_THREADS": "1"}
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, encoding="utf-8", errors="backslashreplace", env=environment)  # fmt: skip
    if (set_priority := getattr(os, "setpriority", None)) is not None:  # Windows lacks it
        with contextlib.suppress(OSError):  # it has ended
            set_priority(0, child.pid, 10)  # PRIO_PROCESS
    return child
