"""Writes a trace as a profile of pprof: faults, bytes brought and bytes resident by stack, in the sums of `report`.

Source: https://github.com/google/pprof/blob/main/proto/profile.proto
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np

from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import Label
from wstrace.analysis.frames import Frame, to_the_root
from wstrace.analysis.report import report as report_of
from wstrace.analysis.report import sentences
from wstrace.formats import Rows
from wstrace.protobuf import data, number, packed
from wstrace.text import printable
from wstrace.trace import Trace

#: The types of values, which are measures of a report, and their units.
TYPES = {"faults": "count", "brought": "bytes", "resident": "bytes"}
#: The views that become labels of samples.
LABELS = ("file", "process", "thread", "kind")
# the numbers of fields
(_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRING, _TIME, _DURATION, _COMMENT,
 _DEFAULT) = 1, 2, 4, 5, 6, 9, 10, 13, 14  # fmt: skip


def write(trace: Trace, file: IO[bytes], *, at: str = "peak") -> Rows:
    """Writes a profile; returns the number of its samples.

    file: the output. at: the moment of `resident`: peak, exit, start or the text of a mark. Raises UsageError: there is
    no such mark.
    """
    report = report_of(trace, at=at)
    of = report.of or Composition(trace, at)  # without pages: the faults alone
    numbers, sums = of.columns("stack", *LABELS)
    rows = [of.past.labels("stack", *LABELS).labels[at] for at in numbers.tolist()]
    tables = Tables()
    stacks: dict[Label, bytes] = {}  # many rows have the same
    samples = []
    columns = [sums.get(name, np.zeros(len(numbers))) for name in TYPES]
    for (stack, *views), values in zip(rows, np.column_stack(columns).round().astype(np.int64).tolist(), strict=True):
        if stack not in stacks:
            stacks[stack] = tables.stack(to_the_root(stack.frames), stack.reason)
        labels = (tables.label(name, view.text) for name, view in zip(LABELS, views, strict=True) if not view.reason)
        samples.append(data(_SAMPLE, stacks[stack] + packed(2, values) + b"".join(labels)))
    string, comments = tables.string, [f"page faults of {of.info.name}, by wstrace", *sentences(of, report)]
    parts = [data(_SAMPLE_TYPE, number(1, string(name)) + number(2, string(unit))) for name, unit in TYPES.items()]
    parts += [*samples, *tables.encoded(), number(_TIME, trace.info.clock.wall(trace.begin_ns))]
    parts += [number(_DURATION, max(trace.info.ended_ns - trace.begin_ns, 0))]
    parts += [number(_COMMENT, string(comment)) for comment in comments]
    parts += [number(_DEFAULT, string("resident" if of.rss else "brought"))]
    parts += [data(_STRING, text) for text in tables.strings]
    file.write(gzip.compress(b"".join(parts), 6, mtime=0))
    return Rows(len(rows), "")


class Tables:
    """The tables of a profile, in which each text, function and location stands once."""

    def __init__(self) -> None:
        self.strings = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[tuple[tuple[int, int], ...], int] = {}

    def string(self, text: str) -> int:
        """The number of a text."""
        return self.strings.setdefault(printable(text), len(self.strings))

    def label(self, name: str, text: str) -> bytes:
        """A label of a sample."""
        return data(3, number(1, self.string(name)) + number(2, self.string(text)))

    def stack(self, frames: Sequence[Frame], reason: str) -> bytes:
        """The locations of a stack, innermost frame first; of none a single one with the reason."""
        return packed(1, map(self._location, call_sites(frames or [Frame("", module=f"({reason})")])))

    def _location(self, frames: Sequence[Frame]) -> int:
        lines = tuple((self._function(frame), frame.line) for frame in frames)
        return self._locations.setdefault(lines, len(self._locations) + 1)

    def _function(self, frame: Frame) -> int:
        name = (frame.function or frame.name) + frame.doubt
        return self._functions.setdefault((name, frame.file), len(self._functions) + 1)

    def encoded(self) -> Iterator[bytes]:
        """The locations and functions."""
        for lines, at in self._locations.items():
            lines_of = b"".join(data(4, number(1, function) + number(2, line)) for function, line in lines)
            yield data(_LOCATION, number(1, at) + lines_of)
        for (name, path), at in self._functions.items():
            yield data(_FUNCTION, number(1, at) + number(2, self.string(name)) + number(4, self.string(path)))


def call_sites(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """The frames of each call site: those that the compiler has inlined there, and at last the one that it is in."""
    site: list[Frame] = []
    for frame in frames:
        site.append(frame)
        if not frame.inlined:
            yield site
            site = []
    if site:
        yield site
