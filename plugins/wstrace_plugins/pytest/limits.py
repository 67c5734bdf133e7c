"""What a marker allows, `@pytest.mark.wstrace(peak="8MiB", isolated="fork")`, and what was measured of a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, Self, get_args

from wstrace.errors import UsageError
from wstrace.options import parse_size
from wstrace.text import nearest, number, size
from wstrace_plugins.pytest.observer import Seen

Isolation = Literal["no", "fork", "exec"]
#: The figures of a test, in the order in which they are shown; those in bytes.
FIGURES = ("peak", "new", "faults", "major", "written")
BYTES = frozenset(("peak", "new", "written"))
_KNOWN = (*FIGURES, "runs", "isolated")


class Mark(Protocol):
    """A marker as pytest gives it."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Its positional arguments."""

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Its keyword arguments."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a test may have at most of each figure, in bytes or faults; how often and where it runs."""

    most: Mapping[str, int] = field(default_factory=dict)
    runs: int = 1
    isolated: Isolation = "no"


def limits_of(marks: Iterable[Mark]) -> Limits | None:
    """The limits that the markers of a test say, the nearest first; None without a marker.

    Raises:
        UsageError: a keyword is unknown, or a value cannot be.
    """
    given: dict[str, Any] = {}
    marked = False
    for mark in marks:
        marked = True
        if mark.args:
            raise UsageError(f"wstrace({', '.join(map(repr, mark.args))})", "write wstrace(peak='8MiB', faults=3000)")
        for key in mark.kwargs:
            if key not in _KNOWN:
                raise UsageError(f"wstrace({key}=...) is no figure", nearest(key, _KNOWN))
        given = {**mark.kwargs, **given}
    if not marked:
        return None
    isolated, runs = given.get("isolated", "no"), given.get("runs", 1)
    if isolated not in get_args(Isolation):
        raise UsageError(f"wstrace(isolated={isolated!r})", "known: 'no', 'fork', 'exec'")
    if type(runs) is not int or not 1 <= runs <= 1000:
        raise UsageError(f"wstrace(runs={runs!r})", "give a number from 1 to 1000")
    if runs > 1 and isolated == "no":
        raise UsageError(
            f"wstrace(runs={runs}): a test runs once in its own process", "add isolated='fork' or isolated='exec'"
        )
    most = {name: _limit(name, given[name]) for name in FIGURES if given.get(name) is not None}
    return Limits(most, runs, isolated)


def _limit(name: str, value: Any) -> int:
    if isinstance(value, str) and name in BYTES:
        try:
            return parse_size(value)
        except ValueError as error:
            raise UsageError(f"wstrace({name}={value!r}): {error}") from None
    if type(value) is not int or value < 0:
        example = "a size such as '8MiB'" if name in BYTES else "a number of faults"
        raise UsageError(f"wstrace({name}={value!r})", f"give {example}")
    return value


def shown(name: str, value: int) -> str:
    """A figure in words: `8.0 MiB`, `3,000`."""
    return size(value) if name in BYTES else number(value)


def named(name: str, value: int) -> str:
    """A figure with its name: `peak 8.0 MiB`, `3,000 faults`."""
    return f"{name} {size(value)}" if name in BYTES else f"{number(value)} {'major ' * (name == 'major')}faults"


@dataclass(slots=True)
class Measured:
    """The figures of each run of a test, name -> bytes or faults.

    seen: who brought memory; None = nobody watched. broken: the limits that were passed, in words. notes: why it was
    not judged by a baseline, in words.
    """

    runs: list[dict[str, int]]
    seen: Seen | None = None
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def least(self) -> dict[str, int]:
        """The least of each figure over all runs: what else happens on a machine only adds to it."""
        return {name: min(run[name] for run in self.runs) for name in self.runs[0]}

    def spread_of(self, name: str) -> int:
        """By how much the largest of a figure is over the least."""
        return max(run[name] for run in self.runs) - self.least[name]

    @property
    def spread(self) -> str:
        """How far the page faults of several runs lie apart, in words."""
        if len(self.runs) == 1:
            return ""
        faults, apart = self.least["faults"], self.spread_of("faults")
        share = f", {apart / faults:.2%}" if faults else ""
        return f"{len(self.runs)} runs, spread {shown('faults', apart)}{share}"

    def over(self, most: Mapping[str, int]) -> list[str]:
        """The figures that are past their limits, in words."""
        least = self.least
        return [
            f"{named(name, least[name])}, limit {shown(name, limit)}{self._spread(name)}"
            for name, limit in most.items()
            if least[name] > limit
        ]

    def _spread(self, name: str) -> str:
        values = [run[name] for run in self.runs]
        if len(values) == 1:
            return ""
        return f" (the least of {len(values)} runs, up to {shown(name, max(values))})"

    def as_dict(self) -> dict[str, Any]:
        """For a report that goes from one process to another."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """From as_dict()."""
        return cls(data["runs"], None if data["seen"] is None else Seen.of(data["seen"]), data["broken"], data["notes"])
