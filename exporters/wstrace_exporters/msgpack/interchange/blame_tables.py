"""The tables `pages` and `unshared` of a query: resident pages with who brought them, and copies of shared pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Composition, Past
from wstrace.analysis.losses import page_of, space_of
from wstrace.analysis.tally import begins
from wstrace.analysis.unshared import Unshared
from wstrace.batch import Batch, Columns, Dictionary
from wstrace.schema import PAGE_EXCLUSIVE, PAGE_FAULT, Column, Schema

_WHO = (
    Column("own_line", "u32", "str", "the line that brought it, or the reason why none is known"),
    Column("function", "u32", "str", "its function"),
    Column("package", "u32", "str", "the package or module that it belongs to"),
)
PAGES = Schema(
    "pages",
    (
        *(column for column in PAGE_FAULT.columns if column.name in ("pid", "va", "file", "kind")),
        Column("private", "u8", "count", "1 = no other process has it"),
        Column("brought_ns", "u64", "ns", "when it arrived, 0 = not known"),
        Column("estimated", "u8", "count", "1 = a rule and not a record says who brought it"),
        *_WHO,
    ),
)
UNSHARED = Schema(
    "unshared",
    (
        Column("time_ns", "u64", "ns", "of the fault that copied it"),
        Column("pid", "u32", "id", "the process that copied the page"),
        Column("child", "u32", "id", "of the fork since which it had been shared"),
        Column("parent", "u32", "id", "of that fork"),
        Column("va", "u64", "addr", "of the page"),
        Column("copies", "u32", "count", "how many this row stands for: where one of several faults was recorded"),
        *_WHO,
    ),
)


#: Columns of who brought a page, and the dimensions of reports that they are.
OWNERS = {"own_line": "line", "function": "function", "package": "package"}


def owners(past: Past, cells: NDArray[Any], strings: Dictionary, wanted: Iterable[str] = OWNERS) -> Columns:
    """The wanted columns of OWNERS, as codes of `strings`, of cells of the cube, shape (n,)."""
    found = {}
    for name in wanted:
        labels = past.labels(OWNERS[name])
        codes = np.array([strings.code(label.text) for (label,) in labels.labels], "<u4")
        found[name] = codes[labels.of[cells]]
    return found


def pages_batch(of: Composition, strings: Dictionary) -> Batch:
    """A row for each resident page."""
    begin = np.flatnonzero(begins(of.run))
    number = np.arange(len(of.run)) - np.repeat(begin, np.diff(np.append(begin, len(of.run))))
    columns: Columns = {
        "pid": of.inputs.pids[of.column("space")].astype("<u4"),
        "va": of.column("start") + number.astype("<u8") * np.uint64(of.page_size),
        "file": of.column("file"),
        "kind": of.column("kind"),
        "private": ((of.column("flags") & PAGE_EXCLUSIVE) != 0).astype("|u1"),
        "brought_ns": np.append(of.inputs.faults["time_ns"], np.uint64(0))[of.owner],
        "estimated": of.found.estimated.astype("|u1"),
        **owners(of.past, of.page_cells, strings),
    }
    return Batch(PAGES, columns, strings=strings, rows=len(of.owner))


def unshared_batch(of: Composition, strings: Dictionary) -> Batch:
    """A row for each copy of a page that was shared since a fork."""
    faults, losses, copies = of.history.faults, of.history.losses, Unshared(of)
    at = copies.copies
    row = losses.row[of.history.copies.fork] if len(at) else np.zeros(0, np.intp)
    pids = of.inputs.pids.astype("<u4")
    columns: Columns = {
        "time_ns": faults.time[at],
        "pid": pids[space_of(faults.key[at]).astype(np.intp)],
        "child": pids[losses.rows.space[row]],
        "parent": pids[losses.rows.other[row]],
        "va": page_of(faults.key[at]) * np.uint64(of.page_size),
        "copies": copies.pages.astype("<u4"),
        **owners(of.past, of.fault_cells[faults.order[at]], strings),
    }
    return Batch(UNSHARED, columns, strings=strings, rows=len(at))
