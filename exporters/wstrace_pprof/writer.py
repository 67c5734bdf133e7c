"""Writes a trace as a profile of pprof: faults, bytes brought and bytes resident by stack, in the sums of `blame`."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.rows import Blame
from wstrace.analysis.blame.words import first_lines
from wstrace.analysis.frames import Frame
from wstrace.analysis.segments import distinct
from wstrace.text import estimates_note, plural
from wstrace.trace import Trace
from wstrace_pprof.profile import Profile

#: The types of values and their units; and the columns of Cells that they are.
TYPES = (("faults", "count"), ("brought", "bytes"), ("resident", "bytes"))
COLUMNS = ("in_all", "brought", "resident")
#: The views that become labels of samples.
LABELS = ("file", "process", "thread", "kind")


def write(trace: Trace, file: IO[bytes], *, at: str = "peak", least: float = 0.1) -> int:
    """Writes a profile; returns the number of its samples.

    Args:
        trace: the trace.
        file: the output.
        at: the moment of `resident`: peak, exit, start or the text of a mark.
        least: instructions without a name that have a smaller share of each type of values, in percent, are told
            together by their file.

    Raises:
        UsageError: there is no such mark.
    """
    told = Blame(Composition(trace, at, whole_stacks=True))
    cells, info = told.cells("stack", *LABELS), trace.info
    profile = Profile(TYPES, told.of.past.symbolizer.mappings, trace.strings)
    profile.time_ns, profile.duration_ns = info.clock.wall(trace.begin_ns), max(info.ended_ns - trace.begin_ns, 0)
    profile.default = "resident" if told.total else "brought"
    profile.comments = comments(told)
    columns = [cells.sums[name] for name in COLUMNS]
    whole = [told.frames.get(row.whole, ()) for row in cells.labels[0]]
    frames, number = _folded(whole, cells.of[:, 0], columns, least)
    if folded := int(np.count_nonzero(number != np.arange(len(number)))):
        few = f"{plural(folded, 'instruction')} without a name, of less than {least:g} % each"
        profile.comments.append(f"{few}: told by their files, as (others in ...); --option least=0 keeps them")
    stack = number[cells.of[:, 0]]
    rows, which = distinct(stack, *cells.of.T[1:])
    of = np.column_stack((stack, cells.of[:, 1:]))[rows]
    values = np.column_stack([np.bincount(which, column, len(rows)) for column in columns]).round().astype(np.int64)
    stacks = {at: profile.stack(frames[at], cells.labels[0][at].reason if at < len(number) else "")
              for at in np.unique(stack).tolist()}  # fmt: skip
    labels = [[b"" if row.reason else profile.label(name, row.whole) for row in rows]
              for name, rows in zip(LABELS, cells.labels[1:], strict=True)]  # fmt: skip
    for (at_stack, *whose), amounts in zip(of.tolist(), values.tolist(), strict=True):
        told_by = b"".join(of_view[number] for of_view, number in zip(labels, whose, strict=True))
        profile.sample(stacks[at_stack], amounts, told_by)
    file.write(gzip.compress(profile.encoded(), 6, mtime=0))
    return len(values)


def _folded(
    frames: list[Sequence[Frame]], stack: NDArray[np.intp], columns: Sequence[NDArray[Any]], least: float
) -> tuple[list[Sequence[Frame]], NDArray[np.intp]]:
    """The stacks, behind them one for each file whose instructions are told together; and which stands for each.

    Args:
        frames: of each stack. stack: of each cell its stack. columns: the values of the cells.
        least: see write().
    """
    number, small = np.arange(len(frames)), np.ones(len(frames), np.bool_)
    for column in columns:
        small &= np.bincount(stack, column, len(frames)) * 100 < least * max(float(column.sum()), 1)
    together: dict[str, int] = {}
    for at in np.flatnonzero(small).tolist():
        if len(frames[at]) == 1 and (frame := frames[at][0]).mapping and not frame.function:
            number[at] = together.setdefault(frame.module, len(frames) + len(together))
    return [*frames, *([Frame("", module=f"(others in {name})")] for name in together)], number


def comments(told: Blame) -> list[str]:
    """What the profile tells of, and what it cannot show."""
    found = [f"page faults of {told.of.info.name}, by wstrace", *first_lines(told)]
    found += [note] if (note := estimates_note(told.of.sampled)) else []
    if not told.of.inputs.tree.ids().size:
        found.append("no stacks are in the trace (-s page_faults:stacks=python): each is the faulting instruction")
    return found
