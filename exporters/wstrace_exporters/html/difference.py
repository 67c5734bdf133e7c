"""Two runs side by side: what the second one has more in memory, by owner and as a tree of stacks.

Its numbers are those of `wstrace diff`; the tree is summed from the same compositions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.compare import VIEWS, Change, Comparison
from wstrace.text import printable, size
from wstrace.trace import Trace
from wstrace_exporters.html.document import document, name, others
from wstrace_exporters.html.pictures.icicle import Tree, add_paths

#: The owners of a view that are shown one by one.
_MOST = 30
_PAGE = 2048  # half of the smallest page: bytes of two candidates are exact


def write(first: Trace, second: Trace, file: IO[bytes], at: str | None) -> int:
    """Writes the page; returns the number of rows by the first view. at: see Trace.diff()."""
    found = first.diff(second, at)
    data = difference(found)
    file.write(document("difference", f"wstrace: {found.first.name} and {found.second.name}", data))
    return sum(len(view["rows"]) for view in data["views"].values())


def difference(found: Comparison) -> dict[str, Any]:
    """The data of the page."""
    before, after, change = found.first.total, found.second.total, found.change
    sign = "+" if change > 0 else "−" if change < 0 else ""
    return {
        "headline": [
            f"{sign}{size(abs(change))}: {found.second.name} has {size(after)} resident, "
            f"{found.first.name} {size(before)}, {found.moment}"
        ],
        "names": [found.first.name, found.second.name],
        "doubts": [printable(doubt, 400) for doubt in found.doubts],
        "total": {"first": before, "second": after, "change": change},
        "views": {view: _view(found, view) for view in VIEWS},
        "tree": _tree(found),
    }


def _view(found: Comparison, view: str) -> dict[str, Any]:
    """The rows of a view, those with the largest change first; all others together in the last one."""
    if why := found.why_not(view):
        return {"why": printable(why, 400), "rows": []}
    rows = [row for row in found.rows(view) if row["first"] or row["second"]]
    shown = [[name(row.label), row["first"], row["second"]] for row in rows[:_MOST]]
    if rest := rows[_MOST:]:
        shown.append([others(len(rest)), *(sum(_amounts(row)[run] for row in rest) for run in (0, 1))])
    return {"why": "", "rows": shown}


def _amounts(row: Change) -> Sequence[int]:
    return row["first"], row["second"]


def _tree(found: Comparison) -> dict[str, Any]:
    """The tree by resident bytes of the first run, the second, and what either has more at a stack."""
    if why := found.why_not("function"):
        return {"why": printable(why, 400)}
    tree = Tree("all", 2)
    alike = {"heads": False, "lines": False}  # processes have other numbers, and lines move
    add_paths(tree, found.first.of, ("resident",), lambda amount: (amount[0], 0), **alike)
    add_paths(tree, found.second.of, ("resident",), lambda amount: (0, amount[0]), **alike)
    shown = tree.packed((_PAGE,) * 4, _grown)
    return {"why": "", **shown}


def _grown(own: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each stack's bytes in both runs: these two, what the second has more, and what it has less."""
    change = own[:, 1] - own[:, 0]
    return np.column_stack((own, np.maximum(change, 0), np.maximum(-change, 0)))
