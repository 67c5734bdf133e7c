"""Writes a trace as a profile of pprof: faults, bytes brought and bytes resident by stack, in the sums of `blame`."""

from __future__ import annotations

import gzip
from typing import IO

import numpy as np

from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import Label
from wstrace.analysis.frames import to_the_root
from wstrace.analysis.report import report as report_of
from wstrace.analysis.report import sentences
from wstrace.formats import Rows
from wstrace.trace import Trace
from wstrace_exporters.pprof.profile import Profile

#: The types of values and their units; and the columns of Cells that they are.
TYPES = (("faults", "count"), ("brought", "bytes"), ("resident", "bytes"))
COLUMNS = ("faults", "brought", "resident")
#: The views that become labels of samples.
LABELS = ("file", "process", "thread", "kind")


def write(trace: Trace, file: IO[bytes], *, at: str = "peak") -> Rows:
    """Writes a profile; returns the number of its samples.

    Args:
        trace: the trace.
        file: the output.
        at: the moment of `resident`: peak, exit, start or the text of a mark.

    Raises:
        UsageError: there is no such mark.
    """
    report = report_of(trace, at=at)
    blame = report.of or Composition(trace, at)  # without pages: the faults alone
    numbers, sums = blame.columns("stack", *LABELS)
    codes = [dict[Label, int]() for _ in range(1 + len(LABELS))]
    named = blame.past.labels("stack", *LABELS).labels
    cells = np.array([[code.setdefault(label, len(code)) for code, label in zip(codes, named[number], strict=True)]
                      for number in numbers.tolist()], np.intp).reshape(-1, len(codes))  # fmt: skip
    stacks, *views = (list(code) for code in codes)
    columns = [sums.get(name, np.zeros(len(numbers))) for name in COLUMNS]
    profile = Profile(TYPES, blame.inputs.names.symbolizer.mappings, blame.strings)
    profile.time_ns = trace.info.clock.wall(trace.begin_ns)
    profile.duration_ns = max(trace.info.ended_ns - trace.begin_ns, 0)
    profile.default = "resident" if blame.rss else "brought"
    profile.comments = [f"page faults of {blame.info.name}, by wstrace", *sentences(blame, report)]
    labels = [[b"" if row.reason else profile.label(name, row.text) for row in view]
              for name, view in zip(LABELS, views, strict=True)]  # fmt: skip
    made = [profile.stack(to_the_root(row.frames), row.reason) for row in stacks]
    values = np.column_stack(columns).round().astype(np.int64)
    for (stack, *of), amounts in zip(cells.tolist(), values.tolist(), strict=True):
        labelled = b"".join(view[code] for view, code in zip(labels, of, strict=True))
        profile.sample(made[stack], amounts, labelled)
    file.write(gzip.compress(profile.encoded(), 6, mtime=0))
    return Rows(len(cells), "")
