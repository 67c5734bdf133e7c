"""Firing: a condition on memory that came true, for which a flight recorder keeps the minutes before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

#: What happened to a process or cgroup: it reached a size, some of it was killed for want of memory, or it ended.
REACHED, KILLED, ENDED = "reached", "killed", "ended"
#: A time or size that is larger is none that we wrote.
_LARGEST = (1 << 63) - 1
#: A recording names the processes of its cgroup up to so many, which a free list of a trace file may have.
MOST_PIDS = 1000


#: What must be a number for a recording to be one.
_NUMBERS = ("time_ns", "bytes", "last_look_ns", "from_ns", "from_bytes", "begin_ns")


class Firing(NamedTuple):
    """One firing of a trigger. Times are ns of the records' clock, sizes bytes.

    what: the trigger as the user wrote it, `rss=400MiB`. who: the name of the process or cgroup. how: REACHED, KILLED,
    ENDED. n_bytes: its size then; at a kill or an end, the last one that is known. cgroup: its path; "" = of no cgroup.
    pids: its processes, where records are of others, too; () = of all that is recorded. last_look_ns: when its memory
    was read last; 0 = never. sizes: (time, size) of what was read before, in order of time.
    """

    time_ns: int
    what: str
    who: str
    how: str
    n_bytes: int
    cgroup: str = ""
    pids: tuple[int, ...] = ()
    last_look_ns: int = 0
    sizes: tuple[tuple[int, int], ...] = ()

    def since(self, time_ns: int) -> tuple[int, int]:
        """The last time and size that was read up to then, else the first one; the firing's own where none was."""
        first = self.sizes[0] if self.sizes else (self.time_ns, self.n_bytes)
        return next((one for one in reversed(self.sizes) if one[0] <= time_ns), first)

    def to_facts(self, begin_ns: int, let_go: Mapping[str, int], asked_seconds: float) -> dict[str, object]:
        """The fact `recording` of a trace file.

        begin_ns: since when records are kept. let_go: stream -> rows that were let go before that. asked_seconds: for
        how long records were to be kept.
        """
        from_ns, from_bytes = self.since(begin_ns)
        return {"time_ns": self.time_ns, "what": self.what, "who": self.who, "how": self.how, "bytes": self.n_bytes,
                "cgroup": self.cgroup, "last_look_ns": self.last_look_ns, "from_ns": from_ns,
                "from_bytes": from_bytes, "begin_ns": begin_ns, "let_go": dict(let_go),
                "asked_seconds": asked_seconds, "pids": list(self.pids[:MOST_PIDS])}  # fmt: skip


class Recording(NamedTuple):
    """What a recording of a flight recorder says of itself; see Firing.to_facts()."""

    time_ns: int
    what: str
    who: str
    how: str
    n_bytes: int
    cgroup: str
    last_look_ns: int
    from_ns: int
    from_bytes: int
    begin_ns: int
    let_go: dict[str, int]
    asked_seconds: float
    pids: tuple[int, ...] = ()

    @classmethod
    def of(cls, extra: Mapping[str, object]) -> Recording | None:
        """That of a trace by its `extra` facts, which may come from anyone; None = it is no recording."""
        facts = extra.get("recording")
        if not isinstance(facts, Mapping) or facts.get("how") not in (REACHED, KILLED, ENDED):
            return None
        numbers = {name: facts.get(name) for name in _NUMBERS}
        if not all(type(one) is int and 0 <= one <= _LARGEST for one in numbers.values()):
            return None
        n_bytes: Any = numbers.pop("bytes")
        texts = {name: facts.get(name) for name in ("what", "who", "how", "cgroup")}
        known: dict[str, Any] = {name: one if isinstance(one, str) else "" for name, one in texts.items()} | numbers
        given, wanted, pids = facts.get("let_go"), facts.get("asked_seconds"), facts.get("pids")
        rows = given.items() if isinstance(given, Mapping) else ()
        let_go = {str(stream): n for stream, n in rows if type(n) is int and n >= 0}
        named = [pid for pid in pids if type(pid) is int and pid >= 0] if isinstance(pids, list) else []
        return cls(**known, n_bytes=n_bytes, let_go=let_go, pids=tuple(named[:MOST_PIDS]),
                   asked_seconds=float(wanted) if isinstance(wanted, int | float) else 0.0)  # fmt: skip
