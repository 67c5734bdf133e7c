"""Reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wstrace.analysis.cube import Cube
from wstrace.analysis.dimensions import Label, dimensions_of, labels_of
from wstrace.analysis.segments import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Row(NamedTuple):
    """A row of a report.

    Attributes:
        labels: one for each dimension that rows are by.
        values: measure -> its sum.
    """

    labels: tuple[Label, ...]
    values: dict[str, int]

    @property
    def label(self) -> str:
        """The texts of its labels."""
        return "  ".join(one.text for one in self.labels)


def rows(cube: Cube, by: Sequence[str], *, sort: str = "faults", cells: NDArray[np.bool_] | None = None) -> list[Row]:
    """The rows by these dimensions, those with most of a measure first, equal ones by label.

    Args:
        cube: what is summed. by: names of dimensions. sort: the measure. cells: those that count; None = all.
    """
    named = [labels_of(one, cube) for one in dimensions_of(by).values()]
    chosen = np.flatnonzero(np.ones(len(cube), np.bool_) if cells is None else cells)
    first, of = distinct(*(one.of[chosen] for one in named))
    sums = {name: np.bincount(of, cube.measure(name)[chosen], len(first)).tolist() for name in cube.sums}
    keys = [one.of[chosen[first]].tolist() for one in named]
    found = []
    for at in range(len(first)):
        values = {name: round(column[at]) for name, column in sums.items()}
        if any(values.values()):
            labels = tuple(one.labels[key[at]] for one, key in zip(named, keys, strict=True))
            found.append(Row(labels, values))
    return sorted(found, key=lambda row: (-row.values.get(sort, 0), -row.values.get("faults", 0), row.label))
