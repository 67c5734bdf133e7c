"""Ring: the parts of a trace that hold its last minutes, and the recordings that are made of them."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.clock import now_ns
from wstrace.errors import OutputError, TraceFileError
from wstrace.firing import Firing
from wstrace.interfaces import Context
from wstrace.ledger import Ledger
from wstrace.output_file import link, remove, sync
from wstrace.output_rights import belongs_to_us
from wstrace.schema import DTYPES, PROCESS, PROCESS_EXIT, PROCESS_SEEN, PROCESS_TITLE
from wstrace.trace_info import Usage
from wstrace_exporters.msgpack.format.osfile import is_being_written
from wstrace_exporters.msgpack.format.part_names import name_and_number, numbered, part_path
from wstrace_exporters.msgpack.read.part import first_header
from wstrace_exporters.msgpack.write.parts import Parts
from wstrace_exporters.msgpack.write.writer import TraceWriter

#: Parts of a full ring. What is kept is up to one part longer than requested, and may take one part more of the disk.
_PARTS = 8
#: Added to the number of a recording's own part, which the ring's next one has, too.
OWN_PART = 1 << 23
#: Stages of the ledger that hold no count that grows.
_SETTINGS = frozenset({"sampled"})
#: The most names of threads and titles that are remembered; past it the older half is forgotten.
_MOST = 1 << 16


class Ring:
    """Writes a trace whose older parts are removed as it goes on: STEM.ring.wst.

    A recording has the parts of that time as hard links, so that the ring goes on with them for the next one, and a
    last part of its own that describes it. Only a recording is synced to the disk: a machine that loses its power loses
    the ring, in which nothing was recorded so far.

    Args:
        stem: of the paths of recordings, which are STEM-1.wst, STEM-2.wst ...; names that exist are passed over.
        context: the session's.
        seconds: for how long records are kept. n_bytes: how much of the disk they may take at most.
        level: the compression level of zstd.

    Raises:
        OutputError: the first part cannot be created.
    """

    def __init__(self, stem: str, context: Context, *, seconds: float, n_bytes: int, level: int = 1) -> None:
        self._stem, self._context, self._seconds = stem, context, seconds
        self._numbers = itertools.count(1)
        self._known = KnownProcesses(context.strings)
        self._counted = Ledger.from_dict(context.ledger.as_dict())  # as it was when the present part began
        _remove_left(stem)
        self._parts = Parts(
            _free(f"{stem}.ring{f'-{n}' if n > 1 else ''}.wst" for n in itertools.count(1)),
            command=list(context.info.command),
            rotate_bytes=max(n_bytes // _PARTS, 1),
            rotate_seconds=seconds / _PARTS,
            keep_seconds=seconds,
            keep_bytes=n_bytes,
            sync="never",  # what is let go again need not reach the disk: the parts of a recording are synced
            ring=True,
            ledger=self._count,
        )
        self._parts.create()
        self._writer = TraceWriter(self._parts, context.strings, level=level)
        self._writer.begin()
        self._begun: dict[int, int] = {}  # part -> when it began
        self._note()

    @property
    def stalled(self) -> str:
        """Why frames wait for the disk; "" when none do."""
        return self._writer.stalled

    def write(self, batch: Batch) -> None:
        """Takes a batch of any stream except address_space. Raises OutputError."""
        if batch.schema is PROCESS:
            self._known.learn(batch)
        try:
            self._writer.write(batch)
        finally:
            self._note()

    def tick(self) -> None:
        """Does what is due by time."""
        self._writer.tick()
        self._note()

    def flush(self) -> None:
        """Writes all waiting rows."""
        self._writer.flush()

    def _note(self) -> None:
        if (number := self._parts.number) not in self._begun:
            self._begun[number] = now_ns()
            for gone in [one for one in self._begun if one <= number - len(self._parts.written)]:
                del self._begun[gone]
            self._known.forget(min(self._begun.values()))

    def record(self, firing: Firing) -> list[str]:
        """Makes a trace file of what is kept. Returns its parts; the first one's path opens it.

        Raises:
            OutputError: it cannot be written; nothing of it is left then.
        """
        self._writer.flush()  # which may itself end a part
        before = self._parts.sink.file_id
        if not self._writer.rotate():
            raise OutputError(self._parts.refused)
        self._note()
        begin_ns = min(self._begun.values())
        path = _free(f"{self._stem}-{n}.wst" for n in self._numbers)
        made: list[str] = []
        try:
            for number, part in enumerate(self._parts.written[:-1]):
                link(part, part_path(path, number))
                made.append(part_path(path, number))
                sync(made[-1])
            fact = firing.to_facts(begin_ns, self._parts.let_go, self._seconds)
            after = self._parts.number + OWN_PART, before
            made.append(self._describe(part_path(path, len(made)), after, begin_ns, fact))
        except BaseException as error:
            for one in made:
                with contextlib.suppress(OSError):
                    remove(one)
            if isinstance(error, OutputError):
                raise OutputError(error.why, "nothing of this recording is left; free some space there") from None
            raise
        return made

    def _describe(self, path: str, after: tuple[int, bytes], begin_ns: int, fact: Mapping[str, object]) -> str:
        """Writes the last part of a recording: what it is, and names of processes that stand in no other part."""
        info = self._context.info
        # What the system accounts is of the whole session, not of the minutes that are kept.
        described = replace(info, started_ns=begin_ns, ended_ns=now_ns(), usage=Usage(), saved="", incomplete="",
                            extra={**info.extra, "recording": fact})  # fmt: skip
        parts = Parts(path, command=list(info.command), after=after, session=self._parts.session)
        parts.create()
        writer = TraceWriter(parts, self._context.strings)
        writer.begin()
        if (known := self._known.before(begin_ns)) is not None:
            writer.write(known)
        try:
            writer.close({}, described.to_dict())
        except OutputError:
            remove(path)
            raise
        return path

    def _count(self) -> dict[str, int]:
        """What the ledger has counted since the last call. The losses of this exporter are the file's."""
        now, found = Ledger.from_dict(self._context.ledger.as_dict()), Ledger()
        for stage, who, n in now.rows():
            if stage not in _SETTINGS:
                more = max(n - self._counted.get(stage, who), 0)
                found.add(stage, more, "msgpack" if who == "flight_recorder" else who)
        self._counted = now
        return found.as_dict()

    @property
    def dropped(self) -> int:
        """Rows that could not be written so far."""
        return self._writer.dropped

    def discard(self) -> None:
        """Removes what is kept; recordings stay."""
        self._parts.discard()

    def abandon(self) -> None:
        """Closes the descriptor, in a forked child."""
        self._writer.abandon()

    def statistics(self) -> Mapping[str, int]:
        """See TraceWriter.statistics()."""
        return self._writer.statistics()


class KnownProcesses:
    """The last names of processes and threads, and titles, of rows that the ring may have let go since.

    Args:
        strings: what the codes of names are of.
    """

    def __init__(self, strings: Dictionary) -> None:
        self._strings = strings
        #: by pid, tid and whether it is a title: time_ns, ppid, event, name
        self._names: dict[tuple[int, int, bool], tuple[int, int, int, int]] = {}
        self._ended: dict[int, int] = {}  # pid -> when

    def learn(self, batch: Batch) -> None:
        """Takes rows in order of time."""
        columns = (batch[name].tolist() for name in ("time_ns", "pid", "ppid", "tid", "event"))
        names = batch["name"].tolist() if "name" in batch else [0] * len(batch)
        for time, pid, ppid, tid, event, name in zip(*columns, names, strict=True):
            if event == PROCESS_EXIT:
                if pid == tid:
                    self._ended[pid] = time
                else:
                    self._names.pop((pid, tid, False), None)
                continue
            if pid == tid:
                self._ended.pop(pid, None)  # a new process of that id
            title = event == PROCESS_TITLE
            if title or name:
                self._names[pid, tid, title] = time, ppid, event if title else PROCESS_SEEN, name
        if len(self._names) > _MOST:
            for key in list(islice(self._names, len(self._names) - _MOST // 2)):
                del self._names[key]

    def forget(self, time_ns: int) -> None:
        """Forgets the processes that had ended by that time."""
        gone = {pid for pid, time in self._ended.items() if time < time_ns}
        for key in [key for key in self._names if key[0] in gone]:
            del self._names[key]
        for pid in gone:
            del self._ended[pid]

    def before(self, time_ns: int) -> Batch | None:
        """The names and titles that living processes had at a time, as rows of that time; None = there are none."""
        rows = [(time_ns, pid, ppid, tid, event, name, -1)
                for (pid, tid, _), (named_ns, ppid, event, name) in self._names.items()
                if named_ns < time_ns <= self._ended.get(pid, time_ns)]  # fmt: skip
        if not rows:
            return None
        names = ("time_ns", "pid", "ppid", "tid", "event", "name", "code")
        columns = {name: np.array([row[at] for row in rows], DTYPES[PROCESS.column(name).type])  # type: ignore[union-attr]
                   for at, name in enumerate(names)}  # fmt: skip
        return Batch(PROCESS, columns, strings=self._strings, source="flight_recorder")


def _free(paths: Iterator[str]) -> str:
    """The first of these paths that no file has and no part of a trace, neither now nor later: a.0001 is one of a."""
    return next(path for path in paths
                if name_and_number(path)[0] == path and not os.path.lexists(path) and not numbered(path))  # fmt: skip


def _remove_left(stem: str) -> None:
    """Removes the rings of recorders of this stem that were killed; those of other users stay.

    A recorder locks the part that it writes, and opens the next one before it ends the one before; the system frees the
    lock of a process that is gone. The header says of which ring a part is: recordings have the same parts.
    """
    # A recorder that began another part between the first listing and the test of the lock is seen by the second.
    for paths in _rings(stem).values():
        if not any(map(is_being_written, paths)) and paths in _rings(stem).values():
            for path in paths:
                with contextlib.suppress(OSError):
                    remove(path)


def _rings(stem: str) -> dict[str, list[str]]:
    """The parts of each ring by the name of its first one, the latest part first, as the present one is locked."""
    folder, name = os.path.split(stem)
    pattern = re.compile(re.escape(name) + r"\.ring(-\d+)?\.wst")
    found: dict[str, list[tuple[int, str]]] = {}
    with contextlib.suppress(OSError):
        for path in map(str, Path(folder).iterdir()):
            first, number = name_and_number(os.path.basename(path))
            if pattern.fullmatch(first) and belongs_to_us(path):
                with contextlib.suppress(TraceFileError):
                    if (header := first_header(path)) is not None and header.ring == first:
                        found.setdefault(first, []).append((number, path))
    return {first: [path for _, path in sorted(parts, reverse=True)] for first, parts in found.items()}
