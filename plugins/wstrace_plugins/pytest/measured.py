"""What was measured of a test: the figures of its runs, the least of them, and who brought the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from wstrace_plugins.pytest.limits import named, shown
from wstrace_plugins.pytest.observer import Seen


@dataclass(slots=True)
class Measured:
    """The figures of each run of a test, name -> bytes or faults.

    seen: who brought memory; None = nobody has looked. broken: the limits that were passed, in words. notes: why it was
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
