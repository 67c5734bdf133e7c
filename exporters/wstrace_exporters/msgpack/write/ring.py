"""Ring: the parts of a trace that hold its last minutes, and the recordings that are made of them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.clock import now_ns
from wstrace.errors import OutputError
from wstrace.firing import Firing
from wstrace.interfaces import Context
from wstrace.ledger import Ledger
from wstrace.output_file import belongs_to_us, link, remove, sync
from wstrace.schema import DTYPES, PROCESS, PROCESS_EXIT, PROCESS_SEEN, PROCESS_TITLE
from wstrace.trace_info import Usage
from wstrace_exporters.msgpack.format.layout import name_and_number, part_path, parts_there
from wstrace_exporters.msgpack.format.osfile import is_being_written
from wstrace_exporters.msgpack.write.parts import NOTHING, Parts
from wstrace_exporters.msgpack.write.writer import TraceWriter, plain

#: Parts of a full ring. What is kept is up to one part longer than requested, and may take one part more of the disk.
_PARTS = 8
#: Stages of the ledger that hold no count that grows.
_SETTINGS = frozenset({"sampled"})
#: The most names that are remembered; past it the oldest ones are forgotten.
_MOST = 1 << 16


class Ring(TraceWriter):
    """Writes a trace of which the older parts are removed as it goes on: STEM.ring.wst.

    A recording is the parts of that time as hard links, so that the ring goes on with them for the next one; the facts
    in its last part describe it. Only a recording is synced to the disk: a machine that loses its power loses the ring,
    in which nothing was recorded so far.
    stem: of the paths of recordings, which are STEM-1.wst, STEM-2.wst ...; names that exist are passed over. context:
    the session's. seconds: for how long records are kept. n_bytes: how much of the disk they may take at most. Raises
    OutputError: the first part cannot be created.
    """

    def __init__(self, stem: str, context: Context, *, seconds: float, n_bytes: int) -> None:
        self._stem, self._context, self._seconds, self._most_bytes = stem, context, seconds, n_bytes
        self._free_numbers = itertools.count(1)
        self._names_of = _NamesOf(context.strings)
        self._named: list[Batch] = []  # the names of processes at the begin of each part that is kept
        self._counted = Ledger.from_dict(context.ledger.as_dict())  # as it was when the present part began
        self._let_go: Counter[str] = Counter()  # rows by stream
        parts = Parts(
            _own_path(stem),
            command=context.info.command,
            rotate_bytes=max(n_bytes // _PARTS, 1),
            rotate_seconds=seconds / _PARTS,
            sync="never",  # what is let go again need not reach the disk: the parts of a recording are synced
            ledger=self._count,
        )
        super().__init__(parts, context.strings, facts=context.info.begun)

    def _begin_part(self) -> None:
        super()._begin_part()
        self._named.append(self._names_of.at(self._parts.began_ns))

    def write(self, batch: Batch) -> None:
        """Takes a batch of any stream except address_space. Raises OutputError."""
        if batch.schema is PROCESS:
            self._names_of.learn(batch)
        super().write(batch)
        self._let_go_outdated()

    def tick(self) -> None:
        """Does what is due by time."""
        super().tick()
        self._let_go_outdated()

    def _let_go_outdated(self) -> None:
        before, late = self._parts.before, now_ns() - int(self._seconds * 1e9)
        while before and (before[0].ended_ns < late or sum(part.n_bytes for part in before) > self._most_bytes):
            gone = before.pop(0)
            remove(gone.path)
            self._let_go.update(gone.rows)
            del self._named[0]

    def record(self, firing: Firing) -> list[str]:
        """Makes a trace file of what is kept. Returns its parts; the first one's path opens it.

        Raises OutputError: it cannot be written; nothing of it is left then.
        """
        self.flush()  # which may itself end a part
        begin_ns = next((part.began_ns for part in self._parts.before), self._parts.began_ns)
        super().write(self._named[0])
        fact = firing.to_facts(begin_ns, self._let_go, self._seconds)
        # What the system accounts is of the whole session, not of the minutes that are kept.
        info = self._context.info
        described = replace(info, started_ns=begin_ns, ended_ns=now_ns(), usage=Usage(), saved="", incomplete="",
                            extra={**info.extra, "recording": fact})  # fmt: skip
        self.flush()
        self.mark("facts", facts=plain(described.to_dict()))
        if self.stalled:
            raise OutputError(f"cannot write {self._parts.sink.out.path}: {self.stalled}")
        if not self.rotate():
            raise OutputError(self._parts.refused)
        path = _free(f"{self._stem}-{n}.wst" for n in self._free_numbers)
        made: list[str] = []
        try:
            for part in self._parts.before:
                link(part.path, part_path(path, len(made)))
                made.append(part_path(path, len(made)))
                sync(made[-1])
        except BaseException as error:
            for one in made:
                with contextlib.suppress(OSError):
                    remove(one)
            if isinstance(error, OutputError):
                raise OutputError(error.why, "nothing of this recording is left; free some space there") from None
            raise
        return made

    def _count(self) -> dict[str, int]:
        """What the ledger has counted since the last call. The losses of this exporter are the file's."""
        now, found = Ledger.from_dict(self._context.ledger.as_dict()), Ledger()
        for stage, who, n in now.rows():
            if stage not in _SETTINGS:
                more = max(n - self._counted.get(stage, who), 0)
                found.add(stage, more, "msgpack" if who == "flight_recorder" else who)
        self._counted = now
        return found.as_dict() or NOTHING

    def discard(self) -> None:
        """Removes what is kept; recordings stay."""
        super().discard()
        for part in self._parts.before:
            with contextlib.suppress(OSError):
                remove(part.path)


class _NamesOf:
    """The names and titles of processes and their threads that live, or have ended since the present part began.

    strings: what the codes of names are of.
    """

    def __init__(self, strings: Dictionary) -> None:
        self._strings = strings
        self._known: dict[tuple[int, int, bool], tuple[int, int, int]] = {}  # by pid, tid, and whether it is a title
        self._ended: set[tuple[int, int]] = set()  # pid and tid

    def learn(self, batch: Batch) -> None:
        """Takes rows in order of time."""
        columns = (batch[name].tolist() for name in ("pid", "ppid", "tid", "event"))
        names = batch["name"].tolist() if "name" in batch else [0] * len(batch)
        for pid, ppid, tid, event, name in zip(*columns, names, strict=True):
            title = event == PROCESS_TITLE
            if event == PROCESS_EXIT:
                self._ended.add((pid, tid))
                continue
            self._ended.discard((pid, tid))  # a new one of that id
            if title or name:
                self._known[pid, tid, title] = ppid, event if title else PROCESS_SEEN, name
        while len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def at(self, time_ns: int) -> Batch:
        """All names as rows of a time. Those of what has ended by then are forgotten afterwards."""
        rows = [(time_ns, pid, ppid, tid, event, name, -1)
                for (pid, tid, _), (ppid, event, name) in self._known.items()]  # fmt: skip
        self._known = {key: row for key, row in self._known.items()
                       if self._ended.isdisjoint((key[:2], (key[0], key[0])))}  # fmt: skip
        self._ended.clear()
        table = np.array(rows, "<i8").reshape(-1, 7)
        names = ("time_ns", "pid", "ppid", "tid", "event", "name", "code")
        columns = {column.name: table[:, names.index(column.name)].astype(DTYPES[column.type])
                   for column in PROCESS.columns if column.name in names}  # fmt: skip
        return Batch(PROCESS, columns, strings=self._strings, source="flight_recorder")


def _free(paths: Iterator[str]) -> str:
    """The first of these paths that no file has and no part of a trace, neither now nor later: a.0001 is one of a."""
    return next(
        path
        for path in paths
        if name_and_number(path)[0] == path and not parts_there(path) and not os.path.lexists(path)
    )


def _own_path(stem: str) -> str:
    """The path of a new ring. That of a recorder of this stem that was killed is removed.

    A recorder locks the part that it writes, and opens the next one before it ends the one before; the system frees the
    lock of a process that is gone.
    Raises OutputError: another recorder writes it, or it belongs to another user.
    """
    path = f"{stem}.ring.wst"
    there = parts_there(path)
    if any(map(is_being_written, there)) or not all(map(belongs_to_us, there)):
        raise OutputError(f"{path} is another recorder's", "give this one a name of its own: path=FILE.wst")
    for part in there:
        remove(part)
    return path
