"""Writes a trace as a profile of pprof: faults, bytes brought and bytes resident by stack, in the sums of `blame`."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.rows import Blame, BlameRow
from wstrace.analysis.blame.words import first_lines
from wstrace.analysis.frames import Frame
from wstrace.analysis.segments import distinct
from wstrace.formats import Rows
from wstrace.text import estimates_note, number, plural
from wstrace.trace import Trace
from wstrace_exporters.pprof.folding import OTHERS, Folded, is_small, short_stacks, without_names
from wstrace_exporters.pprof.profile import Profile

#: The types of values and their units; and the columns of Cells that they are.
TYPES = (("faults", "count"), ("brought", "bytes"), ("resident", "bytes"))
COLUMNS = ("in_all", "brought", "resident")
#: The views that become labels of samples.
LABELS = ("file", "process", "thread", "kind")
#: Those that small samples of a large profile lose, one after the other.
FOLDED = ("file", "thread")
#: The bytes of a profile that is told whole: without stacks, and with stacks.
ROOM = (10_000, 300_000)
#: The parts of `least` below which a profile that would be larger is folded, one after the other till it fits.
STEPS = (0.01, 0.1, 1.0)


class Samples(NamedTuple):
    """The samples of a profile: each its stack, the numbers of its labels, (n, labels), and its values, (n, types).

    frames: of each stack, innermost first. The number of a label behind all those of its view is OTHERS.
    """

    frames: list[Sequence[Frame]]
    stack: NDArray[np.intp]
    labels: NDArray[np.intp]
    values: NDArray[np.float64]

    def merged(self, folded: Folded, labels: NDArray[np.intp]) -> Samples:
        """The same values, of the stacks that stand for these, and by these labels."""
        stack = folded.number[self.stack]
        rows, which = distinct(stack, *labels.T)
        sums = [np.bincount(which, column, len(rows)) for column in self.values.T]
        return Samples(folded.frames, stack[rows], labels[rows], np.column_stack(sums))

    def small(self, least: float) -> NDArray[np.bool_]:
        """Which samples have a smaller share of each type of values than that, in percent."""
        return is_small(np.arange(len(self.stack)), list(self.values.T), len(self.stack), least)


def write(trace: Trace, file: IO[bytes], *, at: str = "peak", least: float = 0.1) -> Rows:
    """Writes a profile; returns the number of its samples.

    Args:
        trace: the trace.
        file: the output.
        at: the moment of `resident`: peak, exit, start or the text of a mark.
        least: instructions without a name that have a smaller share of each type of values, in percent, are told
            together by their file; and in a profile that would be larger than ROOM, so are the frames, and the files
            and threads of samples, by the first of STEPS that is enough. 0 = all is told.

    Raises:
        UsageError: there is no such mark.
    """
    told = Blame(Composition(trace, at, whole_stacks=True))
    cells = told.cells("stack", *LABELS)
    frames = [told.frames.get(row.whole, ()) for row in cells.labels[0]]
    values = np.column_stack([cells.sums[name] for name in COLUMNS]).astype(np.float64)
    whole = Samples(frames, cells.of[:, 0], cells.of[:, 1:], values)
    folded = without_names(frames, whole.stack, list(values.T), least)
    named, notes = whole.merged(folded, whole.labels), list[str]()
    if n := int(np.count_nonzero(folded.number != np.arange(len(frames)))):
        few = f"{plural(n, 'instruction')} without a name, of less than {least:g} % each"
        notes = [f"{few}: told by their files, as (others in ...); --option least=0 keeps them"]
    info = trace.info
    times = info.clock.wall(trace.begin_ns), max(info.ended_ns - trace.begin_ns, 0)
    samples, packed, note = named, _packed(told, times, cells.labels, named, notes), ""
    room = ROOM[bool(told.of.inputs.tree.ids().size)]
    n_labels = [len(view) for view in cells.labels[1:]]
    smaller = (found for step in STEPS if least > 0 for found in _smaller(named, least * step, n_labels))
    while len(packed) > room and (found := next(smaller, None)):
        samples, note = found
        packed = _packed(told, times, cells.labels, samples, [*notes, note])
    file.write(packed)
    return Rows(len(samples.stack), note)


def _smaller(whole: Samples, least: float, n_labels: Sequence[int]) -> Iterator[tuple[Samples, str]]:
    """The samples with short stacks, and then also without the file and the thread of small ones; and what says so."""
    n = len(whole.frames)
    folded = short_stacks(whole.frames, whole.stack, list(whole.values.T), least)
    used = np.unique(whole.stack)
    found, ends = whole.merged(folded, whole.labels), int(np.count_nonzero(folded.number[used] >= n))
    for view in (None, *FOLDED):
        if view is not None:
            labels, which = found.labels.copy(), LABELS.index(view)
            labels[found.small(least), which] = n_labels[which]
            found = found.merged(Folded(found.frames, np.arange(len(found.frames))), labels)
        others = (found.stack >= n) | (found.labels == np.array(n_labels)).any(axis=1)
        share = found.values[others].sum(axis=0) / np.maximum(found.values.sum(axis=0), 1)
        shares = ", ".join(f"{one:.1%} of {name}" for one, (name, _) in zip(share, TYPES, strict=True))
        if len(found.stack) < len(whole.stack):
            yield found, (f"{number(len(whole.stack))} samples are {number(len(found.stack))} here: what has less than "
                          f"{least:g} % is told as {OTHERS}, {plural(ends, 'end')} of stacks and labels of {shares}; "
                          "--option least=0 keeps all")  # fmt: skip


def _packed(told: Blame, times: tuple[int, int], of_views: list[list[BlameRow]], samples: Samples,
            notes: Sequence[str]) -> bytes:  # fmt: skip
    """The file. times: its begin and duration. of_views: the labels of stacks, and those of each of LABELS."""
    profile = Profile(TYPES, told.of.past.symbolizer.mappings, told.of.strings)
    profile.time_ns, profile.duration_ns = times
    profile.default = "resident" if told.total else "brought"
    profile.comments = [*comments(told), *notes]
    stacks, rows = of_views[0], samples.frames
    of_stack = {at: profile.stack(rows[at], stacks[at].reason if at < len(stacks) else "")
                for at in np.unique(samples.stack).tolist()}  # fmt: skip
    labels = [[b"" if row.reason else profile.label(name, row.whole) for row in view]
              for name, view in zip(LABELS, of_views[1:], strict=True)]  # fmt: skip
    for at, name in enumerate(LABELS):
        if (samples.labels[:, at] == len(labels[at])).any():
            labels[at].append(profile.label(name, OTHERS))
    values = samples.values.round().astype(np.int64).tolist()
    for at, whose, amounts in zip(samples.stack.tolist(), samples.labels.tolist(), values, strict=True):
        told_by = b"".join(of_view[which] for of_view, which in zip(labels, whose, strict=True))
        profile.sample(of_stack[at], amounts, told_by)
    return gzip.compress(profile.encoded(), 6, mtime=0)


def comments(told: Blame) -> list[str]:
    """What the profile tells of, and what it cannot show."""
    found = [f"page faults of {told.of.info.name}, by wstrace", *first_lines(told)]
    found += [note] if (note := estimates_note(told.of.sampled)) else []
    if not told.of.inputs.tree.ids().size:
        found.append("no stacks are in the trace (-s page_faults:stacks=python): each is the faulting instruction")
    return found
