"""Writes a trace as a profile of pprof: faults, bytes brought and bytes resident by stack, in the sums of `report`."""

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

#: The types of values and their units; and the measures of a report that they are.
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
    of = report.of or Composition(trace, at)  # without pages: the faults alone
    numbers, sums = of.columns("stack", *LABELS)
    codes = [dict[Label, int]() for _ in range(1 + len(LABELS))]
    named = of.past.labels("stack", *LABELS).labels
    cells = np.array([[code.setdefault(label, len(code)) for code, label in zip(codes, named[number], strict=True)]
                      for number in numbers.tolist()], np.intp).reshape(-1, len(codes))  # fmt: skip
    stacks, *views = (list(code) for code in codes)
    columns = [sums.get(name, np.zeros(len(numbers))) for name in COLUMNS]
    profile = Profile(TYPES, of.inputs.names.symbolizer.mappings, of.strings)
    profile.time_ns = trace.info.clock.wall(trace.begin_ns)
    profile.duration_ns = max(trace.info.ended_ns - trace.begin_ns, 0)
    profile.default = "resident" if of.rss else "brought"
    profile.comments = [f"page faults of {of.info.name}, by wstrace", *sentences(of, report)]
    labels = [[b"" if row.reason else profile.label(name, row.text) for row in view]
              for name, view in zip(LABELS, views, strict=True)]  # fmt: skip
    made = [profile.stack(to_the_root(row.frames), row.reason) for row in stacks]
    values = np.column_stack(columns).round().astype(np.int64)
    for (stack, *others), amounts in zip(cells.tolist(), values.tolist(), strict=True):
        labelled = b"".join(view[code] for view, code in zip(labels, others, strict=True))
        profile.sample(made[stack], amounts, labelled)
    file.write(gzip.compress(profile.encoded(), 6, mtime=0))
    return Rows(len(cells), "")
