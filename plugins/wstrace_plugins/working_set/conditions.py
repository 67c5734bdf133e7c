"""Conditions: what triggers wait for, as users write it, and when each comes true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wstrace.errors import UsageError
from wstrace.firing import ENDED, KILLED, REACHED
from wstrace.options import parse_duration, parse_size

Kind = Literal["rss", "growth", "end", "psi", "oom_kill"]
_HOW = {"end": ENDED, "oom_kill": KILLED}
_KNOWN = "rss=400MiB, growth=100MiB/30s, end; of cgroups psi=300ms/2s, oom_kill"
#: Below this part of the size that it fired at, a trigger is armed again.
REARM = 0.9


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition. text: as the user wrote it. amount: bytes or seconds of stall; seconds: of the time in
    which.
    """

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
    kind, given, value = text.partition("=")
    try:
        if kind == "rss" and value:
            return Condition(text, "rss", parse_size(value))
        if kind == "growth" and "/" in value:
            amount, _, seconds = value.partition("/")
            return _positive(Condition(text, "growth", parse_size(amount), parse_duration(seconds)))
        if kind == "psi" and "/" in value:
            stall, _, seconds = value.partition("/")
            return _positive(Condition(text, "psi", parse_duration(stall), parse_duration(seconds)))
    except ValueError as wrong:
        raise UsageError(f"trigger {text}: {wrong}", f"known: {_KNOWN}") from None
    if not given and kind in ("end", "oom_kill"):
        return Condition(text, kind)  # type: ignore[arg-type]
    raise UsageError(f"there is no trigger {text!r}", f"known: {_KNOWN}")


def _positive(condition: Condition) -> Condition:
    if condition.amount <= 0 or condition.seconds <= 0:
        raise ValueError("both numbers are above 0")
    return condition
