"""What a line of a Python program was importing when its stack was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.own import package_of
from wstrace.text import base_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The file of the frames of the import system.
IMPORT_SYSTEM = "<frozen importlib"


def imported(tree: CallTree, leaves: NDArray[np.intp], nodes: NDArray[np.intp]) -> list[str]:
    """For each stack the package or module that one of its frames was importing; "" = none.

    Args:
        leaves: innermost call sites, shape (n,).
        nodes: a frame of each stack, shape (n,).
    """
    first, below = _outermost_module(tree, leaves, nodes)
    files = np.where(_any_that_begins(tree, "file", IMPORT_SYSTEM)[below] & (nodes != 0), tree.column("file")[first], 0)
    names = {code: _module_name(tree.text(code)) for code in np.unique(files).tolist()}
    return [names[code] for code in files.tolist()]


def _outermost_module(
    tree: CallTree, leaves: NDArray[np.intp], nodes: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of the frames that each node called, the outermost `<module>` and the outermost of all; 0 = none."""
    parent, module = tree.column("parent").astype(np.intp), _any_that_begins(tree, "function", "<module>")
    at, below, first = leaves.copy(), np.zeros(len(leaves), np.intp), np.zeros(len(leaves), np.intp)
    going = np.flatnonzero((at != nodes) & (at != 0))
    while len(going):
        here = at[going]
        first[going] = np.where(module[here], here, first[going])
        below[going] = here
        at[going] = parent[here]
        going = going[(at[going] != nodes[going]) & (at[going] != 0)]
    below[at != nodes] = 0
    return first, below


def _any_that_begins(tree: CallTree, column: str, text: str) -> NDArray[np.bool_]:
    """By id, whether a column's text begins with another text."""
    ids = tree.ids()
    codes = tree.column(column)[ids]
    wanted = [code for code in np.unique(codes).tolist() if tree.text(code).startswith(text)]
    mask = np.zeros(len(tree.column(column)), np.bool_)
    mask[ids[np.isin(codes, wanted)]] = True
    return mask


def _module_name(file: str) -> str:
    """What a module is imported as, as far as its file shows: its package's name, or its own."""
    if not file or file.startswith("<"):
        return ""
    if package := package_of(file):
        return package
    folder, _, name = file.replace("\\", "/").rpartition("/")
    return base_name(folder) if name.startswith("__init__.") else name.partition(".")[0]
