"""Writes a trace as a profile of pprof: faults, bytes brought and bytes resident by stack, in the sums of `blame`."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import IO

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import Label
from wstrace.analysis.frames import Frame, to_the_root
from wstrace.analysis.report import Report, why_no_pages
from wstrace.analysis.report import report as report_of
from wstrace.analysis.segments import distinct
from wstrace.formats import Rows
from wstrace.text import estimates_note, plural
from wstrace.trace import Trace
from wstrace_exporters.pprof.profile import Profile

#: The types of values and their units; and the columns of Cells that they are.
TYPES = (("faults", "count"), ("brought", "bytes"), ("resident", "bytes"))
COLUMNS = ("faults", "brought", "resident")
#: The views that become labels of samples.
LABELS = ("file", "process", "thread", "kind")


def write(trace: Trace, file: IO[bytes], *, at: str = "peak", least: float = 0.1) -> Rows:
    """Writes a profile; returns the number of its samples.

    Args:
        trace: the trace.
        file: the output.
        at: the moment of `resident`: peak, exit, start or the text of a mark.
        least: instructions without a name that have a smaller share of each type of values, in percent, are told
            together by their file. 0 = all is told.

    Raises:
        UsageError: there is no such mark.
    """
    report = report_of(trace, at=at)
    told = report.of or Composition(trace, at)  # without pages: the faults alone
    numbers, sums = told.columns("stack", *LABELS)
    codes = [dict[Label, int]() for _ in range(1 + len(LABELS))]
    named = told.past.labels("stack", *LABELS).labels
    cells = np.array([[code.setdefault(label, len(code)) for code, label in zip(codes, named[number], strict=True)]
                      for number in numbers.tolist()], np.intp).reshape(-1, len(codes))  # fmt: skip
    stacks, *views = (list(code) for code in codes)
    frames: list[Sequence[Frame]] = [to_the_root(label.frames) for label in stacks]
    columns = [sums.get(name, np.zeros(len(numbers))) for name in COLUMNS]
    stack, others = _together(frames, cells[:, 0], columns, least)
    profile = Profile(TYPES, told.inputs.names.symbolizer.mappings, told.strings)
    profile.time_ns = trace.info.clock.wall(trace.begin_ns)
    profile.duration_ns = max(trace.info.ended_ns - trace.begin_ns, 0)
    profile.default = "resident" if told.rss else "brought"
    profile.comments = comments(told, report)
    if n := int(np.count_nonzero(stack != np.arange(len(stack)))):
        few = f"{plural(n, 'instruction')} without a name, of less than {least:g} % each"
        profile.comments.append(f"{few}: told by their files, as (others in ...); --option least=0 keeps them")
    reasons = [row.reason for row in stacks] + [""] * len(others)
    frames += others
    labels = [[b"" if row.reason else profile.label(name, row.text) for row in view]
              for name, view in zip(LABELS, views, strict=True)]  # fmt: skip
    which = stack[cells[:, 0]]
    rows, sample = distinct(which, *cells[:, 1:].T)
    values = np.column_stack([np.bincount(sample, column, len(rows)) for column in columns]).round().astype(np.int64)
    of_stack = {at: profile.stack(frames[at], reasons[at]) for at in np.unique(which).tolist()}
    for number, of, amounts in zip(which[rows].tolist(), cells[rows, 1:].tolist(), values.tolist(), strict=True):
        told_by = b"".join(view[code] for view, code in zip(labels, of, strict=True))
        profile.sample(of_stack[number], amounts, told_by)
    file.write(gzip.compress(profile.encoded(), 6, mtime=0))
    return Rows(len(rows), "")


def _together(
    frames: Sequence[Sequence[Frame]], stack: NDArray[np.intp], columns: Sequence[NDArray[np.float64]], least: float
) -> tuple[NDArray[np.intp], list[Sequence[Frame]]]:
    """Of each stack the one that stands for it, and those that stand for small instructions of a file, behind all."""
    small = np.ones(len(frames), np.bool_)
    for column in columns:
        small &= np.bincount(stack, column, len(frames)) * 100 < least * max(float(column.sum()), 1)
    number, together = np.arange(len(frames)), dict[str, int]()
    for at in np.flatnonzero(small).tolist():
        if len(frames[at]) == 1 and (frame := frames[at][0]).mapping and not frame.function:
            number[at] = together.setdefault(frame.module, len(frames) + len(together))
    return number, [[Frame("", module=f"(others in {name})")] for name in together]


def comments(told: Composition, report: Report) -> list[str]:
    """What the profile tells of, and what it cannot show."""
    lines = (report.answer, report.completeness, *report.notes)
    found = [f"page faults of {told.info.name}, by wstrace", *lines]
    found += [note] if (note := estimates_note(told.past.sampled)) else []
    found += [] if told.rss else [why_no_pages(told.trace)]
    if not told.inputs.names.tree.ids().size:
        found.append("no stacks are in the trace (-s page_faults:stacks=python): each is the faulting instruction")
    return found
