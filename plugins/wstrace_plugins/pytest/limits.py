"""What a marker allows, `@pytest.mark.wstrace(peak="8MiB", isolated="fork")`, and what was measured of a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from wstrace.analysis.baseline import Bytes, Entry, named, written
from wstrace.errors import UsageError
from wstrace.options import parse_size
from wstrace.text import nearest

if TYPE_CHECKING:
    import pytest

#: The figures of a test, in the order in which they are shown; those in bytes.
FIGURES = ("peak", "new", "faults", "major", "written")
_BYTES = frozenset(("peak", "new", "written"))
_ISOLATED = ("no", "fork", "exec")


class Limits(NamedTuple):
    """What a test may have at most of each figure, in bytes or faults; how often and where it runs."""

    most: Mapping[str, int]
    runs: int
    isolated: str


def limits_of(item: pytest.Item) -> Limits | None:
    """The limits that the markers of a test say, the nearest first; None without a marker.

    Raises UsageError: a keyword is unknown, or a value cannot be.
    """
    marks = list(item.iter_markers("wstrace"))
    if not marks:
        return None
    given: dict[str, Any] = {}
    for mark in marks:
        if mark.args:
            raise UsageError(f"wstrace({', '.join(map(repr, mark.args))})", "write wstrace(peak='8MiB', faults=3000)")
        given = {**mark.kwargs, **given}
    isolated, runs = given.pop("isolated", "no"), given.pop("runs", 1)
    if isolated not in _ISOLATED:
        raise UsageError(f"wstrace(isolated={isolated!r})", "known: 'no', 'fork', 'exec'")
    if type(runs) is not int or not 1 <= runs <= 1000:
        raise UsageError(f"wstrace(runs={runs!r})", "give a number from 1 to 1000")
    if runs > 1 and isolated == "no":
        raise UsageError(
            f"wstrace(runs={runs}): a test runs once in its own process", "add isolated='fork' or isolated='exec'"
        )
    return Limits({name: _limit(name, value) for name, value in given.items() if value is not None}, runs, isolated)


def _limit(name: str, value: Any) -> int:
    if name not in FIGURES:
        raise UsageError(f"wstrace({name}=...) is no figure", nearest(name, (*FIGURES, "runs", "isolated")))
    if isinstance(value, str) and name in _BYTES:
        try:
            return parse_size(value)
        except ValueError as error:
            raise UsageError(f"wstrace({name}={value!r}): {error}") from None
    if type(value) is not int or value < 0:
        example = "a size such as '8MiB'" if name in _BYTES else "a number of faults"
        raise UsageError(f"wstrace({name}={value!r})", f"give {example}")
    return value


@dataclass(slots=True)
class Measured:
    """The figures of each run of a test, name -> bytes or faults; made of plain values, for a report in JSON.

    rows: (label, bytes that it brought, bytes of them that are still there), most first. by: `line` where the faults
    were recorded, `file` where only snapshots could be compared; "" = nobody watched. lacking: why no more than that is
    known, and what lifts it; "" = everything is. broken: the limits that were passed, in words. notes: why it was not
    judged by a baseline, in words.
    """

    runs: list[dict[str, int]]
    rows: list[tuple[str, int, int]] = field(default_factory=list)
    by: str = ""
    lacking: str = ""
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def least(self) -> dict[str, int]:
        """The least of each figure over all runs: what else happens on a machine only adds to it."""
        return {name: min(run[name] for run in self.runs) for name in self.runs[0]}

    @property
    def spread(self) -> int:
        """By how much the most page faults of a run are over the least."""
        return max(run["faults"] for run in self.runs) - self.least["faults"]

    @property
    def entry(self) -> Entry:
        """What a baseline records of it."""
        return Entry.of(self.runs, [Bytes(label, brought) for label, brought, _ in self.rows], self.by or "file")

    def over(self, most: Mapping[str, int]) -> list[str]:
        """The figures that are past their limits, in words."""
        found = []
        for name, limit in most.items():
            values = [run[name] for run in self.runs]
            if min(values) > limit:
                several = f" (the least of {len(values)} runs, up to {written(name, max(values))})"
                found.append(f"{named(name, min(values))}, limit {written(name, limit)}{several * (len(values) > 1)}")
        return found
