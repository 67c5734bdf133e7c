"""The tables `pages` and `unshared` of a query: resident pages with who brought them, and copies of shared pages."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Composition
from wstrace.analysis.losses import page_of, space_of
from wstrace.analysis.tally import begins
from wstrace.analysis.unshared import Unshared
from wstrace.batch import Batch, Dictionary
from wstrace.schema import KINDS, PAGE_EXCLUSIVE, Column, Schema

_WHO = (
    Column("own_line", "u32", "str", "the line that brought it, or the reason why none is known"),
    Column("function", "u32", "str", "its function"),
    Column("package", "u32", "str", "the package or module that it belongs to"),
)
PAGES = Schema(
    "pages",
    (
        Column("pid", "u32", "id", "the process"),
        Column("va", "u64", "addr", "of the page"),
        Column("file", "u32", "str", "what is mapped there: a path, or [heap], [stack], [anon] ..."),
        Column("kind", "u8", "id", "of that memory", words=KINDS),
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


def pages_batch(blame: Composition, strings: Dictionary) -> Batch:
    """A row for each resident page."""
    of, faults = blame, blame.history.faults
    first, known = of.found.fault, of.found.fault >= 0
    brought = np.zeros(len(first), "<u8")
    brought[known] = faults.time[first[known]]
    flags = of.inputs.runs["flags"][of.run]
    run_start = of.inputs.runs["start"][of.run]
    begin = np.flatnonzero(begins(of.run))
    number = np.arange(len(of.run)) - np.repeat(begin, np.diff(np.append(begin, len(of.run))))
    columns: dict[str, NDArray[Any]] = {
        "pid": of.inputs.pids[of.column("space")].astype("<u4"),
        "va": run_start + number.astype("<u8") * np.uint64(of.page_size),
        "file": of.column("file"),
        "kind": of.column("kind"),
        "private": ((flags & PAGE_EXCLUSIVE) != 0).astype("|u1"),
        "brought_ns": brought,
        "estimated": of.found.estimated.astype("|u1"),
    }
    for name, view in (("own_line", "line"), ("function", "function"), ("package", "package")):
        labels = of.past.labels(view)
        codes = np.array([strings.code(label.text) for (label,) in labels.labels], "<u4")
        columns[name] = codes[labels.of[of.page_cells]]
    return Batch(PAGES, columns, strings=strings, rows=len(first))


def unshared_batch(blame: Composition, strings: Dictionary) -> Batch:
    """A row for each copy of a page that was shared since a fork."""
    of = blame
    faults, losses, copies = of.history.faults, of.history.losses, Unshared(blame)
    at, row = copies.copies, losses.row[of.history.copies.fork]
    pids = of.inputs.pids.astype("<u4")
    columns: dict[str, NDArray[Any]] = {
        "time_ns": faults.time[at],
        "pid": pids[space_of(faults.key[at]).astype(np.intp)],
        "child": pids[losses.rows.space[row]] if len(at) else np.zeros(0, "<u4"),
        "parent": pids[losses.rows.other[row]] if len(at) else np.zeros(0, "<u4"),
        "va": page_of(faults.key[at]) * np.uint64(of.page_size),
        "copies": copies.pages.astype("<u4"),
    }
    for name, view in (("own_line", "line"), ("function", "function"), ("package", "package")):
        labels = of.past.labels(view)
        codes = np.array([strings.code(label.text) for (label,) in labels.labels], "<u4")
        columns[name] = codes[labels.of[of.fault_cells[faults.order[at]]]]
    return Batch(UNSHARED, columns, strings=strings, rows=len(at))
