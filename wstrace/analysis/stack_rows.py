"""Stacks as rows, for SQL: each call site with its frame, and with the labels of the stack that ends there."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.frames import Frames
from wstrace.analysis.own import OwnRule
from wstrace.analysis.stack_views import StackViews
from wstrace.analysis.symbols import Symbolizer
from wstrace.batch import Batch, Dictionary
from wstrace.schema import FRAME_KINDS, Column, Schema

STACKS = Schema(
    "stacks",
    (
        Column("id", "u32", "stack", "what `stack` and `native_stack` of page_fault name"),
        Column("parent", "u32", "stack", "its caller, 0 = none"),
        Column("depth", "u32", "count", "frames of the stack"),
        Column("kind", "u8", "id", "what the code of the innermost frame is", words=FRAME_KINDS),
        Column("function", "u32", "str", "of the innermost frame"),
        Column("file", "u32", "str", "its source file, where known"),
        Column("line", "u32", "count", "in that file, from 1; 0 = not known"),
        Column("module", "u32", "str", "of native code"),
        Column("offset", "u64", "count", "in the file of the module"),
        Column("own", "u8", "count", "1 = the frame is the program's own"),
        Column("own_line", "u32", "str", "the label of `report --by line`"),
        Column("package", "u32", "str", "the label of `report --by package`"),
        Column("folded", "u32", "str", "the whole stack, outermost;...;innermost"),
    ),
)


def stack_rows(
    tree: CallTree, strings: Dictionary, wanted: Iterable[str], symbolizer: Symbolizer | None = None
) -> Batch:
    """All call sites of a tree, with some of the columns of STACKS.

    Args:
        tree: the call sites.
        strings: the dictionary that the texts go into.
        wanted: the names of these columns.
        symbolizer: names native frames.
    """
    ids, names, code = tree.ids(), set(wanted), strings.code
    columns = {}
    if "id" in names:
        columns["id"] = ids.astype("<u4")
    columns |= {name: tree.column(name)[ids] for name in ("parent", "kind", "line", "offset") if name in names}
    if "depth" in names:
        columns["depth"] = _depths(tree)[ids]
    frames = Frames(tree, OwnRule(), symbolizer)
    if of_frame := names & {"function", "file", "module", "own"}:
        found = frames.of(ids.tolist())
        columns |= {
            name: np.array([code(getattr(frame, name)) for frame in found], "<u4") for name in of_frame if name != "own"
        }
        if "own" in of_frame:
            columns["own"] = np.array([frame.own is True for frame in found], "|u1")
    views = StackViews(tree, OwnRule(), symbolizer)
    for name, by in (("own_line", "line"), ("package", "package")):
        if name in names:
            labels = views.labels(by)(ids)  # type: ignore[arg-type]
            columns[name] = np.array([code(label.text) for label in labels], "<u4")
    if "folded" in names:
        folded = (";".join(str(frame).replace(";", ",") for frame in reversed(frames.stack(i))) for i in ids.tolist())
        columns["folded"] = np.fromiter(map(code, folded), "<u4", len(ids))
    return Batch(STACKS, columns, strings=strings, rows=len(ids))


def _depths(tree: CallTree) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """The number of frames of each stack, by id."""
    parent = tree.column("parent").astype(np.intp)
    depths = np.zeros(len(parent), "<u4")
    at = np.arange(len(parent))
    at[np.setdiff1d(at, tree.ids())] = 0
    while at.any():
        depths += at != 0
        at = parent[at]
    return depths
