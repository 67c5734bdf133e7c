"""Ring: the parts of a trace that hold its last minutes, and the recordings that are made of them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.errors import OutputError
from wstrace.firing import Firing
from wstrace.interfaces import Context
from wstrace.ledger import Ledger
from wstrace.output_file import link, remove, sync
from wstrace.schema import TABLES
from wstrace.trace_info import Usage
from wstrace_exporters.msgpack.format.part_names import part_path
from wstrace_exporters.msgpack.write.known_processes import KnownProcesses
from wstrace_exporters.msgpack.write.named_rows import KnownRows, NamedRows
from wstrace_exporters.msgpack.write.parts import Parts
from wstrace_exporters.msgpack.write.writer import TraceWriter

#: Parts of a full ring. What is kept is up to one part longer than asked for, and may take one part more of the disk.
_PARTS = 8
#: Stages of the ledger that hold no count that grows.
_SETTINGS = frozenset({"sampled"})


class Ring:
    """Writes a trace whose older parts are removed as it goes on.

    A recording has the parts of that time as hard links, so that the ring goes on with them for the next one, and a
    last part of its own that describes it. Only a recording is synced to the disk: a machine that loses its power loses
    the ring, in which nothing was recorded so far.

    Args:
        path: of the ring's first part.
        context: the session's.
        known: the names of the session's processes.
        rows: the session's mappings and call sites, of which it writes those that its rows name: it has the records of
            one cgroup. None = it has all records, and is given these as well.
        seconds: for how long records are kept. n_bytes: how much of the disk they may take at most; of several rings
            their owner sees to it.
        level: the compression level of zstd.
    Raises:
        OutputError: the first part cannot be created.
    """

    def __init__(
        self,
        path: str,
        context: Context,
        known: KnownProcesses,
        rows: KnownRows | None,
        *,
        seconds: float,
        n_bytes: int,
        level: int = 1,
    ) -> None:
        self._context, self._seconds, self._known, self._rows = context, seconds, known, rows
        self._counted = Ledger.from_dict(context.ledger.as_dict())  # as it was when the present part began
        self._parts = Parts(
            path,
            command=list(context.info.command),
            rotate_bytes=max(n_bytes // _PARTS, 1),
            rotate_seconds=seconds / _PARTS,
            keep_seconds=seconds,
            keep_bytes=n_bytes if rows is None else 0,
            sync="never",  # what is let go again need not reach the disk: the parts of a recording are synced
            ring=True,
            ledger=self._count,
        )
        self._parts.create()
        self._writer = TraceWriter(self._parts, context.strings, level=level,
                                   named=None if rows is None else NamedRows(rows))  # fmt: skip
        self._writer.begin()
        self._begun: dict[int, int] = {}  # part -> when it began
        self._note()

    @property
    def stalled(self) -> str:
        """Why frames wait for the disk; "" when none do."""
        return self._writer.stalled

    def share_of(self, n_bytes: int) -> None:
        """From now on it is to have an even share of so many bytes: a part ends when it has its part of that."""
        self._parts.rotate_bytes = max(n_bytes // _PARTS, 1)

    def write(self, batch: Batch) -> None:
        """Takes a batch of any stream except address_space. Raises OutputError."""
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

    @property
    def begin_ns(self) -> int:
        """Since when records are kept."""
        return self._begun[min(self._begun)]

    @property
    def kept_bytes(self) -> int:
        """The size of the parts that it may let go."""
        return self._parts.kept_bytes

    def let_oldest_go(self) -> None:
        """Removes its oldest part; there must be one that has ended."""
        self._parts.let_oldest_go()
        self._note()

    @property
    def let_go(self) -> Counter[str]:
        """Rows of parts that were removed, by stream."""
        return self._parts.let_go

    def record(
        self,
        path: str,
        firing: Firing,
        since: Mapping[int, int] | None = None,
        earlier: Mapping[str, int] | None = None,
    ) -> list[str]:
        """Makes a trace file of what is kept. Returns its parts; the first one's path opens it.

        Args:
            path: of the first part. firing: for what.
            since: see KnownProcesses.before().
            earlier: rows that were let go before this ring began.

        Raises:
            OutputError: it cannot be written; nothing of it is left then.
        """
        self._writer.flush()  # which may itself end a part
        before = self._parts.sink.file_id
        if not self._writer.rotate():
            raise OutputError(self._parts.refused)
        self._note()
        begin_ns = self.begin_ns
        made: list[str] = []
        try:
            for number, part in enumerate(self._parts.written[:-1]):
                link(part, part_path(path, number))
                made.append(part_path(path, number))
                sync(made[-1])
            fact = firing.to_facts(begin_ns, Counter(earlier or {}) + self.let_go, self._seconds)
            known = self._known.before(begin_ns, since)
            made.append(self._describe(part_path(path, len(made)), (self._parts.number, before), begin_ns, fact, known))
        except BaseException as error:
            for one in made:
                with contextlib.suppress(OSError):
                    remove(one)
            if isinstance(error, OutputError):
                raise OutputError(error.why, "nothing of this recording is left; free some space there") from None
            raise
        return made

    def _describe(
        self, path: str, after: tuple[int, bytes], begin_ns: int, fact: Mapping[str, object], known: Batch | None
    ) -> str:
        """Writes the last part of a recording: what it is, and names of processes that stand in no other part."""
        info = self._context.info
        # What the system accounts is of the whole session, not of the minutes that are kept.
        described = replace(info, started_ns=begin_ns, ended_ns=now_ns(), usage=Usage(), saved="", incomplete="",
                            extra={**info.extra, "recording": fact})  # fmt: skip
        parts = Parts(path, command=list(info.command), after=after)
        parts.create()
        writer = TraceWriter(parts, self._context.strings)
        writer.begin()
        if known is not None:
            writer.write(known)
        try:
            writer.close({}, described.to_dict())
        except OutputError:
            remove(path)
            raise
        return path

    def _count(self, rows: Mapping[str, int]) -> dict[str, int]:
        """What the ledger has counted since the last call. The losses of this exporter are the file's.

        Of a cgroup's own ring, losses are those of all cgroups: nobody knows whose records they were.
        """
        now, found = Ledger.from_dict(self._context.ledger.as_dict()), Ledger()
        for stage, who, n in now.rows():
            if stage in _SETTINGS or (self._rows is not None and (stage == "counted" or who in TABLES)):
                continue  # each part repeats the rows of tables that it needs
            more = max(n - self._counted.get(stage, who), 0)
            if stage == "recorded" and self._rows is not None:
                more = rows.get(who, 0)
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
