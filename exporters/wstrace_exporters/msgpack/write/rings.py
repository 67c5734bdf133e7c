"""Rings: what is kept of each watched cgroup apart, so that one that is busy does not cost another its minutes."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from wstrace.batch import Batch
from wstrace.errors import OutputError
from wstrace.firing import Firing
from wstrace.interfaces import Context
from wstrace.schema import CALL_SITE, MAPPING, MARK, PROCESS
from wstrace.text import base_name
from wstrace_exporters.msgpack.format.part_names import name_and_number, numbered
from wstrace_exporters.msgpack.write.homes import Homes
from wstrace_exporters.msgpack.write.known_processes import KnownProcesses
from wstrace_exporters.msgpack.write.left_rings import remove_left
from wstrace_exporters.msgpack.write.named_rows import KnownRows
from wstrace_exporters.msgpack.write.ring import Ring

#: Of names from outside, what file names may have.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.@-]+")
_NAME_LIMIT = 80
#: Of so many cgroups it is remembered that they share a ring, and how much a ring that was closed had let go.
_MOST_REMEMBERED = 4096


class Rings:
    """One ring for all records, or one for each watched cgroup where a source has divided them (Context.division).

    On the disk they have a limit together: where it is reached, the largest one lets its oldest part go. A ring that
    needs less than its even share of the limit is therefore never cut by the others.

    Args:
        stem: of the paths of recordings, which are STEM-1.wst, STEM-2.wst ...; names that exist are passed over. A
            ring is STEM.ring.wst, that of a cgroup STEM.ring-NAME.wst.
        context: the session's.
        seconds: for how long records are kept. n_bytes: how much of the disk they may take at most.
        most: rings of cgroups. That of a further cgroup takes the place of one without a record for `seconds`; where
            there is no such, it shares STEM.ring.wst with other further ones.
        level: the compression level of zstd.

    Raises:
        OutputError: no file can be created.
    """

    def __init__(self, stem: str, context: Context, *, seconds: float, n_bytes: int, most: int, level: int = 1) -> None:
        self._stem, self._context, self._seconds, self._bytes, self._most = stem, context, seconds, n_bytes, most
        self._level = level
        self._numbers = itertools.count(1)
        self._known = KnownProcesses(context.strings)
        self._rows = KnownRows(context.strings)
        self._homes: Homes | None = None
        self._of: dict[str, Ring] = {}  # by the path of a cgroup; "" = what has no ring of its own
        self._written: dict[str, float] = {}  # when each had rows last, by time.monotonic()
        self._before: dict[str, Counter[str]] = {}  # of closed rings: rows that they had let go
        self._sharing: dict[str, float] = {}  # cgroups without a ring of their own: when each had rows last
        self._dropped = self._outside = 0
        remove_left(stem)
        self._of[""] = self._open("")  # a path that cannot be written to is told before anything is traced

    def write(self, batch: Batch) -> None:
        """Takes a batch of any stream except address_space. Raises OutputError."""
        if batch.schema is PROCESS:
            self._known.learn(batch)
        if (homes := self._divided()) is None:
            self._of[""].write(batch)
            return
        self._rows.learn(batch)
        if batch.schema in (MAPPING, CALL_SITE):  # each ring takes those that its rows name
            return
        if batch.schema is MARK and batch.source == "triggers":
            split = {self._path(one): batch for one in self._context.firings if one.time_ns in batch["time_ns"]}
        elif batch.snapshot is None and (batch.schema is MARK or "pid" not in batch):  # it is about all of them
            self._each(lambda path: self._of[path].write(batch), self._of)
            return
        else:
            split = homes.split(batch)
        self._outside += len(split.pop("", ()))
        self._each(lambda path: self._ring(path).write(split[path]), split)
        self._fit()

    def tick(self) -> None:
        """Does what is due by time. Raises OutputError."""
        self._each(lambda path: self._of[path].tick(), self._of)
        self._fit()

    def flush(self) -> None:
        """Writes all waiting rows. Raises OutputError."""
        self._each(lambda path: self._of[path].flush(), self._of)

    def _each(self, do: Callable[[str], None], paths: Mapping[str, object]) -> None:
        """Does it for each ring, also where another one fails."""
        failed: OutputError | None = None
        for path in list(paths):
            try:
                do(path)
            except OutputError as error:
                failed = error
        if failed is not None:
            raise failed

    def record(self, firing: Firing) -> list[str]:
        """Makes a trace file of what is kept of a firing's cgroup. Returns its parts; the first one's path opens it.

        Raises:
            OutputError: it cannot be written; nothing of it is left then.
        """
        homes, path = self._homes, self._path(firing)
        ring = self._ring(path)
        if path and path in self._of and path == firing.cgroup:
            firing = replace(firing, pids=())  # the ring has no other's records
        since: dict[int, int] | None = None
        if homes is not None:
            since = {}
            for one in [path] if path in self._of else [*self._sharing]:
                since.update(homes.since(one))
        made = ring.record(_free(f"{self._stem}-{n}.wst" for n in self._numbers), firing, since, self._before.get(path))
        self._known.forget(min(one.begin_ns for one in self._of.values()))
        return made

    def _path(self, firing: Firing) -> str:
        """The cgroup whose ring has a firing's records; "" = the one ring of all."""
        division = self._context.division
        return division[0].of_cgroup(firing.cgroup) if division else ""

    def _divided(self) -> Homes | None:
        """The homes of rows, if they are divided: known from the first record on."""
        if self._homes is None and self._context.division:
            self._homes = Homes(self._context.division[0], self._context.strings)
            self._of.pop("").discard()  # it is empty
        return self._homes

    def _ring(self, path: str) -> Ring:
        """The ring of a cgroup, made if it has none; that of all further ones where there are too many."""
        now = time.monotonic()
        if path not in self._of:
            shares = now - self._sharing.get(path, -self._seconds) < self._seconds  # its records of now are there
            full = path and len(self._of.keys() - {""}) >= self._most
            if shares or (full and not self._close_idle(now)):
                if not self._sharing:
                    self._context.info.note(f"of more than {self._most} cgroups the further ones share one ring")
                self._sharing[path] = now
                for old in list(self._sharing)[:-_MOST_REMEMBERED]:
                    del self._sharing[old]
                path = ""
        self._written[path] = now
        if path not in self._of:
            self._sharing.pop(path, None)
            self._of[path] = self._open(path)
            for ring in self._of.values():
                ring.share_of(self._bytes // len(self._of))
        return self._of[path]

    def _close_idle(self, now: float) -> bool:
        """Closes the ring that had no rows for the longest time, if all of it is older than what is kept."""
        path = min((one for one in self._of if one), key=lambda one: self._written[one])
        if now - self._written[path] <= self._seconds:
            return False
        del self._written[path]
        ring = self._of.pop(path)
        self._dropped += ring.dropped
        self._before[path] = ring.let_go
        for old in list(self._before)[:-_MOST_REMEMBERED]:
            del self._before[old]
        ring.discard()
        return True

    def _open(self, path: str) -> Ring:
        name = f".ring-{file_name(base_name(path.rstrip('/')) or 'root')}" if path else ".ring"
        free = _free(f"{self._stem}{name}{f'-{n}' if n > 1 else ''}.wst" for n in itertools.count(1))
        rows = None if self._homes is None else self._rows
        return Ring(free, self._context, self._known, rows, seconds=self._seconds, n_bytes=self._bytes,
                    level=self._level)  # fmt: skip

    def _fit(self) -> None:
        """Keeps the rings together within the limit."""
        sizes = {path: ring.kept_bytes for path, ring in self._of.items()}
        while sum(sizes.values()) > self._bytes:
            largest = max(sizes, key=lambda path: sizes[path])
            self._of[largest].let_oldest_go()
            sizes[largest] = self._of[largest].kept_bytes

    @property
    def stalled(self) -> str:
        """Why frames wait for the disk; "" when none do."""
        return next((why for ring in self._of.values() if (why := ring.stalled)), "")

    @property
    def dropped(self) -> int:
        """Rows that could not be written so far."""
        return self._dropped + sum(ring.dropped for ring in self._of.values())

    def discard(self) -> None:
        """Removes what is kept; recordings stay."""
        for ring in self._of.values():
            ring.discard()

    def abandon(self) -> None:
        """Closes the descriptors, in a forked child."""
        for ring in self._of.values():
            ring.abandon()

    def statistics(self) -> dict[str, int]:
        """Of all rings: see TraceWriter.statistics(). How many; cgroups that share one; rows of no watched cgroup."""
        found: Counter[str] = Counter()
        for ring in self._of.values():
            found.update(ring.statistics())
        return {**found, "rings": len(self._of), "sharing": len(self._sharing), "outside": self._outside}


def file_name(name: str) -> str:
    """A name from outside as a part of the name of a file."""
    return _UNSAFE.sub("_", name)[:_NAME_LIMIT].strip(".-") or "recording"


def _free(paths: Iterator[str]) -> str:
    """The first of these paths that no file has and no part of a trace, neither now nor later: a.0001 is one of a."""
    return next(path for path in paths
                if name_and_number(path)[0] == path and not os.path.lexists(path) and not numbered(path))  # fmt: skip
