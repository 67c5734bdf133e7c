"""What triggers wait for, and the processes or cgroups that they watch: sizes over time, and when one may fire."""

from __future__ import annotations

import abc
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from wstrace.clock import now_ns
from wstrace.errors import UsageError
from wstrace.firing import ENDED, KILLED, MOST_PIDS, REACHED, Firing
from wstrace.options import parse_duration, parse_size

Kind = Literal["rss", "growth", "end", "psi", "oom_kill"]
_VALUES = {"rss": (parse_size,), "growth": (parse_size, parse_duration), "psi": (parse_duration, parse_duration),
           "end": (), "oom_kill": ()}  # fmt: skip
_HOW = {"end": ENDED, "oom_kill": KILLED}
_KNOWN = "known: rss=400MiB, growth=100MiB/30s, end; of cgroups psi=300ms/2s, oom_kill"
#: Below this part of the size that it fired at, a trigger is armed again.
REARM = 0.9
#: Sizes are remembered for ten minutes, one a second; as often it is read which processes there are.
_REMEMBERED, _SECOND = 600, 1_000_000_000
#: Snapshots that nothing has fired for are so many times their own CPU time apart.
_APART = 20


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition. text: as the user wrote it. amount: bytes or seconds of stall; seconds: of the time in which."""

    text: str
    kind: Kind
    amount: float = 0.0
    seconds: float = 0.0

    @property
    def how(self) -> str:
        """What has happened when it is true: one of wstrace.firing."""
        return _HOW.get(self.kind, REACHED)

    @property
    def of_cgroup(self) -> bool:
        """Whether it is about a cgroup, and not about processes."""
        return self.kind in ("psi", "oom_kill")


def parse_conditions(texts: Sequence[str]) -> tuple[Condition, ...]:
    """The conditions, each once. Raises UsageError."""
    return tuple({text: _parsed(text) for text in (str(one).strip() for one in texts)}.values())


def _parsed(text: str) -> Condition:
    kind, _, value = text.partition("=")
    parts, readers = value.split("/") if value else [], _VALUES.get(kind)
    if readers is not None and len(parts) == 1 < len(readers):
        raise UsageError(
            f"{text} says no time in which so much is reached", f"write {text}/{2 if kind == 'psi' else 30}s"
        )
    if readers is None or len(parts) != len(readers):
        raise UsageError(f"there is no trigger {text!r}", _KNOWN)
    try:
        numbers = [reader(part) for reader, part in zip(readers, parts, strict=True)]
    except ValueError as wrong:
        raise UsageError(f"trigger {text}: {wrong}", _KNOWN) from None
    if not all(number > 0 for number in numbers):
        raise UsageError(f"trigger {text}: its numbers are above 0", _KNOWN)
    return Condition(text, cast(Kind, kind), *numbers)


class Watched(abc.ABC):
    """What triggers are about.

    name: what tells it from others. who: its name in a line. conditions: what is waited for. pause: seconds for which a
    condition that has fired does not fire again. ending: set before the last reading. gone: it will never come back.
    """

    def __init__(self, name: str, who: str, conditions: Sequence[Condition], pause: float) -> None:
        self.name, self.who, self.conditions = name, who, conditions
        self.ending = self.gone = False
        self._pause_ns = pause * 1e9
        self._fired: dict[Condition, int] = {}
        self._waiting: set[Condition] = set()  # for the size to fall
        self._sizes: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)  # when, in ns, and the size then
        self._seen: dict[int, None] = {}  # processes, the newest last
        self._seen_due = 0
        self.snapshots = ((0, 0), (0, 0))  # the last two: when, in ns, and the resident bytes that were seen
        self.snapshot_due = 0.0

    @abc.abstractmethod
    def pids(self) -> Sequence[int]:
        """The processes of it now."""

    @abc.abstractmethod
    def happened(self) -> set[Condition]:
        """What has come true that is no size."""

    @abc.abstractmethod
    def size(self) -> int:
        """Its size in bytes; 0 = not known."""

    def is_near(self) -> bool:
        """Whether a snapshot is due although nothing fires."""
        return False

    def close(self) -> None:  # noqa: B027 - most have none
        """Closes its descriptors."""

    def members(self) -> tuple[int, ...]:
        """The processes that were seen in it, the newest first, those that have ended included."""
        return tuple(reversed(self._seen))

    def read(self) -> list[Condition]:
        """Reads the size, and says what has come true."""
        time_ns = now_ns()
        if time_ns >= self._seen_due:
            for pid in self.pids():
                self._seen.pop(pid, None)
                self._seen[pid] = None
            for pid in list(self._seen)[:-MOST_PIDS]:
                del self._seen[pid]
            self._seen_due = time_ns + _SECOND
        happened = self.happened()
        if not self.gone and (n_bytes := self.size()):
            if len(self._sizes) > 1 and time_ns - self._sizes[-2][0] < _SECOND:
                self._sizes.pop()
            self._sizes.append((time_ns, n_bytes))
        return [one for one in self.conditions if one in happened or self._reached(one)]

    def may(self, condition: Condition) -> bool:
        """Whether it has not fired within the pause; it counts as fired then."""
        now, last = now_ns(), self._fired.get(condition)
        if last is not None and now - last < self._pause_ns:
            return False
        self._fired[condition] = now
        return True

    def _reached(self, one: Condition) -> bool:
        """Whether a size has come to its limit, or as much was gained as is waited for since it fired last."""
        time_ns, n_bytes = self.newest
        if one.kind == "rss":
            if n_bytes < REARM * one.amount:
                self._waiting.discard(one)
            true = n_bytes >= one.amount and one not in self._waiting
        else:
            since = max(time_ns - int(one.seconds * 1e9), self._fired.get(one, 0))
            least = min((n for at, n in self._sizes if at >= since), default=n_bytes)
            true = one.kind == "growth" and n_bytes - least >= one.amount
        if not true or not self.may(one):
            return False
        self._waiting.add(one)
        return True

    @property
    def newest(self) -> tuple[int, int]:
        """When the size was read last, in ns, and what it was."""
        return self._sizes[-1] if self._sizes else (0, 0)

    def note_snapshot(self, time_ns: int, cpu_seconds: float, n_bytes: int = 0) -> None:
        """Notes a snapshot of the memory that ended then, and how much was seen."""
        self.snapshots = self.snapshots[1], (time_ns, n_bytes)
        self.snapshot_due = time.monotonic() + _APART * cpu_seconds

    def firing(self, condition: Condition, pids: tuple[int, ...]) -> Firing:
        """Describes a firing now. For pids see Firing."""
        return Firing(now_ns(), condition.text, self.who, condition.how, self.newest[1], self.name, pids,
                      self.snapshots[1][0], tuple(self._sizes) or (self.newest,))  # fmt: skip
