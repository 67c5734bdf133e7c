"""What a test or a command took of memory when its baseline was recorded, and whether it takes more now."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from wstrace.analysis.alignment import paired, unversioned
from wstrace.text import number, printable, size

#: The figures of a baseline; the others, and a limit's, are of the moment. In bytes, but for the faults.
FIGURES = ("faults", "peak", "new")
#: Names that are kept of what brought the memory.
NAMES = 20
#: A change is judged past the largest of: so many times the spread, this share, so many pages.
_SPREADS, _SHARE, _PAGES = 3, 0.01, 64
#: A spread past this share of its figure says nothing any more, unless the pages above cover it.
_NOISY = 0.03
_LINE = re.compile(r":\d+$")


class Bytes(NamedTuple):
    """Memory by name: `load app.py:12`, or a file."""

    label: str
    bytes: int


def told(figure: str, value: int) -> str:
    """A figure as it is read: `8.0 MiB`, `3,000`."""
    return number(value) if figure in ("faults", "major") else size(value)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is recorded of a test.

    figures: name -> the least of all runs, in bytes or faults. spread: name -> by how much the largest was more. runs:
    how many there were. by: who brought the memory, most first. level: `line` or `file`, by what that is told.
    """

    figures: Mapping[str, int]
    spread: Mapping[str, int]
    runs: int
    by: Sequence[Bytes] = ()
    level: str = "file"

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, int]], by: Sequence[Bytes] = (), level: str = "file") -> Self:
        """From the figures of each run."""
        known = [name for name in FIGURES if all(name in run for run in runs)]
        least = {name: min(run[name] for run in runs) for name in known}
        spread = {name: max(run[name] for run in runs) - least[name] for name in known}
        return cls(least, spread, len(runs), tuple(by[:NAMES]), level)

    def allowed(self, figure: str, page_size: int) -> int:
        """How much more than the recorded figure is no growth."""
        floor = _PAGES * (1 if figure == "faults" else page_size)
        return max(_SPREADS * self.spread.get(figure, 0), int(self.figures[figure] * _SHARE), floor)

    def noisy(self, figure: str, page_size: int) -> bool:
        """Whether its runs differ too much for a growth to be told from chance."""
        spread, floor = self.spread.get(figure, 0), _PAGES * (1 if figure == "faults" else page_size)
        return spread > self.figures[figure] * _NOISY and _SPREADS * spread > floor

    def judged(self, measured: Mapping[str, int], page_size: int) -> Judgement:
        """What of the measured figures is past the recorded ones."""
        found = Judgement()
        for figure in FIGURES:
            if figure not in self.figures or figure not in measured:
                continue
            was, now = self.figures[figure], measured[figure]
            found.limit[figure] = limit = was + self.allowed(figure, page_size)
            if self.noisy(figure, page_size):
                share = self.spread[figure] / was if was else 1
                found.noisy.append(f"{figure}: too noisy to judge, its runs differ by {share:.0%}")
            elif now > limit:
                more = f"+{(now - was) / was:.1%}" if was else f"+{told(figure, now)}"
                found.broken.append(f"{_with_name(figure, now)}, {more} over the baseline of {told(figure, was)} "
                                    f"(allowed: {told(figure, limit)})")  # fmt: skip
        return found

    def learned(self, later: Entry, page_size: int) -> Entry:
        """What is recorded after a later measurement: a figure within what is allowed only widens its spread."""
        figures, spread, runs = dict(later.figures), dict(later.spread), later.runs
        for figure, now in later.figures.items():
            if figure in self.figures and abs(now - self.figures[figure]) <= self.allowed(figure, page_size):
                was = self.figures[figure]
                figures[figure] = min(was, now)
                most = max(was + self.spread.get(figure, 0), now + later.spread.get(figure, 0))
                spread[figure] = most - figures[figure]
                runs = later.runs + self.runs
        return replace(later, figures=figures, spread=spread, runs=runs)

    def as_dict(self) -> dict[str, Any]:
        """The keys of a baseline file."""
        return {**self.figures, "spread": dict(self.spread), "runs": self.runs, "level": self.level,
                "by": [list(row) for row in self.by]}  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From as_dict(). Raises KeyError, TypeError or ValueError where it is none."""
        figures = {name: _count(data[name]) for name in FIGURES if name in data}
        if not figures:
            raise ValueError("no figure")
        spread = {name: _count(data["spread"][name]) for name in figures}
        by = [Bytes(str(label), _count(amount)) for label, amount in data.get("by", ())]
        return cls(figures, spread, _count(data["runs"]), tuple(by[:NAMES]), str(data.get("level", "file")))


@dataclass(slots=True)
class Judgement:
    """What came of a comparison: the largest figures that are allowed, and in words those past them or too noisy."""

    limit: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    noisy: list[str] = field(default_factory=list)


def grew(before: Entry, after: Entry) -> list[tuple[str, int, int]]:
    """(label, bytes before, bytes after) of what brings more than before, the largest growth first.

    Lines are paired also where they have moved, libraries where they have another version.
    """
    if before.level != after.level:
        return [(row.label, 0, row.bytes) for row in after.by]
    names = (lambda row: row.label, lambda row: _LINE.sub("", row.label), lambda row: unversioned(row.label))
    rows = [(new.label, old.bytes if old else 0, new.bytes) for old, new in paired(before.by, after.by, names) if new]
    return sorted((row for row in rows if row[2] > row[1]), key=lambda row: (row[1] - row[2], row[0]))


def _with_name(figure: str, value: int) -> str:
    return f"{number(value)} faults" if figure == "faults" else f"{figure} {size(value)}"


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{printable(repr(value), 40)} is no count")
    return value
