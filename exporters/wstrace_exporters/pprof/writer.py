"""Writes a trace as a profile of pprof: faults, bytes brought and bytes resident by stack, in the sums of `blame`."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import IO

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.rows import Blame
from wstrace.analysis.blame.words import first_lines
from wstrace.analysis.frames import Frame
from wstrace.analysis.segments import distinct
from wstrace.formats import Rows
from wstrace.text import estimates_note, plural
from wstrace.trace import Trace
from wstrace_exporters.pprof.profile import Profile

#: The types of values and their units; and the columns of Cells that they are.
TYPES = (("faults", "count"), ("brought", "bytes"), ("resident", "bytes"))
COLUMNS = ("in_all", "brought", "resident")
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
    told = Blame(Composition(trace, at, whole_stacks=True))
    cells = told.cells("stack", *LABELS)
    stacks, *views = cells.labels
    frames: list[Sequence[Frame]] = [told.frames.get(row.whole, ()) for row in stacks]
    columns = [cells.sums[name].astype(np.float64) for name in COLUMNS]
    stack, others = _together(frames, cells.of[:, 0], columns, least)
    profile = Profile(TYPES, told.of.past.symbolizer.mappings, told.of.strings)
    profile.time_ns = trace.info.clock.wall(trace.begin_ns)
    profile.duration_ns = max(trace.info.ended_ns - trace.begin_ns, 0)
    profile.default = "resident" if told.total else "brought"
    profile.comments = comments(told)
    if n := int(np.count_nonzero(stack != np.arange(len(stack)))):
        few = f"{plural(n, 'instruction')} without a name, of less than {least:g} % each"
        profile.comments.append(f"{few}: told by their files, as (others in ...); --option least=0 keeps them")
    reasons = [row.reason for row in stacks] + [""] * len(others)
    frames += others
    labels = [[b"" if row.reason else profile.label(name, row.whole) for row in view]
              for name, view in zip(LABELS, views, strict=True)]  # fmt: skip
    which = stack[cells.of[:, 0]]
    rows, sample = distinct(which, *cells.of[:, 1:].T)
    values = np.column_stack([np.bincount(sample, column, len(rows)) for column in columns]).round().astype(np.int64)
    of_stack = {at: profile.stack(frames[at], reasons[at]) for at in np.unique(which).tolist()}
    for number, of, amounts in zip(which[rows].tolist(), cells.of[rows, 1:].tolist(), values.tolist(), strict=True):
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


def comments(told: Blame) -> list[str]:
    """What the profile tells of, and what it cannot show."""
    found = [f"page faults of {told.of.info.name}, by wstrace", *first_lines(told)]
    found += [note] if (note := estimates_note(told.of.sampled)) else []
    if not told.of.inputs.tree.ids().size:
        found.append("no stacks are in the trace (-s page_faults:stacks=python): each is the faulting instruction")
    return found
